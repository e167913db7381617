// The kernels of products with FP8 weights, of groups of rows too, run on the host by the
// parameters that src/cuda makes, beside sums in FP64.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/types.h"

#include "cuda/params.h"
#include "kernels/weight_only/kernel.h"
#include "kernels/weight_only/many_rows.h"
#include "support/test.h"
#include "support/weight_only_on_host.h"

namespace octofold {
namespace {

using config::WeightOnlyConfig;
using config::WeightOnlyParams;
using config::Work;
using Case = test::WeightOnlyCase;
using Numbers = std::vector<std::int32_t>;
using enum DType;

// Numbers of 16 bits that this architecture multiplies.
constexpr DType kNarrow = ptx::kHasAmpere ? kBFloat16 : kFloat16;

// Tiles of out, and the warps that share each of them.
struct Tiles {
  int columns = 16, rows = 8;
  int warps_columns = 1, warps_rows = 1, warps_depth = 8;
  int stages = 3;
};
constexpr WeightOnlyConfig by(const Tiles& tiles, WeightOnlyConfig config) {
  config.tile_columns = tiles.columns, config.tile_rows = tiles.rows;
  config.warps_columns = tiles.warps_columns, config.warps_rows = tiles.warps_rows;
  config.warps_depth = tiles.warps_depth, config.stages = tiles.stages;
  return config;
}

template <WeightOnlyConfig kConfig>
void run(const WeightOnlyParams& params, std::int64_t blocks) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::shared.fill(0x7F);  // NaN of both formats
  test::launch(blocks, kConfig.threads(), [&] {
    if constexpr (kConfig.ahead) {
      weight_only_many_rows_kernel<kConfig>(params);
    } else {
      weight_only_kernel<kConfig>(params);
    }
  });
  EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0x7F));
}

template <WeightOnlyConfig kConfig>
void expect_product(const Case& problem) {
  test::WeightOnlyProduct<kConfig> product(problem);
  const WeightOnlyParams params = cuda::weight_only_params(product.product(), problem.splits);
  const std::int64_t blocks = config::ceil_divide(problem.rows, kConfig.tile_rows) *
                              config::ceil_divide(problem.columns, kConfig.tile_columns);
  run<kConfig>(params, blocks * problem.splits);
  if constexpr (kConfig.split) {
    constexpr WeightOnlyConfig kCombine = kConfig.of_combination();
    const std::int64_t fours = problem.rows * config::ceil_divide(problem.columns, 4);
    test::launch(config::ceil_divide(fours, kCombine.threads()), kCombine.threads(),
                 [&] { combine_weight_only_kernel<kCombine>(params); });
  }
  product.expect_right();
}

constexpr WeightOnlyConfig kOneRow =
    by({.columns = 16, .rows = 1, .warps_depth = 4}, {.w = kE4M3, .x = kNarrow, .out = kFloat32});

TEST(WeightOnlyTest, OfOneRow) {
  for (const std::int64_t depth : {0, 16, 144, 1040}) expect_product<kOneRow>({1, 16, depth});
  expect_product<kOneRow>({1, 36, 272, Granularity::kChannel});
}

TEST(WeightOnlyTest, OfFewRowsByBlocks) {
  constexpr WeightOnlyConfig kConfig =
      by({.columns = 64, .rows = 16, .warps_columns = 2, .warps_depth = 2},
         {.w = kE5M2, .x = kNarrow, .out = kNarrow, .w_blocks = true});
  for (const Granularity scales : {Granularity::kBlock1x128, Granularity::kBlock128x128}) {
    expect_product<kConfig>({13, 140, 656, scales});
  }
  constexpr WeightOnlyConfig kWide =
      by({.columns = 64, .rows = 8, .warps_depth = 2, .stages = 4},
         {.w = kE4M3, .x = kFloat16, .out = kFloat32, .w_blocks = true});
  expect_product<kWide>({7, 72, 1600, Granularity::kBlock128x128});
  expect_product<kConfig>({.rows = 2,
                           .columns = 64,
                           .depth = 304,
                           .w_scales = Granularity::kBlock1x128,
                           .has_bias = true,
                           .has_nan = true});
}

