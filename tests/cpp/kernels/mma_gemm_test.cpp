// FP8 products by warps, of groups too, kernel and all, run on the host by the parameters that
// src/cuda makes beside sums in FP64; gated ones beside the CPU backend.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cuda/params.h"
#include "kernels/mma/kernel.h"
#include "support/gemm_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::MmaGemmConfig;
using config::Work;
using test::Groups;
using enum DType;
using enum Granularity;

// By so many blocks.
template <MmaGemmConfig kConfig>
void run_kernel(const core::Product& product, std::int64_t blocks) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const config::GemmParams params = cuda::gemm_params(product, false);
  ptx::shared.fill(0xFF);
  test::launch(blocks, kConfig.threads(), [&] { mma_gemm_kernel<kConfig>(params); });
  EXPECT_TRUE(ptx::shared.is_filled_behind(kConfig.shared_bytes(), 0xFF));
}

template <MmaGemmConfig kConfig>
void expect_product(const test::GemmProblem& problem = {}, bool twice = false) {
  constexpr GemmForm kForm = kConfig.form;
  SCOPED_TRACE(testing::Message() << problem.m << "×" << problem.n << "×" << problem.k << ", "
                                  << name(kForm.a.scales) << " × " << name(kForm.b.scales));
  test::GemmProduct<kForm> product(problem);
  const auto run = [&] {
    run_kernel<kConfig>(product.product(),
                        config::ceil_divide(problem.m, kConfig.tile_rows) *
                            config::ceil_divide(problem.n, kConfig.tile_columns));
  };
  run();
  product.expect_right();
  if (!twice) return;
  const std::vector<std::uint8_t> before = product.out().bytes();
  run();
  EXPECT_EQ(product.out().bytes(), before) << "other bits the second time";
}

// Two warps, which share A's rows out.
constexpr MmaGemmConfig small(const GemmForm& form, int load_bytes = 4) {
  return {.form = form,
          .tile_rows = 32,
          .tile_columns = 32,
          .row_warps = 2,
          .column_warps = 1,
          .stages = 2,
          .load_bytes = load_bytes};
}

template <Granularity kA, Granularity kB>
void expect_pair() {
  expect_product<small({.a = {kE4M3, kA}, .b = {kE5M2, kB}, .out = kFloat32})>();
}

template <Granularity kA>
void expect_pairs() {
  expect_pair<kA, kTensor>();
  expect_pair<kA, kChannel>();
  expect_pair<kA, kBlock1x128>();
  expect_pair<kA, kBlock128x128>();
}

TEST(MmaGemmKernelTest, EveryPairOfGranularities) {
  expect_pairs<kTensor>();
  expect_pairs<kChannel>();
  expect_pairs<kBlock1x128>();
  expect_pairs<kBlock128x128>();
}

TEST(MmaGemmKernelTest, AddendsAndTypes) {
  constexpr Operand kE5{kE5M2, kChannel};
  expect_product<small({.a = kE5, .b = kE5, .c = Addend::kOutputType, .bias = Addend::kFloat32})>();
  expect_product<small({.a = kE5,
                        .b = {kE4M3, kBlock1x128},
                        .out = kFloat16,
                        .c = Addend::kFloat32,
                        .bias = Addend::kOutputType})>();
  expect_product<small({.out = kFloat32, .c = Addend::kOutputType, .bias = Addend::kOutputType})>();
}

TEST(MmaGemmKernelTest, SumsInTheTensorCore) {
  constexpr GemmForm kFast{
      .a = {kE4M3, kTensor}, .b = {kE4M3, kChannel}, .out = kFloat32, .fast_accumulation = true};
  expect_product<small(kFast)>();
}

// Whole tiles of the planner's kinds: several sub-tiles and columns to a warp, warps side by side,
// more stages than the ring has, scales of two blocks of columns.
TEST(MmaGemmKernelTest, TilesOfThePlanner) {
  constexpr GemmForm kForm{.out = kFloat32};
  expect_product<MmaGemmConfig{.form = kForm,
                               .tile_rows = 64,
                               .tile_columns = 64,
                               .row_warps = 2,
                               .column_warps = 2,
                               .stages = 2}>({.m = 64, .n = 70, .k = 400, .padding = 0});
  expect_product<MmaGemmConfig{.form = kForm,
                               .tile_rows = 16,
                               .tile_columns = 128,
                               .row_warps = 1,
                               .column_warps = 4,
                               .stages = 5}>({.m = 5, .n = 130, .k = 688, .padding = 16});
  expect_product<MmaGemmConfig{.form = kForm}>({.m = 100, .n = 120, .k = 144, .padding = 0});
}

