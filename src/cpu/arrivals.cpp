#include "cpu/arrivals.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "core/check.h"

namespace octofold::cpu {

void await_shard(std::string_view operation, const core::Arrivals& arrivals, std::int64_t shard) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  // atomic_ref takes no const; this only reads.
  const std::atomic_ref flag(const_cast<std::int32_t&>(arrivals.flags[shard]));
  const Clock::time_point begin = Clock::now();
  while (flag.load(std::memory_order_acquire) == 0) {
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (waited.count() > arrivals.most_seconds) {
      core::fail(ErrorCode::kUnavailable,
                 "{}: argument 'arrivals': expected the flag of shard {} of {} to be set within {} "
                 "s, got 0 all the time",
                 operation, shard, arrivals.shards, arrivals.most_seconds);
    }
    std::this_thread::sleep_for(50us);
  }
}

}  // namespace octofold::cpu