TEST(WeightOnlyTest, OfADepthThatBlocksSplit) {
  constexpr WeightOnlyConfig kConfig =
      by({.columns = 64, .rows = 32, .warps_columns = 2, .warps_depth = 2, .stages = 2},
         {.w = kE4M3, .x = kNarrow, .out = kNarrow, .w_blocks = true, .split = true});
  const Case blocks{.rows = 27,
                    .columns = 100,
                    .depth = 1424,
                    .w_scales = Granularity::kBlock128x128,
                    .has_bias = true,
                    .splits = 3};
  expect_product<kConfig>(blocks);
  constexpr WeightOnlyConfig kTransposed =
      by({.columns = 64, .rows = 16, .warps_columns = 2, .warps_depth = 1}, {.w = kE5M2,
                                                                             .x = kFloat16,
                                                                             .out = kFloat32,
                                                                             .transposed = true,
                                                                             .vectors = false,
                                                                             .store_vectors = false,
                                                                             .split = true});
  // More parts than steps: some have nothing.
  expect_product<kTransposed>(
      {.rows = 9, .columns = 70, .depth = 300, .pad = 3, .offset = 1, .splits = 5});
}

TEST(WeightOnlyTest, OfCodes) {
  constexpr WeightOnlyConfig kConfig =
      by({.columns = 32, .rows = 4, .warps_depth = 2},
         {.w = kE4M3, .x = kE5M2, .out = kFloat16, .w_blocks = true, .x_blocks = true});
  expect_product<kConfig>({3, 40, 400, Granularity::kBlock128x128, Granularity::kBlock1x128});
  constexpr WeightOnlyConfig kPlain =
      by({.columns = 32, .rows = 16, .warps_columns = 2, .warps_depth = 1},
         {.w = kE5M2, .x = kE4M3, .out = kFloat32});
  expect_product<kPlain>({16, 40, 400, Granularity::kChannel, Granularity::kChannel});
}

TEST(WeightOnlyTest, OfFloat32) {
  constexpr WeightOnlyConfig kConfig =
      by({.columns = 32, .rows = 4, .warps_columns = 2, .warps_depth = 2},
         {.w = kE4M3, .x = kFloat32, .out = kFloat32, .w_blocks = true});
  expect_product<kConfig>({3, 36, 528, Granularity::kBlock1x128});
  constexpr WeightOnlyConfig kWhole =
      by({.rows = 16, .warps_depth = 2}, {.w = kE5M2, .x = kFloat32, .out = kFloat16});
  expect_product<kWhole>({.rows = 11, .columns = 20, .depth = 528, .has_nan = true});
}

TEST(WeightOnlyTest, OfWhatIsNotAligned) {
  constexpr WeightOnlyConfig kConfig =
      by({.rows = 4, .warps_depth = 2},
         {.w = kE4M3, .x = kFloat16, .out = kFloat16, .vectors = false, .store_vectors = false});
  expect_product<kConfig>(
      {.rows = 3, .columns = 37, .depth = 301, .has_bias = true, .pad = 5, .offset = 3});
  constexpr WeightOnlyConfig kGradient =
      by({.columns = 32, .warps_depth = 2}, {.w = kE5M2,
                                             .x = kFloat16,
                                             .out = kFloat32,
                                             .transposed = true,
                                             .vectors = false,
                                             .store_vectors = false});
  expect_product<kGradient>({.rows = 8, .columns = 37, .depth = 301, .pad = 1, .offset = 5});
}

