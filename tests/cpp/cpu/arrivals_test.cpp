// Flags that others set, as a thread of the CPU backend waits for them.
#include "cpu/matrix_product.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

using test::error_of;

TEST(ArrivalsTest, AFlagThatIsNeverSetIsAnError) {
  const std::vector<std::int32_t> flags{1, 0, -1};
  const core::Arrivals arrivals{.flags = flags.data(), .shards = 3, .most_seconds = 0.01};
  await_shard("gemm", arrivals, 0);
  await_shard("gemm", arrivals, 2);
  EXPECT_EQ(error_of([&] { await_shard("gemm", arrivals, 1); }, ErrorCode::kUnavailable),
            "gemm: argument 'arrivals': expected the flag of shard 1 of 3 to be set within 0.01 s, "
            "got 0 all the time");
}

TEST(ArrivalsTest, WhatIsWrittenBeforeTheFlagIsThere) {
  std::vector<std::int32_t> flags(1), data(1000);
  const core::Arrivals arrivals{.flags = flags.data(), .shards = 1};
  const std::jthread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ranges::fill(data, 7);
    std::atomic_ref(flags[0]).store(1, std::memory_order_release);
  });
  await_shard("gemm", arrivals, 0);
  EXPECT_THAT(data, testing::Each(7));
}

}  // namespace
}  // namespace octofold::cpu
