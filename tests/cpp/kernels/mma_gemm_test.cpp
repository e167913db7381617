// The products by warps, run on the host, beside sums in FP64.
#include "support/mma_gemm_on_host.h"  // first: it has CUDA's types
//
#include "support/gemm_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::MmaGemmConfig;
using enum DType;
using enum Granularity;

template <MmaGemmConfig kConfig>
void expect_product(const test::GemmProblem& problem = {}, bool twice = false) {
  constexpr GemmForm kForm = kConfig.form;
  SCOPED_TRACE(testing::Message() << problem.m << "×" << problem.n << "×" << problem.k << ", "
                                  << name(kForm.a.scales) << " × " << name(kForm.b.scales));
  test::GemmProduct<kForm> product(problem);
  const auto run = [&] {
    test::run_mma_gemm<kConfig>(product.product(),
                                config::ceil_divide(problem.m, kConfig.tile_rows) *
                                    config::ceil_divide(problem.n, kConfig.tile_columns));
  };
  run();
  product.expect_right();
  if (!twice) return;
  const std::vector<unsigned char> before = product.out();
  run();
  EXPECT_EQ(product.out(), before) << "other bits the second time";
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
  expect_product<small({.out = kFloat32,
                        .c = Addend::kOutputType,
                        .bias = Addend::kOutputType,
                        .b_channel_scale = true})>();
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

}  // namespace
}  // namespace octofold