TEST(WeightOnlyTest, OfManyRows) {
  constexpr WeightOnlyConfig kConfig = by({.columns = 64,
                                           .rows = 64,
                                           .warps_columns = 2,
                                           .warps_rows = 2,
                                           .warps_depth = 1,
                                           .stages = 2},
                                          {.w = kE4M3, .x = kNarrow, .out = kNarrow});
  expect_product<kConfig>({.rows = 70,
                           .columns = 96,
                           .depth = 400,
                           .w_scales = Granularity::kChannel,
                           .has_bias = true,
                           .bias_is_float32 = true});
  constexpr WeightOnlyConfig kBlocks =
      by({.columns = 128,
          .rows = 128,
          .warps_columns = 4,
          .warps_rows = 2,
          .warps_depth = 1,
          .stages = 2},
         {.w = kE4M3, .x = kFloat16, .out = kFloat32, .w_blocks = true});
  expect_product<kBlocks>(
      {.rows = 129, .columns = 136, .depth = 144, .w_scales = Granularity::kBlock1x128, .pad = 16});
}

TEST(WeightOnlyTest, OfGradients) {
  constexpr WeightOnlyConfig kFew =
      by({.columns = 64, .rows = 2, .warps_columns = 2, .warps_depth = 2},
         {.w = kE4M3, .x = kNarrow, .out = kNarrow, .transposed = true});
  expect_product<kFew>({.rows = 2, .columns = 80, .depth = 328, .has_nan = true});
  constexpr WeightOnlyConfig kBlocks =
      by({.columns = 128, .rows = 32, .warps_columns = 4, .warps_depth = 2, .stages = 2},
         {.w = kE5M2, .x = kFloat16, .out = kFloat32, .transposed = true, .w_blocks = true});
  expect_product<kBlocks>({40, 272, 400, Granularity::kBlock128x128});
  constexpr WeightOnlyConfig kFactors =
      by({.columns = 64, .rows = 16, .warps_columns = 2, .warps_depth = 2},
         {.w = kE4M3, .x = kNarrow, .out = kFloat32, .transposed = true, .depth_factors = true});
  for (const Granularity scales : {Granularity::kChannel, Granularity::kBlock1x128}) {
    expect_product<kFactors>({11, 144, 304, scales});
  }
}

constexpr WeightOnlyConfig decoded_ahead(const Tiles& tiles, WeightOnlyConfig config) {
  config.ahead = true;
  return by(tiles, config);
}
constexpr Tiles kAheadTiles{.columns = 128, .rows = 64, .warps_columns = 2, .warps_depth = 1};

TEST(WeightOnlyTest, OfOperandsDecodedAhead) {
  constexpr WeightOnlyConfig kConfig =
      decoded_ahead(kAheadTiles, {.w = kE4M3, .x = kNarrow, .out = kNarrow});
  expect_product<kConfig>({.rows = 70,
                           .columns = 144,
                           .depth = 400,
                           .w_scales = Granularity::kChannel,
                           .has_bias = true,
                           .bias_is_float32 = true,
                           .has_nan = true});
  for (const std::int64_t depth : {0, 16, 64, 208}) expect_product<kConfig>({5, 16, depth});
  constexpr WeightOnlyConfig kBlocks = decoded_ahead(
      {.columns = 64, .rows = 32, .warps_columns = 2, .warps_rows = 2, .warps_depth = 1},
      {.w = kE5M2, .x = kFloat16, .out = kFloat32, .w_blocks = true});
  for (const Granularity scales : {Granularity::kBlock1x128, Granularity::kBlock128x128}) {
    expect_product<kBlocks>({.rows = 33, .columns = 136, .depth = 656, .w_scales = scales});
  }
  constexpr Tiles kNinetySix{
      .columns = 128, .rows = 96, .warps_columns = 2, .warps_rows = 2, .warps_depth = 1};
  constexpr WeightOnlyConfig kAnywhere = decoded_ahead(kNinetySix, {.w = kE4M3,
                                                                    .x = kFloat16,
                                                                    .out = kFloat16,
                                                                    .w_blocks = true,
                                                                    .vectors = false,
                                                                    .store_vectors = false});
  expect_product<kAnywhere>({.rows = 65,
                             .columns = 131,
                             .depth = 301,
                             .w_scales = Granularity::kBlock128x128,
                             .has_bias = true,
                             .pad = 5,
                             .offset = 3});
}

