// The loop over threads of the CPU backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>

namespace octofold::cpu {

/// How many threads `items` of `work_per_item` elements each are worth, at most options() allows.
int thread_count(std::int64_t items, std::int64_t work_per_item);

/// Runs `worker` on `threads` threads, the caller's own among them, and joins them. The threads
/// live for this call only: nothing has to survive fork(), and nothing is left at exit. Rethrows
/// the first exception. Where the system gives fewer threads, fewer do the work.
void run_on_threads(int threads, const std::function<void()>& worker);

/// Calls make_body()(i) once for each i in [0, items). Each thread makes a body of its own, which
/// may hold its workspace. Items are handed out one by one, so they may differ in cost.
template <typename MakeBody>
void parallel_for(std::int64_t items, std::int64_t work_per_item, MakeBody&& make_body) {
  if (items <= 0) return;
  std::atomic<std::int64_t> next{0};
  run_on_threads(thread_count(items, work_per_item), [&] {
    auto body = make_body();
    for (std::int64_t i = next++; i < items; i = next++) body(i);
  });
}

}  // namespace octofold::cpu
