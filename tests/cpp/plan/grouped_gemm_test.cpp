// Plans of products of groups.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octofold/error.h"

#include "plan/gemm.h"
#include "plan/gemm_cost.h"
#include "support/gemm_problems.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using config::Work;

constexpr Work kWorks[] = {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth};
constexpr Granularity kGranularities[] = {Granularity::kTensor, Granularity::kChannel,
                                          Granularity::kBlock1x128, Granularity::kBlock128x128};

// What the checks let through: each kind of work has its own limits.
GemmProblem random_grouped_problem(std::mt19937& random) {
  GemmProblem problem = test::random_problem(random);
  auto& [m, n, k, form] = problem.product;
  form.b_channel_scale = false;
  problem.work = test::pick(random, {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth});
  problem.groups = test::pick<std::int64_t>(random, {1, 2, 7, 8, 64, 256});
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  if (problem.work == Work::kGroupedRows) {
    problem.expected = (m + problem.groups - 1) / problem.groups;
  } else if (problem.work == Work::kMaskedRows) {
    m = m / problem.groups + 1;
    problem.expected = up_to(m);
    form.c = Addend::kNone;
  } else {
    m = m / problem.groups + 1;
    k = (k / 128 + problem.groups) * 128;
    problem.expected = up_to(k);
    form.bias = Addend::kNone;
    problem.operands_fit_tma = true;
  }
  problem.c_is_out =
      form.out == DType::kFloat32 && form.c == Addend::kOutputType && random() % 2 == 0;
  if (problem.work != Work::kGroupedRows || random() % 4 != 0) return problem;
  form = {.a = {form.a.type, Granularity::kBlock1x128},
          .b = {form.b.type, Granularity::kBlock128x128},
          .out = form.a.type};
  n = (n + 127) / 128 * 128;
  problem.gated = {.exists = true, .activation = Activation::kSwiGlu};
  problem.operands_fit_tma = problem.output_fits_tma = true;
  problem.c_is_out = false;
  return problem;
}

TEST(GroupedGemmPlanTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < 5000; ++i) {
    const GemmProblem problem = random_grouped_problem(random);
    const GemmPlan plan = plan_gemm(problem, kHopper);
    const Sm90GemmConfig& config = plan.config;
    SCOPED_TRACE(describe(problem) + ": " + describe(config));
    ASSERT_EQ(config.invalid_reason(), nullptr) << config.invalid_reason();
    EXPECT_EQ(config.work, problem.work);
    EXPECT_EQ(config.form, problem.product.form);
    EXPECT_EQ(config.gated, problem.gated);
    EXPECT_EQ(config.cluster_depth, 1);
    EXPECT_EQ(config.load == OperandLoad::kTma, problem.operands_fit_tma);
    EXPECT_EQ(config.adds_in_place,
              problem.c_is_out && config.store != OutputStore::kDirect && !config.stores_onto_c());
    EXPECT_TRUE(problem.c_fits_tma || !config.stores_onto_c());
    EXPECT_TRUE(problem.output_fits_tma || config.store == OutputStore::kDirect);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_GT(kernel.blocks, 0);
    EXPECT_EQ(kernel.blocks % config.cluster_size(), 0);
    EXPECT_LE(kernel.blocks, clusters_at_once(config, kHopper) * config.cluster_size());
    EXPECT_LE(kernel.blocks, kHopper.multiprocessors * config.blocks_per_multiprocessor);
    EXPECT_LE(kernel.shared_bytes,
              config::shared_memory_of_block(config.blocks_per_multiprocessor));
    const GemmPlan again = plan_gemm(problem, kHopper);
    EXPECT_EQ(again.config, config);
    EXPECT_EQ(again.kernels.front().blocks, kernel.blocks);
    const std::vector<GemmCandidate> candidates = gemm_candidates(problem, kHopper);
    EXPECT_NE(std::ranges::find(candidates, config, &GemmCandidate::config), candidates.end());
  }
}

// A block for each tile that there can be, whatever the groups' sizes, and no more.
TEST(GroupedGemmPlanTest, BlocksAreThoseThatCanFindATile) {
  const auto blocks = [](Work work, std::int64_t m, std::int64_t groups) {
    const GemmProblem problem{
        .product = {.m = m, .n = 128, .k = 1024}, .work = work, .groups = groups, .expected = 1};
    return plan_gemm(problem, kHopper, "128x128.w2.c1x1x1.b1.early").kernels.front().blocks;
  };
  EXPECT_EQ(blocks(Work::kGroupedRows, 3, 100), 3);  // a row to each of three
  EXPECT_EQ(blocks(Work::kGroupedRows, 1000, 8), 7 + 8);
  EXPECT_EQ(blocks(Work::kGroupedRows, 1 << 17, 8), kHopper.multiprocessors);
  EXPECT_EQ(blocks(Work::kMaskedRows, 129, 8), 2 * 8);  // all rows that there is room for
  EXPECT_EQ(blocks(Work::kGroupedDepth, 129, 8), 2 * 8);
  EXPECT_EQ(blocks(Work::kGroupedDepth, 129, 100), kHopper.multiprocessors);
}