TEST(WeightOnlyTest, OfGradientsDecodedAhead) {
  constexpr WeightOnlyConfig kConfig =
      decoded_ahead(kAheadTiles, {.w = kE4M3, .x = kNarrow, .out = kNarrow, .transposed = true});
  expect_product<kConfig>({.rows = 66, .columns = 144, .depth = 328, .has_nan = true});
  constexpr WeightOnlyConfig kBlocks = decoded_ahead(
      {.columns = 256,
       .rows = 32,
       .warps_columns = 4,
       .warps_rows = 2,
       .warps_depth = 1,
       .stages = 4},
      {.w = kE5M2, .x = kFloat16, .out = kFloat32, .transposed = true, .w_blocks = true});
  expect_product<kBlocks>({40, 272, 400, Granularity::kBlock128x128});
}

// Scales far apart, 0 among them: of what is left out nothing is seen in the sums.
TEST(WeightOnlyTest, SumsChangeTheirUnits) {
  constexpr WeightOnlyConfig kConfig =
      decoded_ahead({.columns = 64, .rows = 16, .warps_columns = 2, .warps_depth = 1},
                    {.w = kE4M3, .x = kFloat16, .out = kFloat32, .w_blocks = true});
  for (const auto& scales : test::kFarApart) {
    expect_product<kConfig>({.rows = 16,
                             .columns = 64,
                             .depth = 896,
                             .w_scales = Granularity::kBlock128x128,
                             .scales = scales});
  }
}

// ---- Groups.

// By fewer blocks than there are tiles, and by more.
template <WeightOnlyConfig kConfig>
void expect_product(const Numbers& numbers, const Case& problem) {
  for (const std::int64_t blocks : {2, 37}) {
    test::WeightOnlyProduct<kConfig> product(problem, numbers);
    run<kConfig>(cuda::weight_only_params(product.product(), 1), blocks);
    product.expect_right();
  }
}

constexpr WeightOnlyConfig with(WeightOnlyConfig config, bool w_blocks, bool gathered,
                                Work work = Work::kGroupedRows) {
  config.w_blocks = w_blocks;
  config.gathered = gathered;
  config.work = work;
  return config;
}

constexpr WeightOnlyConfig kFew{.w = kE4M3,
                                .x = kNarrow,
                                .out = kNarrow,
                                .tile_columns = 16,
                                .tile_rows = 4,
                                .warps_depth = 2,
                                .work = Work::kGroupedRows};

TEST(GroupedWeightOnlyTest, OfRows) {
  expect_product<kFew>({0, 3, 3, 12, 13}, {.rows = 15,
                                           .columns = 36,
                                           .depth = 272,
                                           .w_scales = Granularity::kChannel,
                                           .has_bias = true});
  expect_product<kFew>({0, 5}, {.rows = 5, .columns = 16, .depth = 0});
  expect_product<kFew>({0, 0, 0}, {.rows = 4, .columns = 16, .depth = 16});
}

// More groups than a warp asks for at a time.
TEST(GroupedWeightOnlyTest, OfManyGroups) {
  Numbers offsets{0};
  Case problem{.rows = 0, .columns = 16, .depth = 32};
  for (int group = 0; group < 300; ++group) {
    problem.rows += group % 90 == 7 ? 6 : group == 299 ? 1 : 0;
    offsets.push_back(static_cast<std::int32_t>(problem.rows));
  }
  expect_product<kFew>(offsets, problem);
}

