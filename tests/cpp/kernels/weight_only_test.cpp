// The kernel of products with FP8 weights, run on the host by the parameters that src/cuda makes,
// beside sums in FP64.
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
using test::PaddedMatrix;
using Case = test::WeightOnlyCase;
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
void expect_product(const Case& problem) {
  static_assert(kConfig.invalid_reason() == nullptr);
  test::WeightOnlyProduct<kConfig> product(problem);
  const WeightOnlyParams params = cuda::weight_only_params(product.product(), problem.splits);
  ptx::shared.fill(0x7F);  // NaN of both formats
  const std::int64_t blocks = config::ceil_divide(problem.rows, kConfig.tile_rows) *
                              config::ceil_divide(problem.columns, kConfig.tile_columns);
  test::launch(blocks * problem.splits, kConfig.threads(), [&] {
    if constexpr (kConfig.ahead) {
      weight_only_many_rows_kernel<kConfig>(params);
    } else {
      weight_only_kernel<kConfig>(params);
    }
  });
  EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0x7F));
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

// Each code by 1, all others by 0.
template <DType kFp8>
void expect_each_code() {
  constexpr WeightOnlyConfig kConfig =
      by({.rows = 1, .warps_depth = 2}, {.w = kFp8, .x = kNarrow, .out = kFloat32});
  PaddedMatrix w(kFp8, 256, 32, 0, 0), x(kNarrow, 1, 32, 0, 0), out(kFloat32, 1, 256, 0, 0);
  for (std::int64_t k = 0; k < 32; ++k) x.set(0, k, k == 21 ? 1.0f : 0.0f);
  std::memset(w.data(), 0, 256 * 32);
  for (int code = 0; code < 256; ++code)
    w.data()[32 * code + 21] = static_cast<unsigned char>(code);
  const float one = 1;
  const WeightOnlyParams params =
      cuda::weight_only_params({.x = {x.view(1)},
                                .w = {.data = w.view(256),
                                      .scale = vector<const void>(&one, kFloat32, 1),
                                      .granularity = Granularity::kTensor},
                                .out = out.view(1)},
                               1);
  test::launch(256 / kConfig.tile_columns, kConfig.threads(),
               [&] { weight_only_kernel<kConfig>(params); });
  for (int code = 0; code < 256; ++code) {
    const double expected = w.at(code, 21), actual = out.at(0, code);
    EXPECT_TRUE(expected != expected ? actual != actual : actual == expected) << code;
  }
}

TEST(WeightOnlyTest, CodesAreExact) {
  expect_each_code<kE4M3>();
  expect_each_code<kE5M2>();
}

}  // namespace
}  // namespace octofold
