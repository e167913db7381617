// What of products of groups reaches the GPU: parameters, tensor maps, and what no kernel takes.
#include "cuda/grouped_gemm.h"

#include <gmock/gmock.h>
#include <string>
#include <utility>

#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::cuda {
namespace {

using config::Work;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr octofold::Device kGpu{DeviceType::kCuda, 0};
constexpr config::CastFormat kFormat{};
constexpr int kGroups = 4;
constexpr const char* kTile = "128x128.w2.c1x1x1.b1.early";
constexpr const char* kSwappedTile = "64x16.swapped.w1.c1x1x1.b1";

// Addresses that nobody reads.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
const std::int32_t* const kNumbers = static_cast<const std::int32_t*>(address(0x9000));

// `scaled_rows`: those whose scales are there.
MutableScaledTensorView operand(Granularity granularity, std::int64_t rows,
                                std::int64_t scaled_rows, std::int64_t cols, std::uintptr_t data) {
  const MutableTensorView scale = scale_layout(granularity, scaled_rows, cols, DeviceType::kCuda)
                                      .view(address(data + 0x1000000));
  MutableScaledTensorView view{matrix(address(data), DType::kE4M3, rows, cols), scale, granularity};
  view.data.device = view.scale.device = kGpu;
  return view;
}

// As the checks leave it. n: b's rows of a group. kGroupedDepth: m of each group, k of all of them.
core::GroupedProduct product(Work work, std::int64_t m, std::int64_t n, std::int64_t k) {
  const bool in_depth = work == Work::kGroupedDepth;
  const std::int64_t out_rows = work == Work::kGroupedRows ? m : kGroups * m;
  const Granularity of_b = in_depth ? Granularity::kBlock1x128 : Granularity::kBlock128x128;
  MutableTensorView out = matrix(address(0x60000000), DType::kBFloat16, out_rows, n);
  out.device = kGpu;
  const std::int64_t a_rows = in_depth ? m : out_rows;
  return {.product = {.a = operand(Granularity::kBlock1x128, a_rows, a_rows, k, 0x10000000),
                      .b = operand(of_b, in_depth ? n : kGroups * n, n, k, 0x30000000),
                      .out = out},
          .groups = {.count = kGroups,
                     .numbers = kNumbers,
                     .scale_stride = in_depth ? 0 : (n + 127) / 128 * ((k + 127) / 128),
                     .expected_rows = in_depth ? k / kGroups : out_rows / kGroups,
                     .most_rows = in_depth ? k : m}};
}

class GroupedGemmTest : public FakeGpuTest {
 protected:
  void grouped_gemm(const core::GroupedProduct& grouped, Work work,
                    std::string_view candidate = {}) {
    cuda::grouped_gemm(runtime().device(0), grouped, work, {}, candidate);
  }
  const fake::Launch& last() { return state().launches.back(); }
  config::Sm90GemmParams last_params() { return last().params_as<config::Sm90GemmParams>(); }
  const fake::TensorMapCall& last_map() { return state().tensor_maps.back(); }
};

TEST_F(GroupedGemmTest, TheKernelGetsGroupsOfRows) {
  grouped_gemm(product(Work::kGroupedRows, 1000, 512, 640), Work::kGroupedRows, kTile);
  ASSERT_EQ(state().launches.size(), 1u);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);  // of all groups
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, kNumbers);
  EXPECT_EQ(params.columns.scale.data, address(0x31000000));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);
  EXPECT_EQ(params.rows.scale.group_stride, 0);
  EXPECT_EQ(params.out, address(0x60000000));
}

TEST_F(GroupedGemmTest, SwappedGroupsAreCountedInColumns) {
  grouped_gemm(product(Work::kGroupedRows, 1000, 500, 640), Work::kGroupedRows, kSwappedTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 500);
  EXPECT_EQ(params.work.columns, 1000);
  EXPECT_EQ(params.rows.data, address(0x30000000));
  EXPECT_EQ(params.rows.scale.group_stride, 4 * 5);
  EXPECT_EQ(params.columns.scale.group_stride, 0);
  EXPECT_EQ(params.last_rows, 56);  // 500 = 7 · 64 + 52: of each group's b
}

