// FP8 products of groups by warps, kernel and all, run on the host beside sums in FP64.
#include "support/mma_gemm_on_host.h"  // first: it has CUDA's types
//
#include "support/groups_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::MmaGemmConfig;
using config::Work;
using test::Groups;
using enum DType;
using enum Granularity;

// By a few blocks, whose next tile may be another group's.
template <MmaGemmConfig kConfig>
void expect_groups(const Groups& given, bool in_place = false, int blocks = 3) {
  SCOPED_TRACE(word(kConfig.work));
  test::GroupedProduct<kConfig.form, kConfig.work> product(given, in_place);
  test::run_mma_gemm<kConfig>(product.product(), blocks);
  product.expect_right();
}

// Two warps, which share A's rows out: of a group's last tile the second may have none.
constexpr MmaGemmConfig small(Work work, const GemmForm& form, int load_bytes = 16) {
  return {.form = form,
          .work = work,
          .tile_rows = 32,
          .tile_columns = 32,
          .row_warps = 2,
          .column_warps = 1,
          .stages = 2,
          .load_bytes = load_bytes};
}

const Groups kRows{.sizes = {34, 0, 1, 50, 3}, .room = 96, .n = 128, .k = 272};
const Groups kMasked{.sizes = {5, 0, 20, 33}, .room = 40, .n = 128, .k = 144};
const Groups kDepth{.sizes = {100, 0, 300, 128, 1}, .m = 40, .n = 36};

// A's squares begin anywhere in a group; B's with it.
TEST(MmaGroupedGemmTest, Rows) {
  expect_groups<small(Work::kGroupedRows, {.out = kFloat32})>(kRows);
  expect_groups<small(Work::kGroupedRows, {.out = kFloat32})>(kRows, false, 40);  // some find none
  expect_groups<small(Work::kGroupedRows, {.a = {kE5M2, kBlock128x128},
                                           .b = {kE4M3, kBlock1x128},
                                           .out = kFloat16,
                                           .c = Addend::kFloat32,
                                           .bias = Addend::kOutputType})>(kRows);
}

TEST(MmaGroupedGemmTest, RowsWhoseScalesAreConstant) {
  expect_groups<small(Work::kGroupedRows, {.a = {kE4M3, kChannel},
                                           .b = {kE4M3, kChannel},
                                           .out = kFloat32,
                                           .fast_accumulation = true})>(kRows);
  expect_groups<small(
      Work::kGroupedRows,
      {.a = {kE4M3, kTensor}, .b = {kE5M2, kTensor}, .out = kFloat32, .c = Addend::kOutputType})>(
      kRows, true);
}

TEST(MmaGroupedGemmTest, MaskedRows) {
  expect_groups<small(Work::kMaskedRows, {.out = kFloat32, .bias = Addend::kFloat32})>(kMasked);
  expect_groups<small(Work::kMaskedRows, {.a = {kE4M3, kBlock128x128}, .b = {kE4M3, kChannel}}, 4)>(
      kMasked);
}

TEST(MmaGroupedGemmTest, Depth) {
  constexpr Operand kLines{kE5M2, kBlock1x128};
  expect_groups<small(Work::kGroupedDepth, {.a = kLines, .b = kLines, .out = kFloat32})>(kDepth);
  expect_groups<small(
      Work::kGroupedDepth,
      {.a = kLines, .b = {kE4M3, kChannel}, .out = kFloat32, .c = Addend::kOutputType})>(kDepth,
                                                                                         true);
  expect_groups<small(Work::kGroupedDepth,
                      {.a = {kE4M3, kBlock128x128}, .b = kLines, .c = Addend::kFloat32}, 1)>(
      kDepth);
}

// Several sub-tiles and warps side by side, more stages than the ring has; a group's last tile,
// where it has fewer warps, is dealt out apart from whole ones.
TEST(MmaGroupedGemmTest, ATileOfThePlanner) {
  expect_groups<MmaGemmConfig{.work = Work::kGroupedRows,
                              .tile_rows = 64,
                              .tile_columns = 128,
                              .row_warps = 2,
                              .column_warps = 4,
                              .stages = 2}>(
      {.sizes = {70, 3, 55}, .room = 130, .n = 256, .k = 400});
}

TEST(MmaGroupedGemmTest, NumbersThatMakeNoSense) {
  constexpr auto kConfig = small(Work::kGroupedRows, {.out = kFloat32});
  const Groups given{.sizes = {10, 10, 10}, .room = 30, .n = 128, .k = 128};
  test::GroupedProduct<kConfig.form, kConfig.work> product(given);
  const std::vector<int> numbers{-5, 1 << 30, -(1 << 30), 40};
  core::Product wrong = product.product();
  wrong.groups.numbers = numbers.data();
  test::run_mma_gemm<kConfig>(wrong, 3);  // the first group has all rows
  product.expect_untouched_beside();
}

}  // namespace
}  // namespace octofold
