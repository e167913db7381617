// Parameters and tensor maps of products, as far as kernels on the host do not show them, which are
// run with them in tests/cpp/kernels/hopper_gemm_test.cpp: types, swizzles, and boxes of each size.

#include "plan/product.h"
#include "support/product_fixture.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using test::address;
using test::grouped_product;
using test::kGpu;
using test::kGroups;
using test::product;

constexpr const char* kTile = "128x128.w2.c1x1x1.b1.early";
constexpr const char* kSwappedTile = "64x16.swapped.w1.c1x1x1.b1";

class ProductParamsTest : public ProductTest {};

TEST_F(ProductParamsTest, TheKernelGetsThemOnItsStream) {
  int stream = 0;
  multiply(product(1000, 512, 640), {}, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(last().stream, &stream);
  EXPECT_EQ(last_params().out, address(test::kOut));
}

// Bytes have the type 0, and BF16 9; swizzles of 128 bytes are 3.
TEST_F(ProductParamsTest, TensorMapsDescribeTheMatrices) {
  core::Product dense = product(1000, 512, 640);
  dense.a.data.strides[0] = 656;
  multiply(dense, kTile);
  EXPECT_THAT(
      map_texts(),
      ElementsAre("a: 1000×640 of type 0, rows 656 bytes apart, boxes 128×128, swizzle 3",
                  "b: 512×640 of type 0, rows 640 bytes apart, boxes 128×128, swizzle 3",
                  // the last rows: 7 · 128 + 104
                  "a: 1000×640 of type 0, rows 656 bytes apart, boxes 104×128, swizzle 3",
                  "out: 1000×512 of type 9, rows 1024 bytes apart, boxes 128×64, swizzle 3"));
  EXPECT_EQ(last_params().last_rows, 104);
}

// plan/sm90/cost.h
TEST_F(ProductParamsTest, TilesComeInTheBandsThatSuitThem) {
  multiply(product(1000, 512, 640), kTile);
  EXPECT_FALSE(last_params().work.bands.of_columns);
  multiply(product(1000, 512, 640), "128x192.w2.c2x1x1.b1.early");
  EXPECT_TRUE(last_params().work.bands.of_columns);
}

TEST_F(ProductParamsTest, FP32LeavesInPiecesWhereTilesAreLarge) {
  core::Product dense = product(1000, 512, 640);
  dense.out.dtype = DType::kFloat32;
  const auto box_rows = [&](std::string_view candidate) {
    multiply(dense, candidate);
    const fake::TensorMapCall& map = maps().back();
    EXPECT_EQ(map.address, address(test::kOut));
    EXPECT_EQ(map.data_type, 7);  // FP32
    EXPECT_EQ(map.box_cols, 32u);
    return map.box_rows;
  };
  EXPECT_EQ(box_rows("256x128.w2.c1x1x1.b1.early"), 16u);
  EXPECT_EQ(box_rows("128x64.w2.c1x1x1.b1.early"), 128u);
}

TEST_F(ProductParamsTest, TmaAddsToAnFP32OutputThatIsC) {
  core::Product dense = product(1000, 512, 640);
  dense.out.dtype = DType::kFloat32;
  const auto adds = [&](const TensorView& c) {
    dense.c = c;
    const auto plan =
        plan::plan_product(plan::problem_of(dense), plan::kHopper, "128x64.w2.c1x1x1.b1.early");
    return std::get<config::Sm90GemmConfig>(plan.config).adds_in_place;
  };
  TensorView other = dense.out;
  EXPECT_TRUE(adds(other));
  other.strides[0] = 1024;
  EXPECT_FALSE(adds(other));
  other = dense.out;
  other.data = address(0x6000);
  EXPECT_FALSE(adds(other));
  dense.out.dtype = DType::kBFloat16;
  EXPECT_FALSE(adds(dense.out));
}

TEST_F(ProductParamsTest, RowsThatArrive) {
  core::Product arriving = product(1000, 512, 640);
  arriving.arrivals = {.flags = test::kNumbers, .shards = 4, .own = 3};
  multiply(arriving);
  EXPECT_THAT(refusal(arriving, kSwappedTile, ErrorCode::kInvalidArgument),
              HasSubstr("argument 'candidate'"));
  EXPECT_THAT(log_, Not(testing::Contains(HasSubstr("slower"))));
  // Any number of shards is the same kernel, another one than where all rows are there.
  const int compilations = compilations_;
  arriving.arrivals = {.flags = test::kNumbers, .shards = 8};
  multiply(arriving);
  EXPECT_EQ(compilations_, compilations);
  multiply(product(1000, 512, 640));
  EXPECT_EQ(compilations_, compilations + 1);
}

// Kernels for other GPUs do not wait.
TEST_F(ProductParamsTest, RowsThatArriveNeedHopper) {
  state().compute_major = 8;
  state().compute_minor = 9;
  core::Product arriving = product(1000, 512, 640);
  arriving.arrivals = {.flags = test::kNumbers, .shards = 4};
  EXPECT_THAT(refusal(arriving), HasSubstr("gemm: argument 'arrivals': expected a GPU of compute "
                                           "capability 9.0 (H100, H200), whose kernels wait"));
  EXPECT_TRUE(state().launches.empty());
}

// Any tile may be the last of a group: what it has of sub-tiles is loaded by 64 rows.
TEST_F(ProductParamsTest, LastTilesOfGroupsAreLoadedBySubTiles) {
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows}) {
    const auto last_rows = [&](std::string_view candidate) {
      maps().clear();
      multiply(grouped_product(work, 1000, 512, 640), candidate);
      return last_params().last_rows;
    };
    EXPECT_EQ(last_rows("256x128.w2.c1x2x1.b1.early"), 64);
    EXPECT_EQ(last().cluster, 2u);
    EXPECT_EQ(last().threads, 384u);
    EXPECT_EQ(last_rows(kTile), 64);
    ASSERT_EQ(maps().size(), 4u);
    EXPECT_EQ(maps()[0].address, address(test::kA));
    EXPECT_EQ(maps()[0].box_rows, 128u);
    EXPECT_EQ(maps()[2].address, address(test::kA));
    EXPECT_EQ(maps()[2].box_rows, 64u);
    EXPECT_EQ(last_rows("192x128.w3.c1x2x1.b1.ordered"), 0);  // a block loads 96 rows of a tile
    EXPECT_EQ(maps().size(), 3u);
  }
}

