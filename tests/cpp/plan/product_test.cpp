// Hopper's planner over thousands of problems of each kind, and its candidates.

#include "plan/sm90/cost.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using test::random_problem;

// Beside what holds for all kinds.
void expect_plain(const GemmProblem& problem, const Sm90GemmConfig& config, const KernelPlan&) {
  EXPECT_EQ(config.load == OperandLoad::kTma, problem.operands_fit_tma);
}

void expect_grouped(const GemmProblem& problem, const Sm90GemmConfig& config,
                    const KernelPlan& kernel) {
  expect_plain(problem, config, kernel);
  EXPECT_EQ(config.split_k, 1);
  EXPECT_EQ(config.adds_in_place,
            problem.c_is_out && config::by_tma(config.store) && !config.prefetches_c());
  EXPECT_TRUE(problem.c_fits_tma || !config.prefetches_c());
  EXPECT_LE(kernel.blocks, sm90::clusters_at_once(config.cluster_size(),
                                                  config.blocks_per_multiprocessor, kHopper) *
                               config.cluster_size());
}

void expect_arriving(const GemmProblem& problem, const Sm90GemmConfig& config,
                     const KernelPlan& kernel) {
  expect_plain(problem, config, kernel);
  EXPECT_FALSE(config.swapped);
  EXPECT_EQ(config.split_k, 1);
  EXPECT_LE(kernel.blocks, sm90::clusters_at_once(config.cluster_size(),
                                                  config.blocks_per_multiprocessor, kHopper) *
                               config.cluster_size());
  EXPECT_EQ(operation_of(problem), "gemm");
}

void expect_gated(const GemmProblem&, const Sm90GemmConfig& config, const KernelPlan& kernel) {
  EXPECT_EQ(config.load, OperandLoad::kTma);
  EXPECT_EQ(config.store, OutputStore::kTma);
  EXPECT_LE(kernel.blocks, kHopper.multiprocessors);
  // Gates and ups in each stage, and as many stages as there is memory for.
  const config::Sm90SmemLayout layout(config);
  EXPECT_EQ(layout.columns_bytes, 2 * 128 * 128);
  EXPECT_GE(config.stages, 4);
  const int stage = layout.rows_bytes + layout.columns_bytes + layout.row_scales_bytes +
                    layout.column_scales_bytes;
  EXPECT_GT(kernel.shared_bytes + stage + 16, kHopper.shared_memory_per_block);
}

void expect_cast(const GemmProblem& problem, const Sm90GemmConfig& config,
                 const KernelPlan& kernel) {
  EXPECT_EQ(config.load, OperandLoad::kTma);
  EXPECT_TRUE(config.swapped);
  EXPECT_EQ(config.cluster_size(), config.split_k);
  // Whole turns, of rows that a warp has as vectors of as many lanes as divide it.
  EXPECT_EQ(config.cast_turns() * config.cast_rows(), config.tile_columns);
  EXPECT_EQ(config.cast_rows() % problem.dynamic.rows_at_once(), 0);
  EXPECT_EQ(kernel.threads, 384);
  // All registers that the block starts with, and no more.
  EXPECT_LE(config.producer_registers() + config.second_producer_registers() +
                config.consumer_registers(),
            3 * config.registers_at_start());
  EXPECT_GE(config.stages, config::kCastWarps);
}

struct Kind {
  const char* name;
  GemmProblem (*make)(std::mt19937& random);
  void (*expect)(const GemmProblem&, const Sm90GemmConfig&, const KernelPlan&);
  int problems;
};
const Kind kKinds[] = {{"Dense", test::random_problem, expect_plain, 20000},
                       {"Arriving", test::random_arriving_problem, expect_arriving, 5000},
                       {"Grouped", test::random_grouped_problem, expect_grouped, 5000},
                       {"Gated", test::random_gated_problem, expect_gated, 5000},
                       {"Cast", test::random_cast_problem, expect_cast, 5000}};

