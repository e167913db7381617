#include "plan/small.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

// Blocks have a token for each of their parts, and all tokens one.
TEST(PlanRotaryTest, BlocksCoverTheTokens) {
  for (const std::int64_t tokens : {1, 31, 32, 8192, 1'000'003}) {
    for (const std::int64_t heads : {1, 4, 5, 32, 128}) {
      for (const std::int64_t head_size : {2, 64, 80, 128, 256}) {
        const RotaryPlan plan =
            plan_rotary({.tokens = tokens, .heads = heads, .head_size = head_size}, kHopper);
        ASSERT_EQ(plan.kernels.size(), 1u);
        EXPECT_EQ(plan.config.invalid_reason(), nullptr);
        const std::int64_t each = plan.config.tokens_per_block();
        EXPECT_GE(plan.kernels[0].blocks * each, tokens);
        EXPECT_LT((plan.kernels[0].blocks - 1) * each, tokens);
        EXPECT_EQ(plan.config.vectors, head_size % 16 == 0);
      }
    }
  }
}

TEST(PlanRotaryTest, NothingTakesNoKernel) {
  EXPECT_TRUE(plan_rotary({.tokens = 0, .heads = 4, .head_size = 64}, kHopper).kernels.empty());
  EXPECT_TRUE(plan_rotary({.tokens = 4, .heads = 0, .head_size = 64}, kHopper).kernels.empty());
  EXPECT_TRUE(plan_rotary({.tokens = 4, .heads = 4, .head_size = 0}, kHopper).kernels.empty());
}

TEST(PlanRotaryTest, RefusesWhatIndicesDoNotReach) {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  const auto error = [](const RotaryProblem& problem) {
    return test::error_of([&] { plan_rotary(problem, kHopper); }, ErrorCode::kUnsupported);
  };
  EXPECT_THAT(error({.tokens = kMany, .heads = 1, .head_size = 2}),
              HasSubstr("rotary: expected fewer than 2^31 tokens"));
  EXPECT_THAT(error({.tokens = 1, .heads = kMany / 2, .head_size = 2}), HasSubstr("2^31"));
  EXPECT_EQ(plan_rotary({.tokens = kMany - 1, .heads = 1, .head_size = 2}, kHopper).kernels.size(),
            1u);
}

TEST(PlanRotaryTest, WhatIsNotAlignedGoesElementByElement) {
  RotaryProblem problem{.tokens = 4, .heads = 4, .head_size = 64};
  EXPECT_TRUE(plan_rotary(problem, kHopper).config.vectors);
  problem.is_aligned = false;
  EXPECT_FALSE(plan_rotary(problem, kHopper).config.vectors);
}

}  // namespace
}  // namespace octofold::plan
