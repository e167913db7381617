// Products of 16-bit numbers and FP8 weights by warpgroups, of groups too, kernel and all, run on
// the host beside sums in FP64, with the parameters and tensor maps that src/cuda makes.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/types.h"

#include "cuda/fake_runtime.h"
#include "cuda/params.h"
#include "kernels/weight_only_sm90/kernel.h"
#include "support/test.h"
#include "support/weight_only_on_host.h"

namespace octofold {
namespace {

using config::Sm90WeightOnlyConfig;
using config::Sm90WeightOnlyParams;
using config::Work;
using test::WeightOnlyCase;
using enum DType;
using enum Granularity;

class HopperWeightOnlyTest : public cuda::FakeGpuTest {
 protected:
  template <Sm90WeightOnlyConfig kConfig>
  void run(test::WeightOnlyProduct<kConfig>& product, std::int64_t blocks) {
    static_assert(kConfig.invalid_reason() == nullptr);
    ASSERT_LE(kConfig.shared_bytes(), static_cast<int>(ptx::shared.size()));
    const Sm90WeightOnlyParams params =
        cuda::params_of(runtime().device(0), product.product(), kConfig);
    ptx::shared.fill(0x7F);  // NaN of both formats
    test::launch(
        blocks, kConfig.threads(), [&] { weight_only_sm90_kernel<kConfig>(params); },
        kConfig.split_k);
    product.expect_right();
    EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0x7F));
  }

  // By so many blocks, or one for each tile.
  template <Sm90WeightOnlyConfig kConfig>
  void expect_product(const WeightOnlyCase& given, std::int64_t blocks = 0) {
    test::WeightOnlyProduct<kConfig> product(given);
    const std::int64_t tiles = config::ceil_divide(given.rows, kConfig.tile_rows) *
                               config::ceil_divide(given.columns, kConfig.tile_columns);
    run(product, blocks > 0 ? blocks : tiles * kConfig.split_k);
  }

  // By fewer blocks than there are tiles, and by more.
  template <Sm90WeightOnlyConfig kConfig>
  void expect_groups(const std::vector<std::int32_t>& numbers, const WeightOnlyCase& given) {
    for (const std::int64_t blocks : {2, 9}) {
      test::WeightOnlyProduct<kConfig> product(given, numbers);
      run(product, blocks);
    }
  }
};

TEST_F(HopperWeightOnlyTest, ByBlocksThatStay) {
  expect_product<{.tile_columns = 64, .tile_rows = 32, .warpgroups = 1, .stages = 2}>(
      {.rows = 70, .columns = 144, .depth = 400, .w_scales = kChannel, .has_bias = true}, 2);
}

TEST_F(HopperWeightOnlyTest, OfTwoSubTiles) {
  expect_product<{.w = kE5M2,
                  .x = kFloat16,
                  .out = kFloat32,
                  .tile_columns = 256,
                  .tile_rows = 96,
                  .warpgroups = 2,
                  .stages = 3}>({.rows = 90, .columns = 272, .depth = 272, .pad = 16});
}

TEST_F(HopperWeightOnlyTest, OfGroupsAlongTheDepth) {
  expect_product<{
      .tile_columns = 64, .tile_rows = 32, .warpgroups = 1, .depth_groups = 3, .stages = 6}>(
      {.rows = 20, .columns = 64, .depth = 928, .w_scales = kChannel});
}

TEST_F(HopperWeightOnlyTest, ByClusters) {
  expect_product<{.x = kFloat16,
                  .out = kFloat16,
                  .tile_columns = 64,
                  .tile_rows = 64,
                  .warpgroups = 1,
                  .stages = 3,
                  .split_k = 3}>({.rows = 60,
                                  .columns = 80,
                                  .depth = 784,
                                  .w_scales = kChannel,
                                  .has_bias = true,
                                  .bias_is_float32 = true});
}

TEST_F(HopperWeightOnlyTest, OfBlocksWithSumsOfTheirOwn) {
  constexpr Sm90WeightOnlyConfig kConfig{
      .w_blocks = true, .tile_columns = 128, .tile_rows = 64, .warpgroups = 2, .stages = 3};
  static_assert(kConfig.has_partial_sums());
  expect_product<kConfig>(
      {.rows = 64, .columns = 192, .depth = 400, .w_scales = kBlock128x128, .has_bias = true});
  expect_product<{.w_blocks = true,
                  .tile_columns = 128,
                  .tile_rows = 32,
                  .warpgroups = 2,
                  .stages = 4,
                  .store_vectors = false}>(
      {.rows = 7, .columns = 130, .depth = 272, .w_scales = kBlock1x128});
}