TEST(GroupedGemmPlanTest, RefusesSizesThatTheKernelsCountersCannotHold) {
  const auto refuses = [](Work work, std::int64_t groups, std::int64_t m, std::int64_t n,
                          std::int64_t k, bool gated = false) {
    GemmProblem problem{.product = {.m = m, .n = n, .k = k}, .work = work, .groups = groups};
    if (gated) {
      problem.gated.exists = true;
      problem.product.form.out = DType::kE4M3;
    }
    try {
      plan_gemm(problem, kHopper);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(operation_of(problem)) + ": "));
      return true;
    }
    return false;
  };
  for (const Work work : kWorks) {
    SCOPED_TRACE(word(work));
    EXPECT_TRUE(refuses(work, 2, 1ll << 31, 64, 128));
    EXPECT_TRUE(refuses(work, 2, 64, 1ll << 31, 128));
    EXPECT_TRUE(refuses(work, 2, 64, 64, 1ll << 31));
    EXPECT_TRUE(refuses(work, 1ll << 31, 64, 64, 128));
    EXPECT_TRUE(refuses(work, 1ll << 11, 16, 1ll << 20, 128));  // rows of all groups' b
    EXPECT_FALSE(refuses(work, 1ll << 10, 16, 1ll << 20, 128));
    // Twice as many tiles of rows, where each group has room for all.
    EXPECT_FALSE(refuses(work, 1, 1ll << 20, 1ll << 17, 128));
    EXPECT_EQ(refuses(work, 2, 1ll << 20, 1ll << 17, 128), work != Work::kGroupedRows);
  }
  for (const Work work : {Work::kMaskedRows, Work::kGroupedDepth}) {  // rows of D
    EXPECT_TRUE(refuses(work, 1ll << 11, 1ll << 20, 64, 128));
    EXPECT_FALSE(refuses(work, 1ll << 10, 1ll << 20, 64, 128));
  }
  EXPECT_TRUE(refuses(Work::kGroupedRows, 1ll << 10, 16, 1ll << 20, 128, true));  // gates and ups
  EXPECT_FALSE(refuses(Work::kGroupedRows, 1ll << 9, 16, 1ll << 20, 128, true));
}

TEST(GroupedGemmPlanTest, GroupsThatAreExpectedToBeEmptyHaveAPlan) {
  const auto plan = [](std::int64_t expected) {
    return plan_gemm({.product = {.m = 512, .n = 512, .k = 512},
                      .work = Work::kMaskedRows,
                      .groups = 8,
                      .expected = expected},
                     kHopper);
  };
  EXPECT_EQ(plan(0).config, plan(1).config);
}

TEST(GroupedGemmPlanTest, ThereAreCandidatesForAllForms) {
  for (const Work work : kWorks) {
    for (const Granularity a : kGranularities) {
      for (const Granularity b : kGranularities) {
        for (const bool output_fits_tma : {true, false}) {
          for (const auto& [tma, words] : {std::pair{true, true}, {false, true}, {false, false}}) {
            GemmProblem problem{.operands_fit_tma = tma,
                                .operands_fit_words = words,
                                .output_fits_tma = output_fits_tma,
                                .work = work};
            problem.product.form.a.scales = a;
            problem.product.form.b.scales = b;
            SCOPED_TRACE(describe(problem));
            const std::vector<GemmCandidate> candidates = gemm_candidates(problem, kHopper);
            // Groups of K begin where TMA can address them.
            EXPECT_EQ(candidates.empty(), work == Work::kGroupedDepth && !tma);
            const OperandLoad load = tma     ? OperandLoad::kTma
                                     : words ? OperandLoad::kWords
                                             : OperandLoad::kThreads;
            for (const auto& [name, config] : candidates) {
              EXPECT_EQ(config.invalid_reason(), nullptr) << name;
              EXPECT_EQ(config.load, load) << name;
              EXPECT_EQ(config.cluster_depth, 1) << name;
              EXPECT_TRUE(output_fits_tma || config.store == OutputStore::kDirect) << name;
            }
          }
        }
      }
    }
  }
}

