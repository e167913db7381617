// FP8 products of groups by warpgroups, kernel and all, run on the host beside sums in FP64.
#include "support/sm90_gemm_on_host.h"  // first: it has CUDA's types
//
#include "support/groups_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::Sm90GemmConfig;
using config::Work;
using enum DType;
using enum Granularity;

class HopperGroupedGemmTest : public test::HopperGemm {
 protected:
  template <Sm90GemmConfig kConfig>
  void expect_groups(const test::Groups& given) {
    test::GroupedProduct<kConfig.form, kConfig.work> product(given);
    run<kConfig>(product.product(), 2);
    product.expect_right();
  }
};

TEST_F(HopperGroupedGemmTest, RowsOneAfterAnother) {
  expect_groups<{.work = Work::kGroupedRows, .stages = 2}>(
      {.sizes = {70, 0, 1, 150, 3}, .room = 240, .n = 128, .k = 272});
}

// A block has more tiles, of one stage each, than the producer may be ahead of its consumers.
TEST_F(HopperGroupedGemmTest, MoreTilesThanArePassedAtOneTime) {
  expect_groups<{.work = Work::kGroupedRows,
                 .tile_rows = 64,
                 .tile_columns = 64,
                 .consumer_warpgroups = 1,
                 .stages = 12,
                 .wait_ahead = true}>(
      {.sizes = {1, 2, 0, 1, 70, 1}, .room = 80, .n = 256, .k = 16});
}

TEST_F(HopperGroupedGemmTest, MaskedRowsSwapped) {
  expect_groups<{.form = {.b = {kE4M3, kBlock1x128}},
                 .work = Work::kMaskedRows,
                 .swapped = true,
                 .tile_rows = 64,
                 .tile_columns = 16,
                 .consumer_warpgroups = 1,
                 .stages = 3}>({.sizes = {5, 0, 20}, .room = 24, .n = 72, .k = 144});
}

TEST_F(HopperGroupedGemmTest, OfTheDepth) {
  constexpr Sm90GemmConfig kConfig{.form = {.b = {kE5M2, kBlock1x128}, .out = kFloat32},
                                   .work = Work::kGroupedDepth,
                                   .tile_columns = 64};
  expect_groups<kConfig>({.sizes = {100, 0, 300, 128}, .m = 136, .n = 40});
  expect_groups<kConfig>(
      {.sizes = {128, 0, 384, 0}, .m = 136, .n = 40, .layout = GroupLayout::kTight});
}

}  // namespace
}  // namespace octofold