TEST(GroupedWeightOnlyTest, OfMaskedRows) {
  constexpr WeightOnlyConfig kConfig{.w = kE5M2,
                                     .x = kFloat16,
                                     .out = kFloat32,
                                     .w_blocks = true,
                                     .tile_columns = 64,
                                     .tile_rows = 8,
                                     .warps_columns = 2,
                                     .warps_depth = 2,
                                     .work = Work::kMaskedRows};
  expect_product<kConfig>({9, 0, 3}, {.rows = 11,
                                      .columns = 128,
                                      .depth = 304,
                                      .w_scales = Granularity::kBlock128x128,
                                      .pad = 16});
}

TEST(GroupedWeightOnlyTest, OfGatheredRows) {
  constexpr WeightOnlyConfig kConfig = with(kFew, true, true);
  expect_product<kConfig>({0, 3, 3, 11}, {.rows = 13,
                                          .columns = 20,
                                          .depth = 400,
                                          .w_scales = Granularity::kBlock1x128,
                                          .has_bias = true,
                                          .tokens = 4,
                                          .slots = 3});
  expect_product<kConfig>({0, 4}, {.rows = 4, .columns = 16, .depth = 32, .tokens = 0});
}

TEST(GroupedWeightOnlyTest, OfGatheredRowsThatAreNotAligned) {
  constexpr WeightOnlyConfig kGradient{.w = kE4M3,
                                       .x = kFloat16,
                                       .out = kFloat32,
                                       .transposed = true,
                                       .depth_factors = true,
                                       .tile_columns = 32,
                                       .tile_rows = 8,
                                       .warps_depth = 2,
                                       .vectors = false,
                                       .store_vectors = false,
                                       .work = Work::kGroupedRows,
                                       .gathered = true};
  expect_product<kGradient>({0, 9, 10}, {.rows = 10,
                                         .columns = 37,
                                         .depth = 141,
                                         .w_scales = Granularity::kChannel,
                                         .pad = 5,
                                         .offset = 3,
                                         .tokens = 5,
                                         .slots = 2,
                                         .has_factors = true});
}

TEST(GroupedWeightOnlyTest, OfOperandsDecodedAhead) {
  constexpr WeightOnlyConfig kAhead{.w = kE4M3,
                                    .x = kNarrow,
                                    .out = kNarrow,
                                    .w_blocks = true,
                                    .tile_columns = 128,
                                    .tile_rows = 64,
                                    .warps_columns = 2,
                                    .warps_depth = 1,
                                    .ahead = true,
                                    .work = Work::kGroupedRows,
                                    .gathered = true};
  expect_product<kAhead>({0, 70, 73}, {.rows = 80,
                                       .columns = 136,
                                       .depth = 272,
                                       .w_scales = Granularity::kBlock1x128,
                                       .tokens = 30,
                                       .slots = 2,
                                       .has_factors = true});
  constexpr WeightOnlyConfig kRows = with(kAhead, false, false);
  expect_product<kRows>({0, 1, 70}, {.rows = 70, .columns = 128, .depth = 208});
}

// Whatever the numbers are, only memory that there is is read and written: sanitizers see it.
TEST(GroupedWeightOnlyTest, NumbersThatLie) {
  constexpr std::int32_t kLow = -2147483647 - 1, kHigh = 2147483647;
  for (const Numbers& offsets : {Numbers{5, 2, 9, 1}, {-3, 4, kHigh, kLow}, {kHigh, kLow, 7, 7}}) {
    test::WeightOnlyProduct<kFew> product({.rows = 9, .columns = 20, .depth = 48}, offsets);
    run<kFew>(cuda::weight_only_params(product.product(), 1), 5);
  }
  constexpr WeightOnlyConfig kMasked = with(kFew, false, false, Work::kMaskedRows);
  test::WeightOnlyProduct<kMasked> product({.rows = 9, .columns = 20, .depth = 48},
                                           {kHigh, kLow, 10});
  run<kMasked>(cuda::weight_only_params(product.product(), 1), 5);
}

}  // namespace
}  // namespace octofold
