// FP8 products by warpgroups, of groups too, kernel and all, run on the host beside sums in FP64.
#include "support/sm90_gemm_on_host.h"  // first: it has CUDA's types
//
#include <algorithm>

#include "support/gemm_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::ConsumerOrder;
using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;
using config::Work;
using test::GemmProblem;
using enum DType;
using enum Granularity;

class HopperGemmTest : public test::HopperGemm {
 protected:
  template <Sm90GemmConfig kConfig>
  void expect_product(GemmProblem problem, std::int64_t clusters = 0) {
    if (kConfig.load == OperandLoad::kTma) {
      problem.padding = config::round_up(problem.k, 16) - problem.k;
    }
    if (config::by_tma(kConfig.store)) {
      problem.out_padding = config::round_up(problem.n, 8) - problem.n + 8;
    }
    test::GemmProduct<kConfig.form> product(problem);
    run<kConfig>(product.product(), clusters);
    product.expect_right();
  }

  template <Sm90GemmConfig kConfig>
  void expect_groups(const test::Groups& given) {
    test::GemmProduct<kConfig.form, kConfig.work> product(given);
    run<kConfig>(product.product(), 2);
    product.expect_right();
  }
};

TEST_F(HopperGemmTest, InTurnsByBlocksThatStay) {
  expect_product<{.tile_columns = 64, .stages = 3, .order = ConsumerOrder::kPingPong}>(
      {.m = 200, .n = 136, .k = 400}, 2);
}

TEST_F(HopperGemmTest, AheadOfTheStage) {
  expect_product<{.form = {.a = {kE5M2, kBlock1x128},
                           .b = {kE4M3, kBlock1x128},
                           .out = kFloat32,
                           .bias = Addend::kFloat32},
                  .tile_columns = 32,
                  .wait_ahead = true}>({.m = 130, .n = 40, .k = 336});
}

// Each strip of 32 columns lies in a 128x128 of B; the second tile and the third touch two.
TEST_F(HopperGemmTest, TilesThatBeginWithinABlockOfScales) {
  expect_product<{.tile_columns = 96, .stages = 2}>({.m = 128, .n = 280, .k = 272});
}

TEST_F(HopperGemmTest, SwappedAndSplit) {
  expect_product<{.swapped = true,
                  .tile_rows = 64,
                  .tile_columns = 16,
                  .consumer_warpgroups = 1,
                  .split_k = 2}>({.m = 20, .n = 144, .k = 528});
}

TEST_F(HopperGemmTest, Multicast) {
  expect_product<{.form = {.a = {kE4M3, kChannel}, .b = {kE4M3, kChannel}},
                  .tile_columns = 64,
                  .stages = 2,
                  .cluster_rows = 2}>({.m = 300, .n = 72, .k = 272});
}

TEST_F(HopperGemmTest, TwoPartialSumsInTurn) {
  expect_product<{.form = {.c = Addend::kFloat32, .b_channel_scale = true},
                  .tile_columns = 64,
                  .store = OutputStore::kDirect,
                  .order = ConsumerOrder::kAlternating}>({.m = 128, .n = 70, .k = 656});
}

TEST_F(HopperGemmTest, OntoAPrefetchedC) {
  expect_product<{.form = {.out = kFloat32, .c = Addend::kFloat32},
                  .tile_columns = 64,
                  .stages = 3,
                  .store = OutputStore::kTmaPrefetchedC,
                  .boxes = 2}>({.m = 136, .n = 128, .k = 384}, 1);
}

TEST_F(HopperGemmTest, OfTensorScalesInTheTensorCore) {
  expect_product<{.form = {.a = {kE4M3, kTensor},
                           .b = {kE5M2, kTensor},
                           .out = kFloat16,
                           .bias = Addend::kOutputType,
                           .fast_accumulation = true},
                  .tile_columns = 128,
                  .stages = 2,
                  .store = OutputStore::kTmaSlabs}>({.m = 100, .n = 152, .k = 272});
}

