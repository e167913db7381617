// Plans of two-level scales: one kernel to a cast, factors in the epilogue of products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <variant>

#include "plan/cast.h"
#include "support/product_plans.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::TileCastConfig;

CastProblem problem_of(Granularity granularity, bool to_rows, bool to_transposed) {
  return {.rows = 4000,
          .cols = 7168,
          .format = {.granularity = granularity},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .two_level = true};
}

TEST(PlanTwoLevelTest, ACastIsOneKernel) {
  for (const DType in : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (CastProblem problem : {problem_of(Granularity::kBlock1x128, true, true),
                                problem_of(Granularity::kBlock128x128, true, true),
                                problem_of(Granularity::kBlock128x128, true, false),
                                problem_of(Granularity::kBlock128x128, false, true)}) {
      problem.format.in = in;
      const auto launches = cast_launches(problem, kHopper);
      ASSERT_EQ(launches.size(), 1u);
      const auto* config = std::get_if<TileCastConfig>(&launches[0].config);
      ASSERT_NE(config, nullptr);
      EXPECT_EQ(config->invalid_reason(), nullptr);
      EXPECT_TRUE(config->two_level);
      EXPECT_EQ(config->phase, CastPhase::kWhole);
      EXPECT_EQ(config->tile_rows, 128);
      EXPECT_EQ(launches[0].blocks, 32 * 56);
    }
  }
}

TEST(PlanTwoLevelTest, NamesAndDescriptionsTellThemApart) {
  CastProblem problem = problem_of(Granularity::kBlock128x128, true, true);
  const auto kernel = plan_cast(problem, kHopper).kernels[0];
  EXPECT_THAT(kernel.description, testing::HasSubstr("two_level"));
  problem.two_level = false;
  EXPECT_NE(plan_cast(problem, kHopper).kernels[0].kernel, kernel.kernel);

  ConvertProblem convert{
      .rows = 5, .cols = 7, .scaled = true, .granularity = Granularity::kBlock128x128};
  const auto plain = plan_convert(convert, kHopper).kernels[0].kernel;
  convert.has_channel_scale = true;
  EXPECT_NE(plan_convert(convert, kHopper).kernels[0].kernel, plain);
}

TEST(PlanTwoLevelTest, WhatNoKernelIsFor) {
  TileCastConfig config{.two_level = true, .to_transposed = true};
  EXPECT_EQ(config.invalid_reason(), nullptr);
  config.to_rows = false;  // rows of 1x128 that are not written
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = {.phase = CastPhase::kEncodeGiven, .two_level = true, .to_transposed = true};
  EXPECT_NE(config.invalid_reason(), nullptr);
  config::Sm90GemmConfig product;
  product.form.b_channel_scale = true;
  EXPECT_EQ(product.invalid_reason(), nullptr);
  product.form.b.scales = Granularity::kChannel;
  EXPECT_NE(product.invalid_reason(), nullptr);
}

// The same tilings as without factors: weight gradients of all shapes, swapped and sliced ones.
TEST(PlanTwoLevelTest, ProductsAreCutAsWithoutFactors) {
  GemmProblem problem = contiguous({.product = {.m = 4096, .n = 4096, .k = 8192}});
  const auto plain = test::sm90_candidates(problem);
  problem.product.form.b_channel_scale = true;
  const auto candidates = test::sm90_candidates(problem);
  ASSERT_EQ(candidates.size(), plain.size());
  bool swapped = false, sliced = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(candidates[i].name, plain[i].name);
    swapped |= candidates[i].config.rows_have_factors();
    sliced |= candidates[i].config.split_k > 1;
  }
  EXPECT_TRUE(swapped);
  EXPECT_TRUE(sliced);
}

}  // namespace
}  // namespace octofold::plan
