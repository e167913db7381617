// What of a product reaches Hopper's kernel: parameters and tensor maps.
#include <gmock/gmock.h>
#include <string>

#include "octofold/error.h"

#include "plan/product_planner.h"
#include "support/product_fixture.h"

namespace octofold::cuda {
namespace {

using config::Work;
using test::address;
using test::grouped_product;
using test::kGpu;
using test::kGroups;
using test::product;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kTile = "128x128.w2.c1x1x1.b1.early";
constexpr const char* kSwappedTile = "64x16.swapped.w1.c1x1x1.b1";

void* scale_of(std::uintptr_t matrix) { return address(matrix + test::kToScale); }

class ProductParamsTest : public ProductTest {};

TEST_F(ProductParamsTest, TheKernelGetsTheArguments) {
  core::Product dense = product(1000, 512, 640);
  dense.a.data.strides[0] = 656;
  dense.c = matrix<const void>(address(test::kC), DType::kFloat32, 1000, 512, 520, kGpu);
  dense.bias = vector<const void>(address(test::kBias), DType::kBFloat16, 512, kGpu);
  int stream = 0;
  multiply(dense, {}, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(last().stream, &stream);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.rows.data, address(test::kA));
  EXPECT_EQ(params.columns.data, address(test::kB));
  EXPECT_EQ(params.rows.stride, 656);
  EXPECT_EQ(params.columns.stride, 640);
  EXPECT_EQ(params.rows.scale.data, scale_of(test::kA));
  EXPECT_EQ(params.rows.scale.row_stride, 1);
  EXPECT_EQ(params.rows.scale.k_stride, 1000);
  EXPECT_EQ(params.columns.scale.data, scale_of(test::kB));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.columns.scale.k_stride, 1);
  EXPECT_EQ(params.out, address(test::kOut));
  EXPECT_EQ(params.out_stride, 512);
  EXPECT_EQ(params.c, address(test::kC));
  EXPECT_EQ(params.c_stride, 520);
  EXPECT_EQ(params.bias, address(test::kBias));
}

TEST_F(ProductParamsTest, TensorMapsDescribeTheMatrices) {
  core::Product dense = product(1000, 512, 640);
  dense.a.data.strides[0] = 656;
  multiply(dense, kTile);
  ASSERT_EQ(maps().size(), 4u);
  const fake::TensorMapCall& a = maps()[0];
  EXPECT_EQ(a.address, address(test::kA));
  EXPECT_EQ(a.data_type, 0);  // bytes
  EXPECT_EQ(a.rank, 2);
  EXPECT_EQ(a.rows, 1000u);
  EXPECT_EQ(a.cols, 640u);
  EXPECT_EQ(a.row_bytes, 656u);
  EXPECT_EQ(a.box_cols, 128u);
  EXPECT_EQ(a.swizzle, 3);  // 128 bytes
  EXPECT_EQ(maps()[1].address, address(test::kB));
  EXPECT_EQ(maps()[1].rows, 512u);
  const fake::TensorMapCall& last_rows = maps()[2];
  EXPECT_EQ(last_rows.address, address(test::kA));
  EXPECT_EQ(last_rows.box_rows, 104u);  // 7 · 128 + 104
  EXPECT_EQ(last_params().last_rows, 104);
  const fake::TensorMapCall& out = maps()[3];
  EXPECT_EQ(out.address, address(test::kOut));
  EXPECT_EQ(out.data_type, 9);  // BFloat16
  EXPECT_EQ(out.row_bytes, 1024u);
  EXPECT_EQ(out.box_rows, 128u);
  EXPECT_EQ(16u << out.swizzle, out.box_cols * 2);
}

TEST_F(ProductParamsTest, SwappedOperandsChangePlacesButDDoesNot) {
  multiply(product(20, 512, 640), "64x16.swapped.w1.c1x1x2.b3");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.rows.data, address(test::kB));
  EXPECT_EQ(params.columns.data, address(test::kA));
  EXPECT_EQ(params.rows.scale.data, scale_of(test::kB));
  EXPECT_EQ(params.work.rows, 512);
  EXPECT_EQ(params.work.columns, 20);
  EXPECT_EQ(params.last_rows, 0);
  ASSERT_EQ(maps().size(), 3u);
  EXPECT_EQ(maps()[0].address, address(test::kB));
  EXPECT_EQ(maps()[0].box_rows, 64u);
  EXPECT_EQ(maps()[1].box_rows, 16u);
  const fake::TensorMapCall& out = maps()[2];
  EXPECT_EQ(out.rows, 20u);
  EXPECT_EQ(out.box_rows, 8u);  // each of two blocks stores half of the tile
  EXPECT_EQ(out.box_cols, 64u);
  EXPECT_EQ(last().cluster, 2u);
}

// b's, whichever side of the instruction b is.
TEST_F(ProductParamsTest, FactorsOfChannelsAreThoseOfB) {
  core::Product dense = product(20, 512, 640);
  dense.b.channel_scale = vector<const void>(address(0x7000), DType::kFloat32, 512, kGpu);
  for (const char* candidate : {"64x16.swapped.w1.c1x1x2.b3", kTile}) {
    multiply(dense, candidate);
    EXPECT_EQ(last_params().channel_scale, address(0x7000));
  }
  dense.b.channel_scale.reset();
  multiply(dense);
  EXPECT_EQ(last_params().channel_scale, nullptr);
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

TEST_F(ProductParamsTest, GroupsOfRows) {
  multiply(grouped_product(Work::kGroupedRows, 1000, 512, 640), kTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);  // of all groups
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, test::kNumbers);
  EXPECT_EQ(params.columns.scale.data, scale_of(test::kB));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);
  EXPECT_EQ(params.rows.scale.group_stride, 0);
  EXPECT_EQ(params.out, address(test::kOut));
}

