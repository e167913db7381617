// Plans of products that cast their A.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

#include "plan/gemm.h"
#include "support/gemm_problems.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using testing::HasSubstr;

GemmProblem random_dynamic_problem(std::mt19937& random) {
  const auto fp8 = [&] { return test::pick(random, {DType::kE4M3, DType::kE5M2}); };
  const auto wide = [&] {
    return test::pick(random, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  };
  GemmProblem problem{.product = {.m = test::random_size(random) % 300 + 1,
                                  .n = test::random_size(random),
                                  .k = test::random_size(random)}};
  GemmForm& form = problem.product.form;
  form.a.type = fp8();
  form.b = {fp8(), test::pick(random, {Granularity::kTensor, Granularity::kChannel,
                                       Granularity::kBlock1x128, Granularity::kBlock128x128})};
  form.out = wide();
  form.bias = test::pick(random, {Addend::kNone, Addend::kOutputType, Addend::kFloat32});
  problem.dynamic = {.exists = true,
                     .type = wide(),
                     .power_of_two = random() % 2 == 0,
                     .saturate = random() % 2 == 0,
                     .vectors = random() % 2 == 0};
  problem.output_fits_tma = random() % 2 == 0;
  return problem;
}

TEST(DynamicGemmPlanTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < 5000; ++i) {
    const GemmProblem problem = random_dynamic_problem(random);
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const Sm90GemmConfig& config = plan.config;
    SCOPED_TRACE(describe(problem) + ": " + describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.form, problem.product.form);
    EXPECT_EQ(config.dynamic, problem.dynamic);
    EXPECT_EQ(config.load, OperandLoad::kTma);
    EXPECT_TRUE(config.swapped);
    EXPECT_EQ(config.cluster_size(), config.cluster_depth);
    // Whole turns, of rows that a warp has as vectors of as many lanes as divide it.
    EXPECT_EQ(config.cast_turns() * config.cast_rows(), config.tile_columns);
    EXPECT_EQ(config.cast_rows() % problem.dynamic.rows_at_once(), 0);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_EQ(kernel.threads, 384);
    EXPECT_GT(kernel.blocks, 0);
    EXPECT_EQ(kernel.blocks % config.cluster_size(), 0);
    // All registers that the block starts with, and no more.
    EXPECT_LE(config.producer_registers() + config.second_producer_registers() +
                  config.consumer_registers(),
              3 * config.registers_at_start());
    EXPECT_LE(kernel.shared_bytes,
              config::shared_memory_of_block(config.blocks_per_multiprocessor));
    EXPECT_GE(config.stages, config::kCastWarps);
    const std::vector<GemmCandidate> candidates = gemm_candidates(problem, kHopper);
    EXPECT_NE(std::ranges::find(candidates, config, &GemmCandidate::config), candidates.end());
  }
}

std::set<std::string> names_of(const GemmProblem& problem) {
  std::set<std::string> names;
  for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  return names;
}

// The tuning API promises that they are the same whatever the arguments, and gemm()'s too.
TEST(DynamicGemmPlanTest, CandidatesAreThoseOfAllProblemsAndOfTheProductAlone) {
  test::Random random;
  const std::set<std::string> names =
      names_of({.product = {.m = 1, .n = 1, .k = 1}, .dynamic = {.exists = true}});
  EXPECT_THAT(names,
              testing::IsSupersetOf({"64x8.swapped.w1.c1x1x1.b3", "64x16.swapped.w1.c1x1x2.b2",
                                     "64x32.swapped.w1.c1x1x3.b1.alternating",
                                     "64x48.swapped.w1.c1x1x1.b2.alternating"}));
  for (int i = 0; i < 200; ++i) {
    GemmProblem problem = random_dynamic_problem(random);
    EXPECT_EQ(names_of(problem), names) << describe(problem);
    problem.dynamic = {};
    EXPECT_THAT(names_of(problem), testing::IsSupersetOf(names));
  }
}

TEST(DynamicGemmPlanTest, CandidatesCanBeAskedFor) {
  test::Random random;
  const GemmProblem problem = random_dynamic_problem(random);
  std::set<std::string> kernels;
  for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
    const GemmPlan plan = plan_gemm(problem, kHopper, name);
    EXPECT_EQ(plan.config, config) << name;
    EXPECT_TRUE(kernels.insert(plan.kernels.front().kernel).second) << name;
  }
}

// Rows that are not there are not cast.
TEST(DynamicGemmPlanTest, TilesAreAsWideAsThereAreRows) {
  const auto columns = [](std::int64_t m) {
    return plan_gemm({.product = {.m = m, .n = 7168, .k = 7168}, .dynamic = {.exists = true}},
                     kHopper)
        .config.tile_columns;
  };
  EXPECT_EQ(columns(1), 8);
  EXPECT_EQ(columns(8), 8);
  EXPECT_EQ(columns(16), 16);
}

// What goes together: a valid configuration, spoiled in one place.
TEST(DynamicGemmPlanTest, SaysWhyNoKernelCanBeBuilt) {
  const Sm90GemmConfig valid =
      plan_gemm({.product = {.m = 16, .n = 4096, .k = 4096}, .dynamic = {.exists = true}}, kHopper,
                "64x16.swapped.w1.c1x1x1.b2")
          .config;
  const auto reason = [&](auto&& spoil) {
    Sm90GemmConfig config = valid;
    spoil(config);
    const char* found = config.invalid_reason();
    return std::string(found == nullptr ? "" : found);
  };
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.gated.exists = true; }), HasSubstr("gated"));
  EXPECT_THAT(reason([](auto& c) { c.dynamic.type = DType::kE4M3; }), HasSubstr("float32"));
  EXPECT_THAT(reason([](auto& c) { c.dynamic.type = DType::kInt32; }), HasSubstr("float32"));
  EXPECT_THAT(reason([](auto& c) { c.form.a.scales = Granularity::kTensor; }), HasSubstr("1x128"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = false; }), HasSubstr("columns"));
  EXPECT_THAT(reason([](auto& c) { c.cluster_columns = 2; }), HasSubstr("for itself"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  EXPECT_THAT(reason([](auto& c) { c.blocks_per_multiprocessor = 4; }), HasSubstr("registers"));
  EXPECT_THAT(reason([](auto& c) { c.stages = 3; }), HasSubstr("ring"));
}

}  // namespace
}  // namespace octofold::plan
