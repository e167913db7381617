// The kernels that a cast takes, one after another, in words.
#include "plan/cast.h"
#include "support/cast_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::CastSource;
using config::ColumnReductionConfig;
using config::RowCastConfig;
using config::ScaleStepConfig;
using config::TileCastConfig;
using config::WideRowCastConfig;
using test::casts::Cast;
using test::casts::kGathered;
using test::casts::kMultiplied;
using enum Granularity;

constexpr config::ColumnReductions kSums{.sums = true};

// Tiles that write the transpose alone, or steps that write its scales alone, are "of columns".
std::string words_of(const TileCastConfig& tiles) {
  const char* const phases[] = {"cast", "whole rows", "amax", "codes", "given"};
  std::string text = phases[static_cast<int>(tiles.phase)];
  if (!tiles.to_rows) text += " of columns";
  if (tiles.columns.any()) text += " reducing";
  if (tiles.grouped) text += " grouped";
  if (tiles.stacked) text += " stacked";
  if (tiles.amax_given) text += " by given amax";
  if (tiles.source.both_halves) text += " of halves";
  if (tiles.is_clustered()) text += core::format(" by {}", tiles.cluster_tiles);
  return text;
}
std::string words_of(const RowCastConfig& rows) {
  return core::format("{} threads a row{}", rows.threads_per_row, rows.reread ? ", twice" : "");
}
std::string words_of(const WideRowCastConfig& rows) {
  return core::format("{} blocks of {} KB a row", rows.blocks_per_row, rows.part_bytes / 1024);
}
std::string words_of(const ScaleStepConfig& step) {
  return std::string(word(step.step)) + (step.to_rows ? "" : " of columns") +
         (step.grouped ? " grouped" : "") + (step.gathered ? " gathered" : "") +
         (step.stacked ? " stacked" : "");
}
std::string words_of(const ColumnReductionConfig&) { return "columns"; }

std::string kernels_of(const CastProblem& problem, const Gpu& gpu = kHopper) {
  std::string text;
  for (const CastLaunch& launch : cast_launches(problem, gpu)) {
    const auto add = [&](const auto& config) {
      EXPECT_EQ(config.invalid_reason(), nullptr) << describe(config);
      text += (text.empty() ? "" : "; ") + words_of(config);
    };
    std::visit(add, launch.config);
  }
  return text;
}

Cast plain(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  return Cast(DType::kBFloat16, granularity).of(rows, cols);
}
Cast beside_channels(std::int64_t rows, std::int64_t cols,
                     const config::CastRule& rule = config::kTorchAoRule) {
  return Cast(DType::kBFloat16, kBlock1x128, rule).of(rows, cols).beside(kChannel);
}
// More rows than a cluster finds scales of.
Cast by_amax(Granularity granularity) { return plain(granularity, 2000, 640).of_given_amax(); }
Cast gathered(Granularity granularity, const CastSource& source = kGathered) {
  return Cast(DType::kBFloat16, granularity, config::kDeepGemmRule, source)
      .of(1000, 640)
      .in_groups(6);
}
Cast stack(Granularity granularity) { return plain(granularity, 1000, 640).of_stack(250); }
Cast gradient(std::int64_t cols, GateLayout layout, DType in = DType::kBFloat16) {
  return Cast(in, kBlock1x128, config::kDeepGemmRule,
              CastSource::of(config::SourceKind::kActivationGradient, Activation::kSwiGlu, layout))
      .of(256, cols);
}

using Expected = std::vector<std::pair<CastProblem, std::string>>;
void expect_kernels(const Expected& rows) {
  for (const auto& [problem, kernels] : rows) {
    EXPECT_EQ(kernels_of(problem), kernels) << describe(problem);
  }
}

