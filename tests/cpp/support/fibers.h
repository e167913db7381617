// Many threads of a GPU as fibers of one thread of the host: they run by turns and give way where
// they wait, so a switch costs a microsecond and a test can be repeated.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>

namespace octofold::test {

/// Calls body(i) for i below `count`, each by a fiber, and returns when all have returned. Warps of
/// 32 take turns, each as far as it comes without the others, so that one whose barrier is missing
/// is far ahead. Turns of warps and within them are drawn, by a generator that begins anew with
/// each program: no order is relied on, and a failure comes again. Where all wait for ever the
/// program is ended, and says for what.
void run_fibers(int count, const std::function<void(int)>& body);

/// Lets others run until `word` is another than `seen`, and then may return. `what` and `which` are
/// for who waits in vain; outside a fiber everybody does.
void give_way_until_changed(const std::atomic<unsigned>& word, unsigned seen, const char* what,
                            unsigned which);

/// Lets others run, and threads of the host too.
void give_way();

/// Ends the program: "<what> <which> <how>".
[[noreturn]] void fail(const char* what, unsigned which, const char* how);

/// A pointer that each fiber has for itself; outside of fibers null.
void set_fiber_local(void* pointer);
extern thread_local void* fiber_local;

/// `threads` fibers meet here, time after time.
class Barrier {
 public:
  /// The last of each meeting calls `completion`.
  explicit Barrier(
      int threads, std::function<void()> completion = [] {})
      : threads_(threads), awaited_(threads), completion_(std::move(completion)) {}

  /// The meeting, for wait().
  unsigned arrive() {
    const unsigned meeting = meeting_.load(std::memory_order_relaxed);
    if (awaited_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      completion_();
      awaited_.store(threads_, std::memory_order_relaxed);
      meeting_.store(meeting + 1, std::memory_order_release);
    }
    return meeting;
  }
  void wait(unsigned meeting) {
    while (meeting_.load(std::memory_order_acquire) == meeting) {
      give_way_until_changed(meeting_, meeting, "barrier of threads",
                             static_cast<unsigned>(threads_));
    }
  }
  void arrive_and_wait() { wait(arrive()); }

 private:
  int threads_;
  std::atomic<int> awaited_;
  std::atomic<unsigned> meeting_ = 0;
  std::function<void()> completion_;
};

/// A state that fibers change, one at a time, and wait for.
class Meeting {
 public:
  template <typename Change>
  void change(Change&& change) {
    const std::lock_guard lock(mutex_);
    change();
    ++changes_;
  }

  template <typename IsSo>
  void await(IsSo&& is_so, const char* what, unsigned which) {
    while (true) {
      unsigned seen = 0;
      {
        const std::lock_guard lock(mutex_);
        if (is_so()) return;
        seen = changes_;
      }
      give_way_until_changed(changes_, seen, what, which);
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<unsigned> changes_ = 0;
};

}  // namespace octofold::test