TEST_F(HopperWeightOnlyTest, OfBlocksInUnitsOfTheLastOne) {
  constexpr Sm90WeightOnlyConfig kConfig{.x = kFloat16,
                                         .out = kFloat32,
                                         .w_blocks = true,
                                         .unit_sums = true,
                                         .tile_columns = 128,
                                         .tile_rows = 208,
                                         .warpgroups = 2,
                                         .stages = 2};
  static_assert(!kConfig.has_partial_sums());
  for (const auto& scales : test::kFarApart) {
    expect_product<kConfig>(
        {.rows = 8, .columns = 64, .depth = 896, .w_scales = kBlock128x128, .scales = scales});
  }
  expect_product<kConfig>({.rows = 120, .columns = 144, .depth = 656, .w_scales = kBlock1x128});
  // There are few rows, as batch-invariant products have them.
  expect_product<{.w_blocks = true,
                  .unit_sums = true,
                  .tile_columns = 64,
                  .tile_rows = 8,
                  .warpgroups = 1,
                  .stages = 4,
                  .split_k = 2}>(
      {.rows = 5, .columns = 80, .depth = 784, .w_scales = kBlock128x128, .has_bias = true});
}

// Each of the two warpgroups has a half of a slab of 128 columns.
TEST_F(HopperWeightOnlyTest, TransposedByTwoWarpgroupsToASlab) {
  expect_product<{.transposed = true, .tile_columns = 128, .tile_rows = 64, .stages = 3}>(
      {.rows = 50, .columns = 208, .depth = 272});
  expect_product<{.w = kE5M2,
                  .x = kFloat16,
                  .out = kFloat16,
                  .transposed = true,
                  .depth_factors = true,
                  .tile_columns = 128,
                  .tile_rows = 32,
                  .stages = 2,
                  .split_k = 2}>(
      {.rows = 30, .columns = 128, .depth = 400, .w_scales = kBlock1x128});
}

TEST_F(HopperWeightOnlyTest, TransposedOfBlocks) {
  expect_product<{.transposed = true,
                  .w_blocks = true,
                  .unit_sums = true,
                  .tile_columns = 256,
                  .tile_rows = 96,
                  .stages = 2}>(
      {.rows = 96, .columns = 272, .depth = 400, .w_scales = kBlock128x128});
}

TEST_F(HopperWeightOnlyTest, TransposedWithFactorsOfTheDepth) {
  expect_product<{.transposed = true,
                  .depth_factors = true,
                  .tile_columns = 256,
                  .tile_rows = 128,
                  .stages = 2}>(
      {.rows = 100, .columns = 256, .depth = 272, .w_scales = kChannel, .pad = 16});
}

TEST_F(HopperWeightOnlyTest, ANanIsOfItsColumn) {
  expect_product<{.tile_columns = 64, .tile_rows = 32, .warpgroups = 1, .stages = 2}>(
      {.rows = 18, .columns = 96, .depth = 256, .has_nan = true});
}

TEST_F(HopperWeightOnlyTest, OfGroupsOfRows) {
  expect_groups<{.tile_columns = 64,
                 .tile_rows = 32,
                 .warpgroups = 1,
                 .stages = 2,
                 .work = Work::kGroupedRows}>(
      {0, 3, 3, 70, 75},
      {.rows = 80, .columns = 80, .depth = 272, .w_scales = kChannel, .has_bias = true});
}

TEST_F(HopperWeightOnlyTest, OfMaskedRowsByBlocks) {
  expect_groups<{.x = kFloat16,
                 .out = kFloat32,
                 .w_blocks = true,
                 .tile_columns = 128,
                 .tile_rows = 64,
                 .stages = 2,
                 .work = Work::kMaskedRows}>(
      {40, 0, 7}, {.rows = 41, .columns = 128, .depth = 272, .w_scales = kBlock128x128});
}

TEST_F(HopperWeightOnlyTest, OfGradientsOfGroups) {
  expect_groups<{.transposed = true,
                 .depth_factors = true,
                 .tile_columns = 128,
                 .tile_rows = 64,
                 .stages = 2,
                 .work = Work::kGroupedRows}>(
      {0, 30, 65}, {.rows = 65, .columns = 144, .depth = 128, .w_scales = kChannel});
}

}  // namespace
}  // namespace octofold