TEST_F(ProductParamsTest, SwappedGroupsAreCountedInColumns) {
  multiply(grouped_product(Work::kGroupedRows, 1000, 500, 640), kSwappedTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 500);
  EXPECT_EQ(params.work.columns, 1000);
  EXPECT_EQ(params.rows.data, address(test::kB));
  EXPECT_EQ(params.rows.scale.group_stride, 4 * 5);
  EXPECT_EQ(params.columns.scale.group_stride, 0);
  EXPECT_EQ(params.last_rows, 56);  // 500 = 7 · 64 + 52: of each group's b
}

TEST_F(ProductParamsTest, MaskedGroupsHaveRoomForAsManyRows) {
  multiply(grouped_product(Work::kMaskedRows, 250, 512, 640), kTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 250);  // of one
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);
  EXPECT_EQ(maps()[0].rows, 1000u);
  multiply(grouped_product(Work::kMaskedRows, 250, 512, 640), kSwappedTile);
  EXPECT_EQ(last_params().work.columns, 250);
}

TEST_F(ProductParamsTest, GroupsOfKEachHaveAResult) {
  multiply(grouped_product(Work::kGroupedDepth, 200, 512, 1280), kTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 200);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 1280);  // of all groups
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.columns.scale.group_stride, 0);
  EXPECT_EQ(params.last_rows, 72);  // each group has the same rows
  EXPECT_EQ(maps()[0].rows, 200u);
  EXPECT_EQ(maps()[1].rows, 512u);
  EXPECT_EQ(maps().back().outer, kGroups * 200 + 1u);
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

TEST_F(ProductParamsTest, GatedProductsHaveScalesOfTheResult) {
  multiply(test::gated_product(1000, 512, 640), "128x128.w2.c2x1x1.b1.early");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.rows.scale.data, scale_of(test::kA));
  EXPECT_EQ(params.rows.scale.k_stride, 1000);
  EXPECT_EQ(params.columns.scale.data, scale_of(test::kB));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.out_scale.data, scale_of(test::kOut));
  EXPECT_EQ(params.out_scale.row_stride, 1);
  EXPECT_EQ(params.out_scale.column_stride, 1000);
  EXPECT_EQ(last().threads, 384u);
  EXPECT_EQ(last().cluster, 2u);
  ASSERT_EQ(maps().size(), 4u);
  EXPECT_EQ(maps()[1].address, address(test::kB));
  EXPECT_EQ(maps()[1].rows, 1024u);  // gates and ups
  EXPECT_EQ(maps()[1].box_rows, 64u);
  EXPECT_EQ(maps()[2].box_rows, 104u);  // the last rows of A
  const fake::TensorMapCall& out = maps()[3];
  EXPECT_EQ(out.address, address(test::kOut));
  EXPECT_EQ(out.data_type, 0);  // bytes
  EXPECT_EQ(out.rows, 1000u);
  EXPECT_EQ(out.cols, 512u);
  EXPECT_EQ(out.box_rows, 128u);
  EXPECT_EQ(out.box_cols, 128u);
  EXPECT_EQ(out.swizzle, 3);  // 128 bytes
}

TEST_F(ProductParamsTest, GatedGroups) {
  multiply(test::grouped_gated_product(1000, 256, 640), "128x128.w2.c2x1x1.b1.early");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 256);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, test::kNumbers);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);  // of gates and ups
  EXPECT_EQ(params.last_rows, 64);
  EXPECT_EQ(params.out_scale.data, scale_of(test::kOut));
  EXPECT_EQ(params.out_scale.row_stride, 1);
  EXPECT_EQ(params.out_scale.column_stride, 1000);
  EXPECT_EQ(last().cluster, 2u);
  ASSERT_EQ(maps().size(), 4u);
  EXPECT_EQ(maps()[1].rows, kGroups * 512u);
  EXPECT_EQ(maps().back().rank, 3);
  EXPECT_EQ(maps().back().data_type, 0);  // bytes
  EXPECT_EQ(maps().back().address, address(test::kOut - 128 * 256));
  EXPECT_EQ(maps().back().outer, 1001u);
}

TEST_F(ProductParamsTest, AnAThatIsCastHasNoTensorMap) {
  core::Product cast = test::cast_product(5, 1000, 640);
  cast.a.data.strides[0] = 704;
  cast.bias = vector<const void>(address(test::kBias), DType::kFloat32, 1000, kGpu);
  multiply(cast, "64x8.swapped.w1.c1x1x2.b2");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 5);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.columns.data, address(test::kA));
  EXPECT_EQ(params.columns.stride, 704);
  EXPECT_EQ(params.rows.scale.data, scale_of(test::kB));
  EXPECT_EQ(params.rows.scale.row_stride, 5);
  EXPECT_EQ(params.bias, address(test::kBias));
  EXPECT_EQ(last().threads, 384u);  // who multiplies, who loads, who casts
  EXPECT_EQ(last().cluster, 2u);
  EXPECT_EQ(last().blocks, 32u);
  ASSERT_EQ(maps().size(), 3u);
  EXPECT_EQ(maps()[0].address, address(test::kB));
  EXPECT_EQ(maps()[0].rows, 1000u);
  EXPECT_EQ(maps()[0].box_rows, 64u);
  EXPECT_EQ(maps()[1].address, address(test::kB));
  EXPECT_EQ(maps()[1].box_rows, 40u);  // the last rows of B
  EXPECT_EQ(maps()[2].address, address(test::kOut));
}

}  // namespace
}  // namespace octofold::cuda
