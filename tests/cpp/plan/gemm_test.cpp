// The GEMM planner over thousands of problems, and its candidates.
#include "plan/gemm.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "octofold/error.h"

#include "support/gemm_problems.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using test::random_problem;

TEST(GemmPlanTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < 20000; ++i) {
    const GemmProblem problem = random_problem(random);
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const Sm90GemmConfig& config = plan.config;
    SCOPED_TRACE(describe(problem) + ": " + describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.form, problem.product.form);
    // What TMA cannot address it is not given.
    EXPECT_EQ(config.load == OperandLoad::kTma, problem.operands_fit_tma);
    EXPECT_TRUE(problem.output_fits_tma || config.store == OutputStore::kDirect);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_GT(kernel.blocks, 0);
    EXPECT_EQ(kernel.blocks % config.cluster_size(), 0);
    if (config.cluster_depth == 1) {
      EXPECT_LE(kernel.blocks, kHopper.multiprocessors * config.blocks_per_multiprocessor);
    } else {  // these do not stay for a second tile
      EXPECT_EQ(kernel.blocks, test::tiles_of(config, problem).count() * config.cluster_size());
    }
    EXPECT_LE((kernel.shared_bytes + 1024) * config.blocks_per_multiprocessor, 228 * 1024);
    EXPECT_LE(kernel.shared_bytes, kHopper.shared_memory_per_block);
  }
}

TEST(GemmPlanTest, APlanIsOneOfTheCandidates) {
  test::Random random;
  for (int i = 0; i < 2000; ++i) {
    const GemmProblem problem = random_problem(random);
    const std::vector<GemmCandidate> candidates = gemm_candidates(problem, kHopper);
    const Sm90GemmConfig config = plan_gemm(problem, kHopper).config;
    EXPECT_NE(std::ranges::find(candidates, config, &GemmCandidate::config), candidates.end());
  }
}

TEST(GemmPlanTest, CandidatesHaveNamesOfTheirOwnAndCanBeAskedFor) {
  test::Random random;
  for (int i = 0; i < 200; ++i) {
    const GemmProblem problem = random_problem(random);
    std::set<std::string> names;
    std::set<std::string> kernels;
    for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
      EXPECT_TRUE(names.insert(name).second) << name;
      const GemmPlan plan = plan_gemm(problem, kHopper, name);
      EXPECT_EQ(plan.config, config) << name;
      EXPECT_TRUE(kernels.insert(plan.kernels.front().kernel).second) << name;
    }
    EXPECT_FALSE(names.empty());
  }
}

TEST(GemmPlanTest, NamesOfCandidatesDoNotDependOnHowThreadsLoad) {
  const auto names = [](bool words) {
    std::vector<std::string> found;
    const GemmProblem problem{.operands_fit_tma = false, .operands_fit_words = words};
    for (const GemmCandidate& candidate : gemm_candidates(problem, kHopper)) {
      found.push_back(candidate.name);
    }
    return found;
  };
  EXPECT_EQ(names(true), names(false));
}

TEST(GemmPlanTest, AnUnknownCandidateIsToldWhichThereAre) {
  try {
    plan_gemm({.product = {.m = 16, .n = 16, .k = 16}}, kHopper, "1x1");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("64x16.swapped.w1.c1x1x2.b3"),
                                             testing::HasSubstr("192x128.w3.c1x2x1.b1.ordered"),
                                             testing::HasSubstr("got 1x1")));
  }
}

// Sixteen pairs of granularities, each with kernels that TMA and that threads load for.
TEST(GemmPlanTest, EveryPairOfGranularitiesHasCandidates) {
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      for (const bool fits : {false, true}) {
        GemmProblem problem{.operands_fit_tma = fits};
        problem.product.form.a.scales = static_cast<Granularity>(a);
        problem.product.form.b.scales = static_cast<Granularity>(b);
        EXPECT_GE(gemm_candidates(problem, kHopper).size(), 5u) << describe(problem);
      }
    }
  }
}

// Only where everything goes by TMA, in FP32.
TEST(GemmPlanTest, CandidatesStoreOntoCWhereTmaCanBringIt) {
  const auto onto_c = [](auto&& spoil) {
    GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}};
    problem.product.form.out = DType::kFloat32;
    problem.product.form.c = Addend::kOutputType;
    spoil(problem);
    return std::ranges::any_of(gemm_candidates(problem, kHopper), [](const auto& candidate) {
      EXPECT_EQ(candidate.config.stores_onto_c(), candidate.name.ends_with(".onto_c"));
      return candidate.config.stores_onto_c();
    });
  };
  EXPECT_TRUE(onto_c([](auto&) {}));
  EXPECT_TRUE(onto_c([](auto& p) { p.c_is_out = true; }));
  EXPECT_FALSE(onto_c([](auto& p) { p.product.form.out = DType::kBFloat16; }));
  EXPECT_FALSE(onto_c([](auto& p) { p.product.form.c = Addend::kNone; }));
  EXPECT_FALSE(onto_c([](auto& p) { p.c_fits_tma = false; }));
  EXPECT_FALSE(onto_c([](auto& p) { p.output_fits_tma = false; }));
  EXPECT_FALSE(onto_c([](auto& p) { p.operands_fit_tma = false; }));
}

