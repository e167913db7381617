#include "plan/small.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

// Each element is in one part, whose blocks of 128 are whole, and one block of threads adds them.
TEST(PlanDotTest, PartsCoverTheVectors) {
  test::Random random;
  for (int i = 0; i < 20'000; ++i) {
    const auto size = static_cast<std::int64_t>(random()) << random() % 16 >> random() % 32;
    const std::int64_t span = config::dot_span(size), parts = config::dot_parts(size);
    EXPECT_GE(span * parts, size);
    EXPECT_LT(span * (parts - 1), std::max<std::int64_t>(size, 1));
    EXPECT_LE(parts, config::kMostDotParts);
    EXPECT_EQ(span % kScaleBlock, 0);
  }
}

TEST(PlanDotTest, OnePartIsTheResult) {
  for (const std::int64_t size : {0, 1, 8192}) {
    const DotPlan plan = plan_dot({.size = size}, kHopper);
    ASSERT_EQ(plan.kernels.size(), 1u);
    EXPECT_EQ(plan.kernels[0].blocks, 1);
    EXPECT_TRUE(plan.config.alone);
  }
  const DotPlan plan = plan_dot({.size = 8193, .b = DType::kFloat32, .a_blocks = true}, kHopper);
  ASSERT_EQ(plan.kernels.size(), 2u);
  EXPECT_EQ(plan.kernels[0].blocks, 2);
  EXPECT_EQ(plan.kernels[1].blocks, 1);
  EXPECT_FALSE(plan.config.alone);
  EXPECT_EQ(plan.config.vector(), 4);
}

// Bits do not depend on the GPU.
TEST(PlanDotTest, IsTheSameOnEveryGpu) {
  const DotProblem problem{.size = 10'000'000, .a = DType::kFloat16};
  Gpu small = as_target(kHopper, 75);
  small.multiprocessors = 14;
  const DotPlan plan = plan_dot(problem, small), on_hopper = plan_dot(problem, kHopper);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.kernels[i].kernel, on_hopper.kernels[i].kernel);
    EXPECT_EQ(plan.kernels[i].blocks, on_hopper.kernels[i].blocks);
  }
}

}  // namespace
}  // namespace octofold::plan
