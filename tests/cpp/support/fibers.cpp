#include "support/fibers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <random>
#include <string_view>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <vector>

#ifdef OCTOFOLD_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef OCTOFOLD_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace octofold::test {

thread_local void* fiber_local = nullptr;

namespace {

constexpr std::size_t kStackBytes = 1 << 20;  // pages that nothing touches take no memory

// Sanitizers are told of switches: that of addresses on which stack the program goes on, that of
// threads whose deeds follow, without an order between one fiber's turn and the next one's. Nothing
// here is compiled with them (CMakeLists.txt), as turns would look like races.
#ifdef OCTOFOLD_ASAN
void leave_stack(void** frames, const void* next, std::size_t bytes) {
  __sanitizer_start_switch_fiber(frames, next, bytes);
}
void enter_stack(void* frames, const void** before, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(frames, before, bytes);
}
#else
void leave_stack(void**, const void*, std::size_t) {}
void enter_stack(void*, const void**, std::size_t*) {}
#endif

#ifdef OCTOFOLD_TSAN
void* own_deeds() { return __tsan_get_current_fiber(); }
void* deeds_of_new_fiber() { return __tsan_create_fiber(0); }
void go_on_with(void* deeds) { __tsan_switch_to_fiber(deeds, __tsan_switch_to_fiber_no_sync); }
void come_before(void* point) { __tsan_release(point); }
void come_after(void* point) { __tsan_acquire(point); }
#else
void* own_deeds() { return nullptr; }
void* deeds_of_new_fiber() { return nullptr; }
void go_on_with(void*) {}
void come_before(void*) {}
void come_after(void*) {}
#endif

// glibc's, and not the address sanitizer's, which forgets at each switch what it knows of a stack.
int switch_context(ucontext_t* from, const ucontext_t* to) {
  static auto* const function = reinterpret_cast<int (*)(ucontext_t*, const ucontext_t*)>(
      dlsym(dlopen("libc.so.6", RTLD_LAZY), "swapcontext"));
  return function(from, to);
}

// A stack and what runs on it: the thread of the host, or a fiber, which is used by one run after
// another.
struct Context {
  ucontext_t registers{};
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* frames = nullptr;  // the address sanitizer's
  void* deeds = nullptr;   // the thread sanitizer's

  void switch_to(Context& next) {
    leave_stack(&frames, next.stack, next.stack_bytes);
    go_on_with(next.deeds);
    switch_context(&registers, &next.registers);
    arrived_from(next);
  }

  // Nobody else knows the bounds of the host's stack.
  void arrived_from(Context& before) { enter_stack(frames, &before.stack, &before.stack_bytes); }
};

struct Fiber : Context {
  int number = 0;
  bool has_ended = true;
  bool gives_way = false;  // to other warps, until the next round
  void* local = nullptr;
  const std::atomic<unsigned>* word = nullptr;  // that it waits for; null: for nothing
  unsigned seen = 0;
  const char* what = "";
  unsigned which = 0;