TEST_F(GroupedGemmTest, MaskedGroupsHaveRoomForAsManyRows) {
  grouped_gemm(product(Work::kMaskedRows, 250, 512, 640), Work::kMaskedRows, kTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 250);  // of one
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, kNumbers);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);
  EXPECT_EQ(state().tensor_maps[0].rows, 1000u);
  grouped_gemm(product(Work::kMaskedRows, 250, 512, 640), Work::kMaskedRows, kSwappedTile);
  EXPECT_EQ(last_params().work.columns, 250);
}

TEST_F(GroupedGemmTest, GroupsOfKEachHaveAResult) {
  grouped_gemm(product(Work::kGroupedDepth, 200, 512, 1280), Work::kGroupedDepth, kTile);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 200);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 1280);  // of all groups
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, kNumbers);
  EXPECT_EQ(params.columns.scale.group_stride, 0);
  EXPECT_EQ(params.last_rows, 72);  // each group has the same rows
  EXPECT_EQ(state().tensor_maps[0].rows, 200u);
  EXPECT_EQ(state().tensor_maps[1].rows, 512u);
  EXPECT_EQ(last_map().outer, kGroups * 200 + 1u);
}

// Any tile may be the last of a group: what it has of sub-tiles is loaded by 64 rows.
TEST_F(GroupedGemmTest, LastTilesOfGroupsAreLoadedBySubTiles) {
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows}) {
    const auto last_rows = [&](std::string_view candidate) {
      state().tensor_maps.clear();
      grouped_gemm(product(work, 1000, 512, 640), work, candidate);
      return last_params().last_rows;
    };
    EXPECT_EQ(last_rows("256x128.w2.c1x2x1.b1.early"), 64);
    EXPECT_EQ(last_rows(kTile), 64);
    ASSERT_EQ(state().tensor_maps.size(), 4u);
    EXPECT_EQ(state().tensor_maps[0].address, address(0x10000000));
    EXPECT_EQ(state().tensor_maps[0].box_rows, 128u);
    EXPECT_EQ(state().tensor_maps[2].address, address(0x10000000));
    EXPECT_EQ(state().tensor_maps[2].box_rows, 64u);
    EXPECT_EQ(last_rows("192x128.w3.c1x2x1.b1.ordered"), 0);  // a block loads 96 rows of a tile
    EXPECT_EQ(state().tensor_maps.size(), 3u);
  }
}

// D's begins so many rows before D that a box may end where a group does.
TEST_F(GroupedGemmTest, TensorMapsOfDCountRowsTwice) {
  core::GroupedProduct grouped = product(Work::kGroupedRows, 1000, 512, 640);
  grouped.product.out.strides[0] = 520;
  const auto expect_map = [&](std::string_view candidate, unsigned box_rows) {
    SCOPED_TRACE(candidate);
    grouped_gemm(grouped, Work::kGroupedRows, candidate);
    const std::uint64_t row_bytes = 520u * size_of(grouped.product.out.dtype);
    const fake::TensorMapCall& out = last_map();
    EXPECT_EQ(out.rank, 3);
    EXPECT_EQ(out.box_rows, box_rows);
    EXPECT_EQ(out.address, address(0x60000000 - box_rows * row_bytes));
    EXPECT_EQ(out.cols, 512u);
    EXPECT_EQ(out.rows, box_rows);
    EXPECT_EQ(out.outer, 1001u);
    EXPECT_EQ(out.row_bytes, row_bytes);
    EXPECT_EQ(out.outer_bytes, row_bytes);
  };
  expect_map(kTile, 128);
  EXPECT_EQ(state().tensor_maps[1].rank, 2);
  EXPECT_EQ(state().tensor_maps[1].rows, kGroups * 512u);
  expect_map(kSwappedTile, 16);
  grouped.product.out.dtype = DType::kFloat32;
  expect_map("256x128.w2.c1x1x1.b1.early", 16);  // in pieces
}

