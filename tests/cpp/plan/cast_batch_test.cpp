// Casts that share launches, and the kernels that run them.
#include "plan/cast.h"
#include "support/granularities.h"
#include "support/product_plans.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::ScaleStepConfig;
using config::TileCastConfig;
using enum Granularity;

CastProblem cast_of(std::int64_t rows, std::int64_t cols, Granularity granularity = kBlock128x128,
                    std::int64_t matrices = 1) {
  return {.rows = rows,
          .cols = cols,
          .format = {.granularity = granularity},
          .to_transposed = true,
          .matrices = matrices};
}

TEST(PlanCastBatchTest, SizesMakeNoOtherKind) {
  for (const Granularity granularity : test::kGranularities) {
    const auto kind = batch_kind(cast_of(256, 512, granularity));
    ASSERT_TRUE(kind);
    EXPECT_EQ(*kind, batch_kind(cast_of(1024, 768, granularity)));
    EXPECT_EQ(*kind, batch_kind(cast_of(8 * 1000, 264, granularity, 8)));
    EXPECT_EQ(*kind, batch_kind(*kind));
  }
}

TEST(PlanCastBatchTest, WhatKernelsDependOnDoes) {
  const CastProblem one = cast_of(256, 512);
  const auto differs = [&](auto&& change) {
    CastProblem other = one;
    change(other);
    const auto kind = batch_kind(other);
    return kind.has_value() && kind != batch_kind(one);
  };
  EXPECT_TRUE(differs([](auto& p) { p.format.in = DType::kFloat32; }));
  EXPECT_TRUE(differs([](auto& p) { p.format.rule = config::kTorchAoRule; }));
  EXPECT_TRUE(differs([](auto& p) { p.to_rows = false; }));
  EXPECT_TRUE(differs([](auto& p) { p.scales_given = true; }));
  EXPECT_TRUE(differs([](auto& p) { p.x_is_aligned = false; }));
  EXPECT_TRUE(differs([](auto& p) { p.cols = 500; }));
  EXPECT_TRUE(differs([](auto& p) { p.rows = 4 * 66, p.matrices = 4; }));
  EXPECT_FALSE(differs([](auto& p) { p.rows = 4 * 64, p.matrices = 4; }));
}

TEST(PlanCastBatchTest, SomeCastsAreAlone) {
  const auto is_alone = [](auto&& change) {
    CastProblem problem = cast_of(256, 512, kChannel);
    change(problem);
    return !batch_kind(problem).has_value();
  };
  EXPECT_FALSE(is_alone([](auto&) {}));
  EXPECT_TRUE(is_alone([](auto& p) { p.source.kind = config::SourceKind::kGathered; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.columns.sums = true; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.groups = 2; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.skips_unused = true; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.two_level = true; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.amax_given = true; }));
}

// A batch takes a stack's kernels, for rows with a scale each, too, which alone have one of rows.
TEST(PlanCastBatchTest, KernelsAreThoseOfAStack) {
  for (const Granularity granularity : test::kGranularities) {
    for (const auto& [rows, transposed] :
         {std::pair{true, true}, std::pair{true, false}, std::pair{false, true}}) {
      CastProblem problem = cast_of(1024, 640, granularity, 4);
      problem.to_rows = rows;
      problem.to_transposed = transposed;
      const CastBatchPlan plan = plan_cast_batch(*batch_kind(problem), kHopper);
      ASSERT_EQ(plan.kernels.size(), plan.config.kernels.size());
      ASSERT_EQ(plan.kernels.size(), varies_along_k(granularity) ? 1u : 4u);
      for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
        const CastConfig& kernel = plan.config.kernels[i];
        EXPECT_EQ(plan.kernels[i].header, "kernels/cast/batch.h");
        std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); }, kernel);
        if (const auto* tiles = std::get_if<TileCastConfig>(&kernel)) {
          EXPECT_TRUE(tiles->stacked);
          EXPECT_EQ(batch_blocks(kernel, problem), 4 * 2 * 5);
          EXPECT_EQ(batch_blocks(kernel, cast_of(0, 640)), 0);
        } else {
          const auto& step = std::get<ScaleStepConfig>(kernel);
          const std::int64_t units = granularity == kTensor ? 4
                                     : transposed           ? std::int64_t{4} * 640
                                                            : 1024;
          EXPECT_EQ(batch_blocks(kernel, problem), (units + step.threads() - 1) / step.threads());
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::plan
