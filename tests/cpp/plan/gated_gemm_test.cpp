// Plans of gated products.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "octofold/error.h"

#include "plan/gemm.h"
#include "support/gemm_problems.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;

GemmProblem random_gated_problem(std::mt19937& random) {
  const auto fp8 = [&] { return test::pick(random, {DType::kE4M3, DType::kE5M2}); };
  GemmProblem problem{.product = {.m = test::random_size(random),
                                  .n = (test::random_size(random) + 127) / 128 * 128,
                                  .k = (test::random_size(random) + 15) / 16 * 16}};
  problem.product.form.a.type = fp8();
  problem.product.form.b.type = fp8();
  problem.product.form.out = fp8();
  problem.gated = {.exists = true,
                   .activation = test::pick(random, {Activation::kSwiGlu, Activation::kGeGluTanh,
                                                     Activation::kGeGluErf}),
                   .power_of_two = random() % 2 == 0,
                   .saturate = random() % 2 == 0};
  return problem;
}

TEST(GatedGemmPlanTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < 5000; ++i) {
    const GemmProblem problem = random_gated_problem(random);
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const Sm90GemmConfig& config = plan.config;
    SCOPED_TRACE(describe(problem) + ": " + describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.form, problem.product.form);
    EXPECT_EQ(config.gated, problem.gated);
    EXPECT_EQ(config.load, OperandLoad::kTma);
    EXPECT_EQ(config.store, OutputStore::kTma);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_GT(kernel.blocks, 0);
    EXPECT_LE(kernel.blocks, kHopper.multiprocessors);
    EXPECT_EQ(kernel.blocks % config.cluster_size(), 0);
    EXPECT_LE(kernel.shared_bytes, kHopper.shared_memory_per_block);
    // Gates and ups in each stage, and as many stages as there is memory for.
    const config::Sm90SmemLayout layout(config);
    EXPECT_EQ(layout.columns_bytes, 2 * 128 * 128);
    EXPECT_GE(config.stages, 4);
    const int stage = layout.rows_bytes + layout.columns_bytes + layout.row_scales_bytes +
                      layout.column_scales_bytes;
    EXPECT_GT(kernel.shared_bytes + stage + 16, kHopper.shared_memory_per_block);
    const std::vector<GemmCandidate> candidates = gemm_candidates(problem, kHopper);
    EXPECT_NE(std::ranges::find(candidates, config, &GemmCandidate::config), candidates.end());
  }
}

TEST(GatedGemmPlanTest, CandidatesHaveNamesOfTheirOwnAndCanBeAskedFor) {
  test::Random random;
  const GemmProblem problem = random_gated_problem(random);
  std::set<std::string> names, kernels;
  for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
    EXPECT_TRUE(names.insert(name).second) << name;
    const GemmPlan plan = plan_gemm(problem, kHopper, name);
    EXPECT_EQ(plan.config, config) << name;
    EXPECT_TRUE(kernels.insert(plan.kernels.front().kernel).second) << name;
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("128x128.w2.c2x1x1.b1.early",
                                                   "128x128.w2.c1x1x1.b1.early"));
}

// What was the best of those measured, or next to it (docs/performance.md).
TEST(GatedGemmPlanTest, ClustersShareBWhereThereAreManyRows) {
  const auto cluster_rows = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    GemmProblem problem{.product = {.m = m, .n = n, .k = k}, .gated = {.exists = true}};
    problem.product.form.out = DType::kE4M3;
    return plan_gemm(problem, kHopper).config.cluster_rows;
  };
  EXPECT_EQ(cluster_rows(16384, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(8192, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(4096, 14336, 8192), 2);
  EXPECT_EQ(cluster_rows(4096, 2048, 7168), 2);
  EXPECT_EQ(cluster_rows(1024, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(512, 14336, 4096), 1);
  EXPECT_EQ(cluster_rows(64, 14336, 4096), 1);
}

TEST(GatedGemmPlanTest, ItsTilingsAreNoOneElses) {
  GemmProblem plain{.product = {.m = 4096, .n = 4096, .k = 4096}};
  for (const auto& [name, config] : gemm_candidates(plain, kHopper)) {
    EXPECT_FALSE(config.gated.exists) << name;
  }
}

// What goes together: a valid configuration, spoiled in one place.
TEST(GatedGemmPlanTest, SaysWhyNoKernelCanBeBuilt) {
  GemmProblem problem{.product = {.m = 256, .n = 256, .k = 256}, .gated = {.exists = true}};
  problem.product.form.out = DType::kE4M3;
  const Sm90GemmConfig valid = plan_gemm(problem, kHopper).config;
  const auto reason = [&](auto&& spoil) {
    Sm90GemmConfig config = valid;
    spoil(config);
    const char* found = config.invalid_reason();
    return std::string(found == nullptr ? "" : found);
  };
  using testing::HasSubstr;
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.gated.activation = Activation::kSilu; }),
              HasSubstr("gate and up"));
  EXPECT_THAT(reason([](auto& c) { c.form.out = DType::kBFloat16; }), HasSubstr("FP8"));
  EXPECT_THAT(reason([](auto& c) { c.gated.exists = false; }), HasSubstr("D has to be"));
  EXPECT_THAT(reason([](auto& c) { c.form.b.scales = Granularity::kBlock1x128; }),
              HasSubstr("128x128"));
  EXPECT_THAT(reason([](auto& c) { c.form.bias = Addend::kFloat32; }), HasSubstr("neither C nor bias"));
  EXPECT_THAT(reason([](auto& c) { c.tile_columns = 64; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.tile_rows = 256; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = true; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.store = OutputStore::kDirect; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { ++c.stages; }), HasSubstr("shared memory"));
}

}  // namespace
}  // namespace octofold::plan
