// Where threads that run a kernel on the host wait for others. One that waits for ever ends the
// test, and says for what.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace octofold::test {

class Meeting {
 public:
  // Changes what others may wait for.
  template <typename Change>
  void change(Change&& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  template <typename IsSo>
  void await(IsSo&& is_so, const char* what, unsigned which) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::minutes(2), is_so)) return;
    fail(what, which, "is waited for by a thread, in vain");
  }

  [[noreturn]] static void fail(const char* what, unsigned which, const char* how) {
    std::fprintf(stderr, "%s %u %s\n", what, which, how);
    std::abort();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace octofold::test