TEST(GemmPlanTest, SaysWhyNoKernelStoresOntoC) {
  GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}};
  problem.product.form.out = DType::kFloat32;
  problem.product.form.c = Addend::kOutputType;
  const auto reason = [&](auto&& spoil) {
    config::Sm90GemmConfig config =
        plan_gemm(problem, kHopper, "128x128.w2.c1x1x1.b1.early.onto_c").config;
    spoil(config);
    const char* found = config.invalid_reason();
    return std::string(found == nullptr ? "" : found);
  };
  using testing::HasSubstr;
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(reason([](auto& c) { c.form.out = DType::kFloat16; }), HasSubstr("FP32"));
  EXPECT_THAT(reason([](auto& c) { c.form.c = Addend::kNone; }), HasSubstr("FP32"));
  EXPECT_THAT(reason([](auto& c) { c.adds_in_place = true; }), HasSubstr("TMA adds"));
  EXPECT_THAT(reason([](auto& c) { c.swapped = true; }), HasSubstr("whole tiles"));
  EXPECT_THAT(reason([](auto& c) { c.cluster_depth = 2; }), HasSubstr("whole tiles"));
  EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("producer warp to store"));
  EXPECT_THAT(reason([](auto& c) { c.boxes = 1; }), HasSubstr("boxes"));
  EXPECT_THAT(reason([](auto& c) { c.boxes = 8; }), HasSubstr("shared memory"));
  EXPECT_THAT(reason([](auto& c) { c.store = OutputStore::kTma; }), HasSubstr("boxes"));
}

TEST(GemmPlanTest, FillsTheMultiprocessors) {
  const auto tiles = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    const GemmProblem problem{.product = {.m = m, .n = n, .k = k}};
    const Sm90GemmConfig config = plan_gemm(problem, kHopper).config;
    return test::tiles_of(config, problem).count() * config.cluster_size();
  };
  EXPECT_GE(tiles(1, 2112, 7168), 60);       // 33 tiles: K in slices
  EXPECT_LE(tiles(1024, 2112, 7168), 132);   // one round, where tiles of 128×128 would take two
  EXPECT_LE(tiles(4096, 7168, 16384), 924);  // large tiles where there is work for all: 7 rounds
}

TEST(GemmPlanTest, AskingForLessSharedMemoryShortensThePipeline) {
  Gpu small = kHopper;
  small.shared_memory_per_block = 120 * 1024;
  const GemmProblem problem{.product = {.m = 64, .n = 64, .k = 4096}};
  EXPECT_LE(plan_gemm(problem, small).kernels.front().shared_bytes, 120 * 1024);
  EXPECT_LT(plan_gemm(problem, small, "128x128.w2.c1x1x1.b1.early").config.stages,
            plan_gemm(problem, kHopper, "128x128.w2.c1x1x1.b1.early").config.stages);
}

TEST(GemmPlanTest, RefusesWhatKernelsCannotCount) {
  const auto refuses = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    try {
      plan_gemm({.product = {.m = m, .n = n, .k = k}}, kHopper);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUnsupported;
    }
    return false;
  };
  EXPECT_TRUE(refuses(1ll << 31, 16, 16));
  EXPECT_TRUE(refuses(16, 1ll << 40, 16));
  EXPECT_TRUE(refuses(16, 16, 1ll << 31));
  EXPECT_TRUE(refuses(1ll << 30, 1ll << 30, 16));
  EXPECT_FALSE(refuses(1ll << 30, 64, 16));
  EXPECT_TRUE(refuses(1ll << 21, 1ll << 18, 16));  // more blocks of 8×64 in four slices than 2^31
}

TEST(GemmPlanTest, NamesWhatAnOlderGpuIsAndWhatThereIsInstead) {
  try {
    plan_gemm({.product = {.m = 16, .n = 16, .k = 16}},
              {.compute_major = 8, .compute_minor = 6, .multiprocessors = 84});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("8.6"), testing::HasSubstr("CPU backend")));
  }
}

}  // namespace
}  // namespace octofold::plan