// All rows at even places, and tiles of one slab and a half; every other row at an odd place;
// words.
TEST_F(HopperGemmTest, InSlabsThatWarpsCopy) {
  expect_product<{.tile_columns = 96, .stages = 2, .store = OutputStore::kSlabs}>(
      {.m = 150, .n = 133, .k = 272});
  expect_product<{.tile_columns = 128, .stages = 2, .store = OutputStore::kSlabs}>(
      {.m = 40, .n = 66, .k = 144, .out_padding = 1});
  expect_product<{.form = {.out = kFloat32, .c = Addend::kFloat32},
                  .tile_columns = 64,
                  .stages = 2,
                  .store = OutputStore::kSlabs}>({.m = 130, .n = 101, .k = 144});
}

// D is C: what the last slab of a tile wrote too much, the next tile would add to.
TEST_F(HopperGemmTest, CopiedSlabsEndWithTheirTile) {
  constexpr Sm90GemmConfig kConfig{.form = {.out = kFloat32, .c = Addend::kFloat32},
                                   .tile_columns = 48,
                                   .stages = 2,
                                   .store = OutputStore::kSlabs};
  test::GemmProduct<kConfig.form> problem({.m = 130, .n = 101, .k = 144, .padding = 0});
  core::Product product = problem.product();
  for (std::int64_t row = 0; row < product.out.shape[0]; ++row) {
    std::copy_n(static_cast<const float*>(product.c->data) + row * product.c->strides[0],
                product.out.shape[1],
                static_cast<float*>(product.out.data) + row * product.out.strides[0]);
  }
  product.c = product.out;
  run<kConfig>(product);
  problem.expect_right();
}

// Rows that TMA cannot address.
TEST_F(HopperGemmTest, ByThreads) {
  constexpr GemmForm kForm{.out = kFloat32};
  expect_product<{.form = kForm,
                  .tile_rows = 64,
                  .tile_columns = 32,
                  .consumer_warpgroups = 1,
                  .stages = 3,
                  .load = OperandLoad::kWords,
                  .store = OutputStore::kDirect}>({.m = 70, .n = 33, .k = 268, .offset = 4});
  expect_product<{.form = kForm,
                  .tile_rows = 64,
                  .tile_columns = 32,
                  .consumer_warpgroups = 1,
                  .stages = 2,
                  .load = OperandLoad::kThreads,
                  .store = OutputStore::kDirect}>(
      {.m = 65, .n = 40, .k = 267, .offset = 3, .padding = 1});
}

TEST_F(HopperGemmTest, GroupsOfRowsOneAfterAnother) {
  expect_groups<{.work = Work::kGroupedRows, .stages = 2}>(
      {.sizes = {70, 0, 1, 150, 3}, .room = 240, .n = 128, .k = 272});
}

// A block has more tiles, of one stage each, than the producer may be ahead of its consumers.
TEST_F(HopperGemmTest, MoreTilesThanArePassedAtOneTime) {
  expect_groups<{.work = Work::kGroupedRows,
                 .tile_rows = 64,
                 .tile_columns = 64,
                 .consumer_warpgroups = 1,
                 .stages = 12,
                 .wait_ahead = true}>(
      {.sizes = {1, 2, 0, 1, 70, 1}, .room = 80, .n = 256, .k = 16});
}

TEST_F(HopperGemmTest, MaskedRowsSwapped) {
  expect_groups<{.form = {.b = {kE4M3, kBlock1x128}},
                 .work = Work::kMaskedRows,
                 .swapped = true,
                 .tile_rows = 64,
                 .tile_columns = 16,
                 .consumer_warpgroups = 1,
                 .stages = 3}>({.sizes = {5, 0, 20}, .room = 24, .n = 72, .k = 144});
}

TEST_F(HopperGemmTest, GroupsOfTheDepth) {
  constexpr Sm90GemmConfig kConfig{.form = {.b = {kE5M2, kBlock1x128}, .out = kFloat32},
                                   .work = Work::kGroupedDepth,
                                   .tile_columns = 64};
  expect_groups<kConfig>({.sizes = {100, 0, 300, 128}, .m = 136, .n = 40});
  expect_groups<kConfig>(
      {.sizes = {128, 0, 384, 0}, .m = 136, .n = 40, .layout = GroupLayout::kTight});
}

}  // namespace
}  // namespace octofold
