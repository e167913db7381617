#include "cpu/parallel.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <system_error>
#include <thread>
#include <vector>

#include "core/options.h"

namespace octofold::cpu {
namespace {

// Starting a thread costs some 20 µs; a thread should have several times that to do.
constexpr std::int64_t kWorkPerThread = 128 * 1024;

// A new thread may stay on its maker's processor for milliseconds, as long as a product takes,
// while others are idle (seen on virtual machines). So each is put on one of its own, and may go
// anywhere from there. Where the system refuses, threads stay where they are.
void spread(std::vector<std::jthread>& threads) {
  cpu_set_t allowed, one;
  if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0) return;
  int processor = std::max(0, sched_getcpu());
  for (std::jthread& thread : threads) {
    do processor = (processor + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(processor, &allowed));
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);
    pthread_setaffinity_np(thread.native_handle(), sizeof allowed, &allowed);
  }
}

}  // namespace

int thread_count(std::int64_t items, std::int64_t work_per_item) {
  const std::int64_t work_per_thread_items =
      std::max<std::int64_t>(1, kWorkPerThread / std::max<std::int64_t>(1, work_per_item));
  return static_cast<int>(
      std::clamp<std::int64_t>(items / work_per_thread_items, 1, core::options().num_threads));
}

void run_on_threads(int threads, const std::function<void()>& worker) {
  std::exception_ptr error;
  std::mutex mutex;
  const auto guarded = [&] {
    try {
      worker();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      while (std::ssize(others) + 1 < threads) others.emplace_back(guarded);
    } catch (const std::system_error&) {
      // No more threads to be had: those that run share the work.
    } catch (const std::bad_alloc&) {  // alike
    }
    spread(others);
    guarded();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace octofold::cpu