// In the boxes that D leaves from.
TEST_F(GroupedGemmTest, CComesByTmaWhereItIsAsked) {
  const std::string candidate = std::string(kTile) + ".onto_c";
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    core::GroupedProduct grouped = product(work, 1000, 512, 1280);
    grouped.product.out.dtype = DType::kFloat32;
    TensorView c = grouped.product.out;
    c.data = address(0x70000000);
    c.strides[0] = 528;
    grouped.product.c = c;
    grouped_gemm(grouped, work, candidate);
    const auto& maps = state().tensor_maps;
    const fake::TensorMapCall& out = maps[maps.size() - 2];
    EXPECT_EQ(last_map().address, address(0x70000000 - 128 * 528 * 4));
    EXPECT_EQ(last_map().row_bytes, 528u * 4);
    EXPECT_EQ(last_map().outer_bytes, 528u * 4);
    EXPECT_EQ(out.address, address(0x60000000 - 128 * 512 * 4));
    for (const fake::TensorMapCall& map : {out, last_map()}) {
      EXPECT_EQ(map.rank, 3);
      EXPECT_EQ(map.box_rows, 128u);
      EXPECT_EQ(map.box_cols, 32u);
      EXPECT_EQ(map.outer, static_cast<std::uint64_t>(grouped.product.out.shape[0]) + 1);
    }
    grouped.product.c->data = address(0x70000004);  // TMA cannot address it
    EXPECT_THAT(
        error_of([&] { grouped_gemm(grouped, work, candidate); }, ErrorCode::kInvalidArgument),
        AllOf(HasSubstr(kTile), Not(HasSubstr("onto_c,"))));
  }
}

TEST_F(GroupedGemmTest, UnalignedRowsAreCopiedByThreads) {
  core::GroupedProduct grouped = product(Work::kGroupedRows, 1000, 510, 640);
  grouped.product.a.data.data = address(0x10000001);
  grouped_gemm(grouped, Work::kGroupedRows);
  EXPECT_EQ(last_params().work.groups, kGroups);
  EXPECT_TRUE(state().tensor_maps.empty());
}

TEST_F(GroupedGemmTest, UnalignedGroupsOfKAreNamed) {
  const auto refusal = [&](auto&& spoil) {
    core::GroupedProduct grouped = product(Work::kGroupedDepth, 200, 512, 1280);
    spoil(grouped.product);
    return error_of([&] { grouped_gemm(grouped, Work::kGroupedDepth); }, ErrorCode::kUnsupported);
  };
  EXPECT_THAT(refusal([](auto& p) { p.a.data.data = address(0x10000008); }),
              AllOf(HasSubstr("grouped_gemm_k: argument 'a'"), HasSubstr("address")));
  EXPECT_THAT(refusal([](auto& p) { p.b.data.strides[0] = 1288; }),
              AllOf(HasSubstr("grouped_gemm_k: argument 'b'"), HasSubstr("row stride")));
  EXPECT_TRUE(state().launches.empty());
  EXPECT_EQ(refusal([](auto&) {}), "no error");
}

TEST_F(GroupedGemmTest, AProblemIsPreparedOnce) {
  core::GroupedProduct grouped = product(Work::kGroupedRows, 1000, 512, 640);
  for (int i = 0; i < 3; ++i) {
    grouped.groups.numbers = kNumbers + 8 * i;
    grouped_gemm(grouped, Work::kGroupedRows);
    EXPECT_EQ(last_params().work.numbers, grouped.groups.numbers);
  }
  EXPECT_EQ(compilations_, 1);
  grouped_gemm(product(Work::kMaskedRows, 250, 512, 640), Work::kMaskedRows);
  EXPECT_EQ(compilations_, 2);
  grouped_gemm(product(Work::kGroupedDepth, 200, 512, 1280), Work::kGroupedDepth);
  EXPECT_EQ(compilations_, 3);
}

