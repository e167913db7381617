// The kernels of routing, compiled for their GPU: no register leaves the register file.
#include <array>
#include <gtest/gtest.h>
#include <vector>

#include "plan/routing.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

constexpr std::array kWide{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::array kBools{false, true};

class NvrtcRoutingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }

  test::Compiler compiler_;
};

TEST_F(NvrtcRoutingTest, TopKCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const std::int64_t experts : {8, 64, 128, 256, 384, 1024}) {
      plan::TopKProblem problem{.tokens = 100, .experts = experts, .slots = 8, .in = in};
      compiler_.expect_sound(plan_top_k(problem, plan::kHopper).kernels);
      problem.scoring = Scoring::kSigmoid;
      for (const bool biased : kBools) {
        for (const std::int64_t groups : {1, 8}) {
          problem.biased = biased;
          problem.groups = groups;
          compiler_.expect_sound(plan_top_k(problem, plan::kHopper).kernels);
        }
      }
    }
  }
}

TEST_F(NvrtcRoutingTest, TopKGradientCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
      for (const std::int64_t experts : {8, 64, 128, 256, 384, 1024}) {
        const plan::TopKGradientProblem problem{
            .tokens = 100, .experts = experts, .slots = 8, .in = in, .scoring = scoring};
        compiler_.expect_sound(plan_top_k_gradient(problem, plan::kHopper).kernels);
      }
    }
  }
}

TEST_F(NvrtcRoutingTest, SortCompilesWithoutSpills) {
  for (const std::int64_t slots : {100, 100'000}) {
    for (const std::int64_t experts : {8, 512, 1024, 2048}) {
      compiler_.expect_sound(plan_sort({slots, experts}, plan::kHopper).kernels);
    }
  }
}

TEST_F(NvrtcRoutingTest, ChecksCompileWithoutSpills) {
  for (const bool ascends : kBools) {
    compiler_.expect_sound(plan_group_check({.ascends = ascends}, plan::kHopper).kernels);
  }
}

TEST_F(NvrtcRoutingTest, CombineCompilesWithoutSpills) {
  for (const DType in : kWide) {
    for (const DType out : kWide) {
      for (const bool aligned : kBools) {
        const bool adds = in == out;
        for (const std::int64_t cols : {64, 7168}) {
          plan::CombineProblem problem{.tokens = 100,
                                       .cols = cols,
                                       .in = in,
                                       .out = out,
                                       .adds = adds,
                                       .is_aligned = aligned};
          compiler_.expect_sound(plan_combine(problem, plan::kHopper).kernels);
          problem.weighted = false;
          problem.adds = !adds;
          compiler_.expect_sound(plan_combine(problem, plan::kHopper).kernels);
          compiler_.expect_sound(
              plan_combine_gradient(
                  {.tokens = 100, .cols = cols, .gradient = out, .in = in, .is_aligned = aligned},
                  plan::kHopper)
                  .kernels);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