TEST(MmaGemmKernelTest, ShortAndRagged) {
  constexpr MmaGemmConfig kBytes = small({.out = kFloat32}, 1);
  for (const int k : {0, 1, 127, 129}) {
    expect_product<kBytes>({.m = 1, .n = 33, .k = k, .offset = k % 16, .padding = 3});
    expect_product<kBytes>({.m = 33, .n = 1, .k = k, .offset = 5, .padding = 0});
  }
}

// Rows of 16 bytes that K does not fill.
TEST(MmaGemmKernelTest, UnitsThatEndWithK) {
  expect_product<small({.out = kFloat32}, 16)>({.k = 137, .padding = 7});
  expect_product<small({.out = kFloat32}, 4)>({.k = 140, .offset = 4, .padding = 8});
}

TEST(MmaGemmKernelTest, AnyStride) {
  expect_product<small({.out = kFloat32}, 1)>({.padding = 1, .reversed = true}, true);
  expect_product<small({.out = kFloat32}, 4)>({.padding = 0, .reversed = true, .one_row = true});
}

// ---- Groups.

// By a few blocks, whose next tile may be another group's.
template <MmaGemmConfig kConfig>
void expect_groups(const Groups& given, bool in_place = false, int blocks = 3) {
  SCOPED_TRACE(word(kConfig.work));
  test::GemmProduct<kConfig.form, kConfig.work> product(given, in_place);
  run_kernel<kConfig>(product.product(), blocks);
  product.expect_right();
}

// Two warps: of a group's last tile the second may have none.
constexpr MmaGemmConfig small(Work work, const GemmForm& form, int load_bytes = 16) {
  MmaGemmConfig config = small(form, load_bytes);
  config.work = work;
  return config;
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
  test::GemmProduct<kConfig.form, kConfig.work> product(given);
  const std::vector<int> numbers{-5, 1 << 30, -(1 << 30), 40};
  core::Product wrong = product.product();
  wrong.groups.numbers = numbers.data();
  run_kernel<kConfig>(wrong, 3);  // the first group has all rows
  product.out().expect_untouched_beside();
}

// ---- Gated ones.

constexpr int kColumns = 256;  // of H

constexpr MmaGemmConfig gated(Work work, int rows, int row_warps, Activation activation,
                              const config::CastRule& rule) {
  return {.form = {.out = activation == Activation::kGeGluTanh ? kE5M2 : kE4M3},
          .gated = {.exists = true, .activation = activation, .rule = rule},
          .work = work,
          .tile_rows = rows,
          .row_warps = row_warps,
          .column_warps = 4,
          .stages = 2};
}

template <MmaGemmConfig kConfig>
void expect_gated(const auto& problem) {
  test::GemmProduct<GemmForm{}, kConfig.work> product(problem);
  test::expect_gated_as_on_cpu(product.product(), kConfig.form.out, kColumns, kConfig.gated,
                               [](const auto& given) { run_kernel<kConfig>(given, 3); });
}

test::GemmProblem gates_and_ups(int rows) {
  return {.m = rows, .n = 2 * kColumns, .k = 144, .padding = 0, .out_padding = 0, .exact = true};
}

TEST(MmaGatedGemmTest, IsTheCastOfTheActivation) {
  using enum Activation;
  expect_gated<gated(Work::kDense, 64, 2, kSwiGlu, config::kDeepGemmRule)>(gates_and_ups(70));
  expect_gated<gated(Work::kDense, 16, 1, kGeGluTanh, config::kTorchAoRule)>(gates_and_ups(35));
  expect_gated<gated(Work::kDense, 32, 1, kGeGluErf, config::kCompressedTensorsRule)>(
      gates_and_ups(33));
}

// The last rows are of no group.
TEST(MmaGatedGemmTest, OfGroups) {
  constexpr auto kConfig =
      gated(Work::kGroupedRows, 32, 2, Activation::kSwiGlu, config::kDeepGemmRule);
  expect_gated<kConfig>(
      Groups{.sizes = {34, 0, 1, 17}, .room = 55, .n = 2 * kColumns, .k = 144, .exact = true});
}

}  // namespace
}  // namespace octofold