TEST(CastLaunchesTest, BlocksAreCastAtOnce) {
  expect_kernels({
      {plain(kBlock1x128, 4096, 7168), "cast"},
      {plain(kBlock1x128, 4096, 7168).to_rows_alone(), "cast"},
      {plain(kBlock128x128, 4096, 7168), "cast"},
      {plain(kBlock128x128, 4096, 7168).to_rows_alone(), "cast"},
      {plain(kTensor, 4096, 7168), "clear; amax; codes; finish"},
      {plain(kChannel, 4096, 7168), "clear; amax; codes; finish"},
      {plain(kTensor, 64, 100'000).of_given_scales(), "given"},
      {plain(kChannel, 64, 100'000).of_given_scales(), "given"},
      {plain(kBlock1x128, 64, 100'000).of_given_scales(), "given"},
      {plain(kBlock128x128, 64, 100'000).of_given_scales(), "given"},
      {gathered(kChannel),
       "clear grouped gathered; amax grouped; codes grouped; finish grouped gathered"},
      {gathered(kChannel).transposed_alone(),
       "clear of columns; amax of columns grouped; codes of columns grouped; finish of columns"},
      {gathered(kTensor), "clear; amax grouped; codes grouped; finish"},
  });
}

TEST(CastLaunchesTest, WideRowsAreOfClustersUnlessTheyAreTooWideOrNoVectors) {
  expect_kernels({
      {plain(kChannel, 4096, 7168).to_rows_alone(), "256 threads a row"},
      {plain(kChannel, 64, 16'384).to_rows_alone(), "256 threads a row"},
      {plain(kChannel, 64, 16'392).to_rows_alone(), "512 threads a row"},
      {plain(kChannel, 64, 32'768).to_rows_alone(), "512 threads a row"},
      {plain(kChannel, 64, 32'776).to_rows_alone(), "2 blocks of 36 KB a row"},
      {plain(kChannel, 64, 36'864).to_rows_alone(), "2 blocks of 36 KB a row"},
      {plain(kChannel, 64, 36'872).to_rows_alone(), "4 blocks of 36 KB a row"},
      {plain(kChannel, 64, 131'072).to_rows_alone(), "8 blocks of 36 KB a row"},
      {plain(kChannel, 64, 300'000).to_rows_alone(), "8 blocks of 111 KB a row"},
      {plain(kChannel, 64, 454'656).to_rows_alone(), "8 blocks of 111 KB a row"},
      {plain(kChannel, 64, 454'664).to_rows_alone(), "512 threads a row, twice"},
      {plain(kChannel, 64, 40'007).to_rows_alone(), "256 threads a row, twice"},
      {gathered(kChannel, kMultiplied).of(500'000).in_groups(0).to_rows_alone(),
       "512 threads a row, twice"},
  });
}

// An empty matrix has no codes, but the scales that core::scale_grid says, and sums of no rows,
// which are 0. Groups have slots of no rows.
TEST(CastLaunchesTest, AnEmptyMatrixHasTheScalesAndSumsThatThereAre) {
  expect_kernels({
      {plain(kBlock1x128, 0, 5).to_rows_alone(), ""},
      {plain(kBlock128x128, 5, 0), ""},
      {plain(kTensor, 0, 5).to_rows_alone(), "clear; finish"},
      {plain(kTensor, 0, 5).to_rows_alone().of_given_scales(), ""},
      {plain(kChannel, 5, 0).to_rows_alone(), "32 threads a row"},
      {plain(kChannel, 0, 5).to_rows_alone(), ""},
      {plain(kChannel, 0, 5).transposed_alone(), "clear of columns; finish of columns"},
      {plain(kChannel, 5, 0).transposed_alone(), ""},
      {plain(kBlock1x128, 0, 640).reducing(kSums), "columns"},
      {plain(kBlock1x128, 5, 0).reducing(kSums), ""},
      {plain(kBlock1x128, 0, 640).in_groups(6), "cast grouped"},
      {plain(kBlock1x128, 0, 0).in_groups(6), ""},
      {plain(kBlock128x128, 0, 640).of_stack(0), ""},
      {plain(kTensor, 0, 640).of_stack(0), "clear stacked; finish stacked"},
  });
}

// A tile or a cluster finds the scales of channels where it has all of their elements, and sums
// that are no parts of others. Else they take another read, and codes of both are written by one
// kernel.
TEST(CastLaunchesTest, ChannelsBesideBlocks) {
  expect_kernels({
      {beside_channels(4096, 7168),
       "clear of columns; amax of columns; whole rows; finish of columns"},
      {beside_channels(4096, 7168).of_given_scales(), "given"},
      {beside_channels(1, 7168).reducing(kSums), "cast reducing"},
      {beside_channels(128, 7168).reducing(kSums), "cast reducing"},
      {beside_channels(0, 7168).reducing(kSums), "clear of columns; finish of columns; columns"},
      {beside_channels(512, 7168).of_stack(128),
       "clear of columns stacked; amax of columns stacked; whole rows stacked; finish of columns "
       "stacked"},
      {beside_channels(128, 7168).in_groups(2),
       "clear of columns; amax of columns grouped; whole rows grouped; finish of columns"},
      {beside_channels(128, 7168).of_given_amax(),
       "take of columns; whole rows; finish of columns"},
      {beside_channels(129, 300), "cast by 2"},
      {beside_channels(256, 300), "cast by 2"},
      {beside_channels(1024, 300), "cast by 8"},
      {beside_channels(1024, 300).reducing(kSums), "cast reducing by 8; columns"},
      {beside_channels(1025, 300),
       "clear of columns; amax of columns; whole rows; finish of columns"},
  });
}

TEST(CastLaunchesTest, OfGivenMagnitudesXIsReadOnce) {
  expect_kernels({
      {by_amax(kTensor).to_rows_alone(), "take; codes; finish"},
      {by_amax(kTensor).transposed_alone(), "take of columns; codes of columns; finish of columns"},
      {by_amax(kTensor), "take; codes by given amax; finish"},
      {by_amax(kTensor).reducing(kSums), "take; codes reducing by given amax; finish; columns"},
      {by_amax(kChannel), "take; codes; finish"},
      {by_amax(kChannel).to_rows_alone(), "take; codes; finish"},
      {by_amax(kChannel).to_rows_alone().reducing(kSums), "take; codes reducing; finish; columns"},
      {by_amax(kChannel).transposed_alone(),
       "take of columns; codes of columns; finish of columns"},
      {by_amax(kChannel).of(0, 640).transposed_alone(), "take of columns; finish of columns"},
      {beside_channels(2000, 640).of_given_amax().reducing(kSums),
       "take of columns; whole rows reducing; finish of columns; columns"},
      {beside_channels(2000, 640).of_given_amax().in_groups(6),
       "take of columns; whole rows grouped; finish of columns"},
      {beside_channels(2000, 640).of_given_amax().of_stack(500),
       "take of columns stacked; whole rows stacked; finish of columns stacked"},
  });
}

// By one tile, where they are whole blocks and lie apart.
TEST(CastLaunchesTest, HalvesOfAGradientAreTakenTogether) {
  expect_kernels({
      {gradient(2 * 384, GateLayout::kHalves), "cast of halves"},
      {gradient(2 * 320, GateLayout::kHalves), "cast"},
      {gradient(2 * 384, GateLayout::kInterleaved), "cast"},
      {gradient(2 * 384, GateLayout::kHalves, DType::kFloat32), "cast"},
      {gradient(2 * 384, GateLayout::kHalves).unaligned(), "cast"},
  });
}

// They have no clusters, or not as much shared memory.
TEST(CastLaunchesTest, OtherGpusHaveOthers) {
  EXPECT_EQ(kernels_of(beside_channels(256, 300), gpu_of(80, 108)),
            "clear of columns; amax of columns; whole rows; finish of columns");
  EXPECT_EQ(kernels_of(plain(kChannel, 64, 100'000).to_rows_alone(), as_target(kHopper, 86)),
            "512 threads a row, twice");
  Gpu gpu = kHopper;
  gpu.shared_memory_per_block = 99 * 1024;
  EXPECT_EQ(kernels_of(plain(kChannel, 64, 147'456).to_rows_alone(), gpu),
            "8 blocks of 36 KB a row");
  EXPECT_EQ(kernels_of(plain(kChannel, 64, 147'464).to_rows_alone(), gpu),
            "512 threads a row, twice");
}

TEST(CastLaunchesTest, ClustersAreLaunchedWhole) {
  const KernelPlan rows =
      plan_cast(plain(kChannel, 64, 131'072).to_rows_alone(), kHopper).kernels[0];
  EXPECT_EQ(rows.cluster_size, 8);
  EXPECT_EQ(rows.shared_bytes, 2 * 36 * 1024);
  EXPECT_TRUE(rows.as_many_as_run);
  for (const auto& [height, tiles] : {std::pair{129, 2}, {256, 2}, {1024, 8}}) {
    const KernelPlan kernel = plan_cast(beside_channels(height, 300), kHopper).kernels[0];
    EXPECT_EQ(kernel.cluster_size, tiles);
    EXPECT_EQ(kernel.blocks, 3 * tiles);
  }
  for (const CastProblem& problem :
       {plain(kBlock1x128, 64, 131'072).to_rows_alone(), beside_channels(1025, 300)}) {
    for (const KernelPlan& kernel : plan_cast(problem, kHopper).kernels) {
      EXPECT_EQ(kernel.cluster_size, 1);
      EXPECT_FALSE(kernel.as_many_as_run);
    }
  }
}

// Columns are reduced by the first kernel, and the last one.
TEST(CastLaunchesTest, EachKindHasThePhasesThatScalesNeed) {
  const auto reducing = [](Granularity granularity) {
    return plain(granularity, 1000, 640).reducing(kSums);
  };
  const auto in_groups = [](Granularity granularity) {
    return plain(granularity, 1000, 640).in_groups(6);
  };
  expect_kernels({
      {reducing(kTensor), "clear; amax reducing; codes; finish; columns"},
      {reducing(kChannel).transposed_alone(),
       "clear of columns; amax of columns reducing; codes of columns; finish of columns; columns"},
      {reducing(kBlock1x128).to_rows_alone(), "cast reducing; columns"},
      {reducing(kBlock1x128).beside(kBlock128x128), "cast reducing; columns"},
      {reducing(kBlock128x128).transposed_alone(), "cast of columns reducing; columns"},
      {reducing(kTensor).of_given_scales(), "given reducing; columns"},
      {in_groups(kTensor), "clear; amax grouped; codes grouped; finish"},
      {in_groups(kChannel), "clear grouped; amax grouped; codes grouped; finish grouped"},
      {in_groups(kBlock1x128).beside(kBlock128x128), "cast grouped"},
      {in_groups(kBlock128x128).transposed_alone(), "cast of columns grouped"},
      {in_groups(kChannel).transposed_alone().of_given_scales(), "given of columns grouped"},
      {gathered(kBlock1x128, kMultiplied), "cast grouped"},
      {gathered(kChannel, kMultiplied),
       "clear grouped gathered; amax grouped; codes grouped; finish grouped gathered"},
      {stack(kTensor).to_rows_alone(),
       "clear stacked; amax stacked; codes stacked; finish stacked"},
      {stack(kChannel).transposed_alone(),
       "clear of columns stacked; amax of columns stacked; codes of columns stacked; finish of "
       "columns stacked"},
      {stack(kBlock1x128).beside(kBlock128x128), "cast stacked"},
      {stack(kBlock128x128).to_rows_alone(), "cast stacked"},
      {stack(kChannel).of_given_scales(), "given stacked"},
  });
}

// However many rows there are: where the transpose's end within 8 codes, these are stored alone.
// Columns of groups begin and end at multiples of 128.
TEST(CastLaunchesTest, CodesAreStoredInVectors) {
  const auto tiles = [](const CastProblem& problem) {
    const auto config = std::get<TileCastConfig>(cast_launches(problem, kHopper)[0].config);
    return std::pair(config.vector_stores, config.ragged);
  };
  const Cast odd = plain(kBlock1x128, 1001, 640);
  EXPECT_EQ(tiles(odd), std::pair(true, true));
  EXPECT_EQ(tiles(odd.to_rows_alone()), std::pair(true, false));
  EXPECT_EQ(tiles(odd.unaligned()), std::pair(false, false));
  EXPECT_EQ(tiles(odd.in_groups(6)), std::pair(true, false));
  EXPECT_EQ(tiles(odd.in_groups(6).unaligned()), std::pair(false, false));
  EXPECT_EQ(tiles(stack(kBlock128x128)), std::pair(true, true));
  EXPECT_EQ(tiles(plain(kBlock128x128, 0, 640).of_stack(200)), std::pair(true, false));
}

TEST(CastLaunchesTest, StepsHaveTheScalesOfAllMatrices) {
  const auto blocks = [](CastProblem problem, std::int64_t rows, std::int64_t matrices = 4) {
    problem.rows = rows;
    problem.matrices = matrices;
    return cast_launches(problem, kHopper)[0].blocks;
  };
  EXPECT_EQ(blocks(stack(kTensor), 1000), 1);
  EXPECT_EQ(blocks(stack(kTensor), 1000, 1000), 4);
  EXPECT_EQ(blocks(stack(kChannel).transposed_alone(), 1000), 10);  // 4 · 640 / 256
  EXPECT_EQ(blocks(stack(kChannel), 4000), 16);
}

// Rows that have scales of their own, or squares that end with each matrix anyway.
TEST(CastLaunchesTest, RowsOfAStackAreThoseOfOneMatrix) {
  const Cast squares = plain(kBlock128x128, 0, 640).of_stack(256).to_rows_alone();
  for (CastProblem problem : {stack(kChannel).to_rows_alone(), stack(kBlock1x128).to_rows_alone(),
                              squares, squares.of(100'000)}) {
    const std::vector<CastLaunch> of_stack = cast_launches(problem, kHopper);
    problem.matrices = 1;
    const std::vector<CastLaunch> of_one = cast_launches(problem, kHopper);
    ASSERT_EQ(of_stack.size(), of_one.size());
    for (std::size_t i = 0; i < of_one.size(); ++i) {
      EXPECT_EQ(of_stack[i].config, of_one[i].config);
      EXPECT_EQ(of_stack[i].blocks, of_one[i].blocks);
    }
  }
}

// A block of threads has rows of one matrix, which are cast or left alone.
TEST(CastLaunchesTest, UnusedMatricesAreLeftAloneByEachKernel) {
  const auto expect_skips = [](const CastProblem& problem) {
    for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
      const auto check = [&](const auto& config) {
        EXPECT_EQ(config.invalid_reason(), nullptr);
        if constexpr (requires { config.skips_unused; }) {
          EXPECT_EQ(config.skips_unused, problem.skips_unused);
        } else {
          EXPECT_FALSE(problem.skips_unused);
        }
      };
      std::visit(check, launch.config);
    }
  };
  for (const Granularity granularity : test::kGranularities) {
    for (Cast problem : {stack(granularity), stack(granularity).to_rows_alone(),
                         stack(granularity).transposed_alone()}) {
      expect_skips(problem);
      problem.skips_unused = true;
      for (const std::int64_t cols : {640, 100'000}) {
        problem.matrices = 4;
        expect_skips(problem.of(cols));
        problem.matrices = 1;
        expect_skips(problem.of(cols));
      }
    }
  }
}

}  // namespace
}  // namespace octofold::plan