TEST_F(GroupedGemmTest, NothingIsQueuedForAnEmptyResult) {
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth}) {
    grouped_gemm(product(work, 0, 512, 1280), work);
    grouped_gemm(product(work, 200, 0, 1280), work);
  }
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(GroupedGemmTest, ACandidateIsRunByItsName) {
  const auto run = [&](Work work, std::string_view candidate) {
    grouped_gemm(product(work, 1000, 512, 1280), work, candidate);
    return last().threads;
  };
  EXPECT_EQ(run(Work::kMaskedRows, kSwappedTile), 256u);
  EXPECT_EQ(run(Work::kMaskedRows, "256x128.w2.c1x2x1.b1.early"), 384u);
  EXPECT_EQ(last().cluster, 2u);
  for (const auto& [work, operation] : {std::pair{Work::kGroupedRows, "grouped_gemm"},
                                        {Work::kMaskedRows, "masked_gemm"},
                                        {Work::kGroupedDepth, "grouped_gemm_k"}}) {
    // A candidate of dense products alone: slices of K.
    EXPECT_THAT(
        error_of([&] { run(work, "64x16.swapped.w1.c1x1x2.b3"); }, ErrorCode::kInvalidArgument),
        AllOf(HasSubstr(std::string(operation) + ": argument 'candidate': expected one of"),
              HasSubstr(kSwappedTile), Not(HasSubstr("c1x1x2.b3,"))));
  }
}

// H [1000, 256].
class GroupedGatedGemmTest : public GroupedGemmTest {
 protected:
  GroupedGatedGemmTest() { grouped_.product.out = out_.data; }
  void gated_gemm(std::string_view candidate = {}) {
    cuda::grouped_gated_gemm(runtime().device(0), grouped_, out_, Activation::kSwiGlu, kFormat, {},
                             candidate);
  }

  core::GroupedProduct grouped_ = product(Work::kGroupedRows, 1000, 512, 640);
  MutableScaledTensorView out_ = operand(Granularity::kBlock1x128, 1000, 1000, 256, 0x70000000);
};

TEST_F(GroupedGatedGemmTest, TheKernelGetsTheArguments) {
  gated_gemm("128x128.w2.c2x1x1.b1.early");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 256);
  EXPECT_EQ(params.work.groups, kGroups);
  EXPECT_EQ(params.work.numbers, kNumbers);
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);  // of gates and ups
  EXPECT_EQ(params.last_rows, 64);
  EXPECT_EQ(params.out_scale.data, address(0x71000000));
  EXPECT_EQ(params.out_scale.row_stride, 1);
  EXPECT_EQ(params.out_scale.column_stride, 1000);
  EXPECT_EQ(last().cluster, 2u);
  ASSERT_EQ(state().tensor_maps.size(), 4u);
  EXPECT_EQ(state().tensor_maps[1].rows, kGroups * 512u);
  EXPECT_EQ(last_map().rank, 3);
  EXPECT_EQ(last_map().data_type, 0);  // bytes
  EXPECT_EQ(last_map().address, address(0x70000000 - 128 * 256));
  EXPECT_EQ(last_map().outer, 1001u);
}

TEST_F(GroupedGatedGemmTest, WhatNoKernelTakesIsNamed) {
  const auto refusal = [&] { return error_of([&] { gated_gemm(); }, ErrorCode::kUnsupported); };
  grouped_.product.a.data.data = address(0x10000008);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("grouped_gated_gemm: argument 'a'"), HasSubstr("address")));
  grouped_ = product(Work::kGroupedRows, 1000, 400, 640);
  out_ = operand(Granularity::kBlock1x128, 1000, 1000, 200, 0x70000000);
  grouped_.product.out = out_.data;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("argument 'b'"), HasSubstr("N = 200")));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(GroupedGatedGemmTest, AnUnknownCandidateIsToldWhichThereAre) {
  EXPECT_THAT(
      error_of([&] { gated_gemm("1x1"); }, ErrorCode::kInvalidArgument),
      AllOf(HasSubstr("grouped_gated_gemm: argument 'candidate'"), HasSubstr("128x128.w2.c2x1x1")));
}

}  // namespace
}  // namespace octofold::cuda