  bool can_run() const { return word == nullptr || word->load(std::memory_order_relaxed) != seen; }
};

// The fibers of one thread of the host.
class Fibers {
 public:
  void run(int count, const std::function<void(int)>& body) {
    body_ = &body;
    while (static_cast<int>(fibers_.size()) < count) make();
    host_.deeds = own_deeds();
    come_before(&begin_);
    std::vector<Warp> warps;
    for (int i = 0; i < count; ++i) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(i)];
      fiber.number = i;
      fiber.has_ended = false;
      if (i % kWarp == 0) warps.emplace_back();
      warps.back().push_back(&fiber);
    }
    while (!warps.empty()) {
      std::shuffle(warps.begin(), warps.end(), random_);
      bool has_run = false;
      for (Warp& warp : warps) has_run |= run_until_it_waits(warp);
      if (!has_run) end_of_all_waiting(warps);
      std::erase_if(warps, [](const Warp& warp) { return warp.empty(); });
    }
    come_after(&end_);
  }

  // Stops the fiber that runs until `word` is another than `seen`; null: until its next turn.
  void give_way(const std::atomic<unsigned>* word, unsigned seen, const char* what,
                unsigned which) {
    if (running_ == nullptr) fail(what, which, "is waited for outside a fiber");
    Fiber& fiber = *running_;
    fiber.word = word;
    fiber.gives_way = word == nullptr;
    fiber.seen = seen;
    fiber.what = what;
    fiber.which = which;
    fiber.switch_to(host_);
  }

  void set_local(void* pointer) { running_->local = fiber_local = pointer; }

  static Fibers& of_this_thread() {
    static thread_local Fibers fibers;
    return fibers;
  }

 private:
  static constexpr int kWarp = 32;
  using Warp = std::vector<Fiber*>;

  // Runs the fibers that can, by turns, until those that have not ended wait for other warps, or
  // give way to them. False if there was none.
  bool run_until_it_waits(Warp& warp) {
    bool has_run = false;
    for (Fiber* const fiber : warp) fiber->gives_way = false;
    for (bool goes_on = true; goes_on; has_run |= goes_on) {
      goes_on = false;
      std::shuffle(warp.begin(), warp.end(), random_);
      for (Fiber* const fiber : warp) {
        if (fiber->gives_way || !fiber->can_run()) continue;
        resume(*fiber);
        goes_on = true;
      }
      std::erase_if(warp, [](const Fiber* fiber) { return fiber->has_ended; });
    }
    return has_run;
  }

  void make() {
    Fiber& fiber = fibers_.emplace_back();
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const auto made = static_cast<unsigned>(fibers_.size());
    if (stack == MAP_FAILED) fail("the stack of fiber", made, "cannot be had");
    mprotect(stack, 4096, PROT_NONE);  // who needs more ends here
    fiber.stack = stack;
    fiber.stack_bytes = kStackBytes;
    fiber.deeds = deeds_of_new_fiber();
    getcontext(&fiber.registers);
    fiber.registers.uc_stack.ss_sp = stack;
    fiber.registers.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.registers, [] { of_this_thread().run_bodies(); }, 0);
  }

  [[noreturn]] static void end_of_all_waiting(const std::vector<Warp>& warps) {
    std::map<std::pair<std::string_view, unsigned>, unsigned> fibers;
    unsigned waiting = 0;
    for (const Warp& warp : warps) {
      for (const Fiber* const fiber : warp) ++fibers[{fiber->what, fiber->which}], ++waiting;
    }
    for (const auto& [awaited, count] : fibers) {
      std::fprintf(stderr, "%s %u is waited for by %u\n", awaited.first.data(), awaited.second,
                   count);
    }
    fail("all that is waited for, by", waiting, "fibers, in vain");
  }

  void resume(Fiber& fiber) {
    running_ = &fiber;
    fiber_local = fiber.local;
    fiber.word = nullptr;
    host_.switch_to(fiber);
    fiber_local = nullptr;
    running_ = nullptr;
  }

  // All that a fiber does: it ends with the process.
  [[noreturn]] void run_bodies() {
    Fiber& fiber = *running_;
    fiber.arrived_from(host_);
    while (true) {
      come_after(&begin_);
      (*body_)(fiber.number);
      come_before(&end_);
      fiber.local = nullptr;
      fiber.has_ended = true;
      fiber.switch_to(host_);
    }
  }

  std::deque<Fiber> fibers_;
  Context host_;
  Fiber* running_ = nullptr;
  const std::function<void(int)>* body_ = nullptr;
  std::minstd_rand random_;
  char begin_ = 0, end_ = 0;  // of a run, for the thread sanitizer
};

}  // namespace

void run_fibers(int count, const std::function<void(int)>& body) {
  Fibers::of_this_thread().run(count, body);
}

void give_way_until_changed(const std::atomic<unsigned>& word, unsigned seen, const char* what,
                            unsigned which) {
  Fibers::of_this_thread().give_way(&word, seen, what, which);
}

void give_way() {
  std::this_thread::yield();
  Fibers::of_this_thread().give_way(nullptr, 0, "", 0);
}

void set_fiber_local(void* pointer) { Fibers::of_this_thread().set_local(pointer); }

void fail(const char* what, unsigned which, const char* how) {
  std::fprintf(stderr, "%s %u %s\n", what, which, how);
  std::abort();
}

}  // namespace octofold::test