TEST(GroupedGemmPlanTest, CandidatesHaveNamesOfTheirOwnAndCanBeAskedFor) {
  test::Random random;
  const GemmProblem problem = random_grouped_problem(random);
  std::set<std::string> names, kernels;
  for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
    EXPECT_TRUE(names.insert(name).second) << name;
    const GemmPlan plan = plan_gemm(problem, kHopper, name);
    EXPECT_EQ(plan.config, config) << name;
    EXPECT_TRUE(kernels.insert(plan.kernels.front().kernel).second) << name;
  }
  EXPECT_FALSE(names.empty());
}

// A tile of a group begins anywhere in a block of 128x128 of A: its rows bring scales of their own.
TEST(GroupedGemmPlanTest, RowsInGroupsEachBringTheirBlocksScale) {
  for (const Work work : kWorks) {
    GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}, .work = work, .expected = 512};
    problem.product.form.a.scales = Granularity::kBlock128x128;
    const Granularity expected =
        work == Work::kGroupedDepth ? Granularity::kBlock128x128 : Granularity::kBlock1x128;
    for (const auto& [name, config] : gemm_candidates(problem, kHopper)) {
      EXPECT_EQ(config.swapped ? config.column_scales() : config.row_scales(), expected) << name;
    }
  }
}

// Few stages do not hide what L2 takes to add; many do, from larger tiles.
TEST(GroupedGemmPlanTest, WhereKIsShortCIsBroughtToSharedMemory) {
  const auto plan = [](std::int64_t each, bool c_fits_tma) {
    GemmProblem problem{.product = {.m = 4096, .n = 7168, .k = 32 * each},
                        .c_is_out = true,
                        .c_fits_tma = c_fits_tma,
                        .work = Work::kGroupedDepth,
                        .groups = 32,
                        .expected = each};
    problem.product.form = {.a = {.scales = Granularity::kBlock1x128},
                            .b = {.scales = Granularity::kBlock1x128},
                            .out = DType::kFloat32,
                            .c = Addend::kOutputType};
    return plan_gemm(problem, kHopper).config;
  };
  const Sm90GemmConfig brought = plan(256, true);
  EXPECT_TRUE(brought.stores_onto_c());
  EXPECT_FALSE(brought.adds_in_place || brought.reads_c());
  EXPECT_GE(brought.boxes, brought.boxes_of_tile());
  for (const Sm90GemmConfig& added : {plan(256, false), plan(8192, true)}) {
    EXPECT_FALSE(added.stores_onto_c());
    EXPECT_TRUE(added.adds_in_place);
  }
}

// Tiles of 192x128 lose most where groups are short and one side has channel scales; with scales of
// tensors they stay the best.
TEST(GroupedGemmPlanTest, ShortGroupsOfKWithChannelScalesTakeOtherTiles) {
  const auto area = [](std::int64_t each, Granularity a, Granularity b) {
    GemmProblem problem{.product = {.m = 4096, .n = 7168, .k = 32 * each},
                        .work = Work::kGroupedDepth,
                        .groups = 32,
                        .expected = each};
    problem.product.form = {.a = {.scales = a}, .b = {.scales = b}};
    const Sm90GemmConfig config = plan_gemm(problem, kHopper).config;
    return config.tile_rows * config.tile_columns;
  };
  EXPECT_NE(area(512, Granularity::kBlock1x128, Granularity::kChannel), 192 * 128);
  EXPECT_EQ(area(512, Granularity::kTensor, Granularity::kTensor), 192 * 128);
}

// A valid configuration, spoiled in one place.
TEST(GroupedGemmPlanTest, SaysWhyNoKernelCanBeBuilt) {
  using testing::HasSubstr;
  for (const Work work : kWorks) {
    const GemmProblem problem{
        .product = {.m = 512, .n = 512, .k = 512}, .work = work, .expected = 512};
    const Sm90GemmConfig valid = plan_gemm(problem, kHopper).config;
    const auto reason = [&](auto&& spoil) {
      Sm90GemmConfig config = valid;
      spoil(config);
      const char* found = config.invalid_reason();
      return std::string(found == nullptr ? "" : found);
    };
    EXPECT_EQ(reason([](auto&) {}), "");
    EXPECT_THAT(reason([](auto& c) { c.cluster_depth = 2; }), HasSubstr("split-K"));
    EXPECT_THAT(reason([](auto& c) { c.form.b_channel_scale = true; }), HasSubstr("two-level"));
    if (work != Work::kGroupedDepth) continue;
    EXPECT_THAT(reason([](auto& c) { c.form.bias = Addend::kFloat32; }), HasSubstr("nor a bias"));
    EXPECT_THAT(reason([](auto& c) { c.load = OperandLoad::kWords; }), HasSubstr("TMA"));
  }
}

}  // namespace
}  // namespace octofold::plan