class EveryKindTest : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindTest, testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryKindTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < GetParam().problems; ++i) {
    const GemmProblem problem = GetParam().make(random);
    const auto plan = test::sm90_plan(problem);
    const Sm90GemmConfig& config = plan.config;
    SCOPED_TRACE(describe(problem) + ": " + describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.form, problem.product.form);
    EXPECT_EQ(config.gated, problem.gated);
    EXPECT_EQ(config.dynamic, problem.dynamic);
    EXPECT_EQ(config.work, problem.work);
    // TMA is not given what it cannot address.
    EXPECT_TRUE(problem.output_fits_tma || !config::by_tma(config.store));
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_GT(kernel.blocks, 0);
    EXPECT_EQ(kernel.blocks % config.cluster_size(), 0);
    if (config.split_k == 1) {
      EXPECT_LE(kernel.blocks, kHopper.multiprocessors * config.blocks_per_multiprocessor);
    } else {  // these do not stay for a second tile
      EXPECT_EQ(kernel.blocks, test::tiles_of(config, problem).count() * config.cluster_size());
    }
    EXPECT_LE(kernel.shared_bytes,
              config::shared_memory_of_block(config.blocks_per_multiprocessor));
    EXPECT_LE(kernel.shared_bytes, kHopper.shared_memory_per_block);
    GetParam().expect(problem, config, kernel);
  }
}

TEST_P(EveryKindTest, APlanIsOneOfTheCandidates) {
  test::Random random;
  for (int i = 0; i < 1000; ++i) {
    const GemmProblem problem = GetParam().make(random);
    const auto candidates = test::sm90_candidates(problem);
    const auto plan = test::sm90_plan(problem);
    EXPECT_NE(std::ranges::find(candidates, plan.config, &test::Sm90Candidate::config),
              candidates.end());
    const auto again = test::sm90_plan(problem);
    EXPECT_EQ(again.config, plan.config);
    EXPECT_EQ(again.kernels.front().blocks, plan.kernels.front().blocks);
  }
}

TEST_P(EveryKindTest, CandidatesHaveNamesOfTheirOwnAndCanBeAskedFor) {
  test::Random random;
  for (int i = 0; i < 100; ++i) {
    const GemmProblem problem = GetParam().make(random);
    std::set<std::string> names, kernels;
    for (const auto& [name, config] : test::sm90_candidates(problem)) {
      EXPECT_TRUE(names.insert(name).second) << name;
      const auto plan = test::sm90_plan(problem, name);
      EXPECT_EQ(plan.config, config) << name;
      EXPECT_TRUE(kernels.insert(plan.kernels.front().kernel).second) << name;
    }
    EXPECT_FALSE(names.empty());
  }
}

TEST(ProductPlanTest, NamesOfCandidatesDoNotDependOnHowThreadsLoad) {
  const auto names = [](bool words) {
    std::vector<std::string> found;
    const GemmProblem problem{.operands_fit_tma = false, .operands_fit_words = words};
    for (const test::Sm90Candidate& candidate : test::sm90_candidates(problem)) {
      found.push_back(candidate.name);
    }
    return found;
  };
  EXPECT_EQ(names(true), names(false));
}

// If a split of K is the fastest, another tiling is taken; no named candidate splits K either.
TEST(ProductPlanTest, BatchInvariantProductsLeaveKWhole) {
  int split = 0;
  for (const std::int64_t m : {1, 8, 16, 32, 64, 100, 128, 256, 512, 777, 1024, 4096}) {
    for (const auto& [n, k] : {std::pair{4096, 7168}, {2112, 7168}, {4096, 4096}, {576, 7168}}) {
      GemmProblem problem{.product = {.m = m, .n = n, .k = k}};
      split += test::sm90_plan(problem).config.split_k > 1;
      problem.batch_invariant = true;
      EXPECT_EQ(test::sm90_plan(problem).config.split_k, 1) << describe(problem);
      for (const test::Sm90Candidate& candidate : test::sm90_candidates(problem)) {
        EXPECT_EQ(candidate.config.split_k, 1) << candidate.name;
      }
    }
  }
  EXPECT_GT(split, 10);
}

