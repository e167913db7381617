// Groups of rows by the kernels of products with FP8 weights, run on the host, beside sums in
// FP64.
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

constexpr DType kNarrow = ptx::kHasAmpere ? kBFloat16 : kFloat16;

template <WeightOnlyConfig kConfig>
void run(test::WeightOnlyProduct<kConfig>& product, std::int64_t blocks) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const WeightOnlyParams params = cuda::weight_only_params(product.product(), 1);
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

// By fewer blocks than there are tiles, and by more.
template <WeightOnlyConfig kConfig>
void expect_product(const Numbers& numbers, const Case& problem) {
  for (const std::int64_t blocks : {2, 37}) {
    test::WeightOnlyProduct<kConfig> product(problem, numbers);
    run(product, blocks);
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
    run(product, 5);
  }
  constexpr WeightOnlyConfig kMasked = with(kFew, false, false, Work::kMaskedRows);
  test::WeightOnlyProduct<kMasked> product({.rows = 9, .columns = 20, .depth = 48},
                                           {kHigh, kLow, 10});
  run(product, 5);
}

}  // namespace
}  // namespace octofold