// D's begins so many rows before D that a box may end where a group does.
TEST_F(ProductParamsTest, TensorMapsOfGroupsCountRowsTwice) {
  core::Product grouped = grouped_product(Work::kGroupedRows, 1000, 512, 640);
  grouped.out.strides[0] = 520;
  const auto expect_map = [&](std::string_view candidate, unsigned box_rows) {
    SCOPED_TRACE(candidate);
    multiply(grouped, candidate);
    const std::uint64_t row_bytes = 520u * size_of(grouped.out.dtype);
    const fake::TensorMapCall& out = maps().back();
    EXPECT_EQ(out.rank, 3);
    EXPECT_EQ(out.box_rows, box_rows);
    EXPECT_EQ(out.address, address(test::kOut - box_rows * row_bytes));
    EXPECT_EQ(out.cols, 512u);
    EXPECT_EQ(out.rows, box_rows);
    EXPECT_EQ(out.outer, 1001u);
    EXPECT_EQ(out.row_bytes, row_bytes);
    EXPECT_EQ(out.outer_bytes, row_bytes);
  };
  expect_map(kTile, 128);
  EXPECT_EQ(maps()[1].rank, 2);
  EXPECT_EQ(maps()[1].rows, kGroups * 512u);
  expect_map(kSwappedTile, 16);
  grouped.out.dtype = DType::kFloat32;
  expect_map("256x128.w2.c1x1x1.b1.early", 16);  // in slabs
}

// In the boxes that D leaves from.
TEST_F(ProductParamsTest, CComesByTmaWhereItIsAsked) {
  const std::string candidate = std::string(kTile) + ".onto_c";
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    core::Product grouped = grouped_product(work, 1000, 512, 1280);
    grouped.out.dtype = DType::kFloat32;
    TensorView c = grouped.out;
    c.data = address(test::kC);
    c.strides[0] = 528;
    grouped.c = c;
    multiply(grouped, candidate);
    const fake::TensorMapCall& out = maps()[maps().size() - 2];
    EXPECT_EQ(maps().back().address, address(test::kC - 128 * 528 * 4));
    EXPECT_EQ(maps().back().row_bytes, 528u * 4);
    EXPECT_EQ(maps().back().outer_bytes, 528u * 4);
    EXPECT_EQ(out.address, address(test::kOut - 128 * 512 * 4));
    for (const fake::TensorMapCall& map : {out, maps().back()}) {
      EXPECT_EQ(map.rank, 3);
      EXPECT_EQ(map.box_rows, 128u);
      EXPECT_EQ(map.box_cols, 32u);
      EXPECT_EQ(map.outer, static_cast<std::uint64_t>(grouped.out.shape[0]) + 1);
    }
    grouped.c->data = address(test::kC + 4);  // TMA cannot address it
    EXPECT_THAT(refusal(grouped, candidate, ErrorCode::kInvalidArgument),
                AllOf(HasSubstr(kTile), Not(HasSubstr("onto_c,"))));
  }
}

TEST_F(ProductParamsTest, GatedProducts) {
  multiply(test::gated_product(1000, 512, 640), "128x128.w2.c2x1x1.b1.early");
  EXPECT_EQ(last().threads, 384u);
  EXPECT_EQ(last().cluster, 2u);
  EXPECT_THAT(
      map_texts(),
      ElementsAre("a: 1000×640 of type 0, rows 640 bytes apart, boxes 128×128, swizzle 3",
                  // gates and ups
                  "b: 1024×640 of type 0, rows 640 bytes apart, boxes 64×128, swizzle 3",
                  "a: 1000×640 of type 0, rows 640 bytes apart, boxes 104×128, swizzle 3",
                  "out: 1000×512 of type 0, rows 512 bytes apart, boxes 128×128, swizzle 3"));
}

}  // namespace
}  // namespace octofold::cuda