// Only where everything goes by TMA, in FP32.
TEST(ProductPlanTest, CandidatesStoreOntoCWhereTmaCanBringIt) {
  const auto onto_c = [](auto&& spoil) {
    GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}};
    problem.product.form.out = DType::kFloat32;
    problem.product.form.c = Addend::kOutputType;
    spoil(problem);
    return std::ranges::any_of(test::sm90_candidates(problem), [](const auto& candidate) {
      EXPECT_EQ(candidate.config.prefetches_c(), candidate.name.ends_with(".onto_c"));
      return candidate.config.prefetches_c();
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

TEST(ProductPlanTest, FillsTheMultiprocessors) {
  const auto tiles = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    const GemmProblem problem{.product = {.m = m, .n = n, .k = k}};
    const Sm90GemmConfig config = test::sm90_plan(problem).config;
    return test::tiles_of(config, problem).count() * config.cluster_size();
  };
  EXPECT_GE(tiles(1, 2112, 7168), 60);       // 33 tiles: K in slices
  EXPECT_LE(tiles(1024, 2112, 7168), 132);   // one round, where tiles of 128×128 would take two
  EXPECT_LE(tiles(4096, 7168, 16384), 924);  // large tiles where there is work for all: 7 rounds
}

TEST(ProductPlanTest, AskingForLessSharedMemoryShortensThePipeline) {
  Gpu small = kHopper;
  small.shared_memory_per_block = 120 * 1024;
  const GemmProblem problem{.product = {.m = 64, .n = 64, .k = 4096}};
  EXPECT_LE(plan_product(problem, small).kernels.front().shared_bytes, 120 * 1024);
  EXPECT_LT(
      test::plan_as<Sm90GemmConfig>(problem, small, "128x128.w2.c1x1x1.b1.early").config.stages,
      test::sm90_plan(problem, "128x128.w2.c1x1x1.b1.early").config.stages);
}

// These cluster sizes were the best of those measured, or next to it (docs/notes/products.md).
TEST(GatedPlanTest, ClustersShareBWhereThereAreManyRows) {
  const auto cluster_rows = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return test::sm90_plan(test::gated_problem(m, n, k)).config.cluster_rows;
  };
  EXPECT_EQ(cluster_rows(16384, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(8192, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(4096, 14336, 8192), 2);
  EXPECT_EQ(cluster_rows(4096, 2048, 7168), 2);
  EXPECT_EQ(cluster_rows(1024, 14336, 4096), 2);
  EXPECT_EQ(cluster_rows(512, 14336, 4096), 1);
  EXPECT_EQ(cluster_rows(64, 14336, 4096), 1);
}

TEST(GatedPlanTest, ItsTilingsAreNoOneElses) {
  for (const auto& [name, config] :
       test::sm90_candidates({.product = {.m = 4096, .n = 4096, .k = 4096}})) {
    EXPECT_FALSE(config.gated.exists) << name;
  }
  std::set<std::string> names;
  for (const auto& [name, config] : test::sm90_candidates(test::gated_problem(256, 256, 256))) {
    names.insert(name);
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("128x128.w2.c2x1x1.b1.early",
                                                   "128x128.w2.c1x1x1.b1.early"));
}

std::set<std::string> names_of(const GemmProblem& problem) {
  std::set<std::string> names;
  for (const auto& [name, config] : test::sm90_candidates(problem)) names.insert(name);
  return names;
}

// The tuning API promises that they are the same whatever the arguments, and gemm()'s too.
TEST(CastPlanTest, CandidatesAreThoseOfAllProblemsAndOfTheProductAlone) {
  test::Random random;
  const std::set<std::string> names = names_of(test::cast_problem(1, 1, 1));
  EXPECT_THAT(names,
              testing::IsSupersetOf({"64x8.swapped.w1.c1x1x1.b3", "64x16.swapped.w1.c1x1x2.b2",
                                     "64x32.swapped.w1.c1x1x3.b1.alternating",
                                     "64x48.swapped.w1.c1x1x1.b2.alternating"}));
  for (int i = 0; i < 200; ++i) {
    GemmProblem problem = test::random_cast_problem(random);
    EXPECT_EQ(names_of(problem), names) << describe(problem);
    problem.dynamic = {};
    EXPECT_THAT(names_of(problem), testing::IsSupersetOf(names));
  }
}

// Rows that are not there are not cast.
TEST(CastPlanTest, TilesAreAsWideAsThereAreRows) {
  const auto columns = [](std::int64_t m) {
    return test::sm90_plan(test::cast_problem(m, 7168, 7168)).config.tile_columns;
  };
  EXPECT_EQ(columns(1), 8);
  EXPECT_EQ(columns(8), 8);
  EXPECT_EQ(columns(16), 16);
}

}  // namespace
}  // namespace octofold::plan
