// Groups of rows with FP8 weights by warpgroups, kernel and all, run on the host beside sums in
// FP64.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/types.h"

#include "kernels/weight_only_sm90/kernel.h"
#include "support/grouped_weight_only_on_host.h"
#include "support/sm90_weight_only_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::Sm90WeightOnlyConfig;
using config::Work;
using enum DType;
using enum Granularity;

// By fewer blocks than there are tiles, and by more.
template <Sm90WeightOnlyConfig kConfig>
void expect_product(const test::GroupedCase& given) {
  static_assert(kConfig.invalid_reason() == nullptr);
  for (const std::int64_t blocks : {2, 9}) {
    test::GroupedWeightOnlyProduct<kConfig> product(given);
    const config::Sm90WeightOnlyParams params =
        test::sm90_params_of<kConfig>(product.params(), product.all_rows());
    ptx::shared.fill(0x7F);  // NaN of both formats
    test::launch(blocks, kConfig.threads(), [&] { weight_only_sm90_kernel<kConfig>(params); });
    product.expect_right();
    EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0x7F));
  }
}

TEST(HopperGroupedWeightOnlyTest, OfRows) {
  expect_product<{.tile_columns = 64,
                  .tile_rows = 32,
                  .warpgroups = 1,
                  .stages = 2,
                  .work = Work::kGroupedRows}>({.numbers = {0, 3, 3, 70, 75},
                                                .rows = 80,
                                                .columns = 80,
                                                .depth = 272,
                                                .w_scales = kChannel,
                                                .has_bias = true});
}

TEST(HopperGroupedWeightOnlyTest, OfMaskedRowsByBlocks) {
  expect_product<{.x = kFloat16,
                  .out = kFloat32,
                  .w_blocks = true,
                  .tile_columns = 128,
                  .tile_rows = 64,
                  .stages = 2,
                  .work = Work::kMaskedRows}>(
      {.numbers = {40, 0, 7}, .rows = 41, .columns = 128, .depth = 272, .w_scales = kBlock128x128});
}

TEST(HopperGroupedWeightOnlyTest, OfGradients) {
  expect_product<{.transposed = true,
                  .depth_factors = true,
                  .tile_columns = 128,
                  .tile_rows = 64,
                  .stages = 2,
                  .work = Work::kGroupedRows}>(
      {.numbers = {0, 30, 65}, .rows = 65, .columns = 144, .depth = 128, .w_scales = kChannel});
}

}  // namespace
}  // namespace octofold
