// Plans of products of groups.

#include "plan/product.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::OperandLoad;
using config::Sm90GemmConfig;
using config::Work;

constexpr Work kWorks[] = {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth};
using test::kGranularities;

// A block for each tile that there can be, whatever the groups' sizes, and no more.
TEST(GroupedPlanTest, BlocksAreThoseThatCanFindATile) {
  const auto blocks = [](Work work, std::int64_t m, std::int64_t groups) {
    return test::sm90_plan(test::grouped_problem(work, m, 128, 1024, groups, 1),
                           "128x128.w2.c1x1x1.b1.early")
        .kernels.front()
        .blocks;
  };
  EXPECT_EQ(blocks(Work::kGroupedRows, 3, 100), 3);  // a row to each of three
  EXPECT_EQ(blocks(Work::kGroupedRows, 1000, 8), 7 + 8);
  EXPECT_EQ(blocks(Work::kGroupedRows, 1 << 17, 8), kHopper.multiprocessors);
  EXPECT_EQ(blocks(Work::kMaskedRows, 129, 8), 2 * 8);  // all rows that there is room for
  EXPECT_EQ(blocks(Work::kGroupedDepth, 129, 8), 2 * 8);
  EXPECT_EQ(blocks(Work::kGroupedDepth, 129, 100), kHopper.multiprocessors);
}

TEST(GroupedPlanTest, RefusesSizesThatTheKernelsCountersCannotHold) {
  const auto refuses = [](Work work, std::int64_t groups, std::int64_t m, std::int64_t n,
                          std::int64_t k, bool gated = false) {
    GemmProblem problem{.product = {.m = m, .n = n, .k = k}, .work = work, .groups = groups};
    if (gated) {
      problem.gated.exists = true;
      problem.product.form.out = DType::kE4M3;
    }
    const std::string error =
        test::error_of([&] { test::sm90_plan(problem); }, ErrorCode::kUnsupported);
    return error.starts_with(std::string(operation_of(problem)) + ": ");
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
  for (const auto& [m, n, k] : {std::tuple{1ll << 31, 16ll, 16ll},
                                {16, 1ll << 40, 16},
                                {16, 16, 1ll << 31},
                                {1ll << 30, 1ll << 30, 16},
                                {1ll << 21, 1ll << 18, 16}}) {  // blocks of 8×64 in four slices
    EXPECT_TRUE(refuses(Work::kDense, 1, m, n, k));
  }
  EXPECT_FALSE(refuses(Work::kDense, 1, 1ll << 30, 64, 16));
  EXPECT_TRUE(refuses(Work::kGroupedRows, 1ll << 10, 16, 1ll << 20, 128, true));  // gates and ups
  EXPECT_FALSE(refuses(Work::kGroupedRows, 1ll << 9, 16, 1ll << 20, 128, true));
}

TEST(GroupedPlanTest, GroupsThatAreExpectedToBeEmptyHaveAPlan) {
  const auto plan = [](std::int64_t expected) {
    return test::sm90_plan({.product = {.m = 512, .n = 512, .k = 512},
                            .work = Work::kMaskedRows,
                            .groups = 8,
                            .expected = expected});
  };
  EXPECT_EQ(plan(0).config, plan(1).config);
}

TEST(GroupedPlanTest, ThereAreCandidatesForAllForms) {
  for (const Work work :
       {Work::kDense, Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth}) {
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
            const std::vector<test::Sm90Candidate> candidates = test::sm90_candidates(problem);
            // Groups of K begin where TMA can address them.
            if (work == Work::kGroupedDepth && !tma) {
              EXPECT_TRUE(candidates.empty());
            } else {
              EXPECT_GE(candidates.size(), 5u);
            }
            const OperandLoad load = tma     ? OperandLoad::kTma
                                     : words ? OperandLoad::kWords
                                             : OperandLoad::kThreads;
            for (const auto& [name, config] : candidates) {
              EXPECT_EQ(config.invalid_reason(), nullptr) << name;
              EXPECT_EQ(config.load, load) << name;
              EXPECT_TRUE(config.split_k == 1 || work == Work::kDense) << name;
              EXPECT_TRUE(output_fits_tma || !config::by_tma(config.store)) << name;
            }
          }
        }
      }
    }
  }
}

// A tile of a group begins anywhere in a block of 128x128 of A: its rows bring scales of their own.
TEST(GroupedPlanTest, RowsInGroupsEachBringTheirBlocksScale) {
  for (const Work work : kWorks) {
    GemmProblem problem{.product = {.m = 512, .n = 512, .k = 512}, .work = work, .expected = 512};
    problem.product.form.a.scales = Granularity::kBlock128x128;
    const Granularity expected =
        work == Work::kGroupedDepth ? Granularity::kBlock128x128 : Granularity::kBlock1x128;
    for (const auto& [name, config] : test::sm90_candidates(problem)) {
      EXPECT_EQ(config.swapped ? config.column_scales() : config.row_scales(), expected) << name;
    }
  }
}

// Few stages do not hide what L2 takes to add; many do, from larger tiles.
TEST(GroupedPlanTest, WhereKIsShortCIsBroughtToSharedMemory) {
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
    return test::sm90_plan(problem).config;
  };
  const Sm90GemmConfig brought = plan(256, true);
  EXPECT_TRUE(brought.prefetches_c());
  EXPECT_FALSE(brought.adds_in_place || brought.reads_c());
  EXPECT_GE(brought.boxes, brought.boxes_of_tile());
  for (const Sm90GemmConfig& added : {plan(256, false), plan(8192, true)}) {
    EXPECT_FALSE(added.prefetches_c());
    EXPECT_TRUE(added.adds_in_place);
  }
}

// Tiles of 192x128 lose most where groups are short and one side has channel scales; with scales of
// tensors they stay the best.
TEST(GroupedPlanTest, ShortGroupsOfKWithChannelScalesTakeOtherTiles) {
  const auto area = [](std::int64_t each, Granularity a, Granularity b) {
    GemmProblem problem{.product = {.m = 4096, .n = 7168, .k = 32 * each},
                        .work = Work::kGroupedDepth,
                        .groups = 32,
                        .expected = each};
    problem.product.form = {.a = {.scales = a}, .b = {.scales = b}};
    const Sm90GemmConfig config = test::sm90_plan(problem).config;
    return config.tile_rows * config.tile_columns;
  };
  EXPECT_NE(area(512, Granularity::kBlock1x128, Granularity::kChannel), 192 * 128);
  EXPECT_EQ(area(512, Granularity::kTensor, Granularity::kTensor), 192 * 128);
}

}  // namespace
}  // namespace octofold::plan
