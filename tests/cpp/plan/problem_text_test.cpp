// Problems as texts: what is printed is what is parsed, and what is no text of one is named.
#include "plan/problem_text.h"

#include "core/format.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::Work;
using test::error_of;

std::string complete(std::string_view text) {
  return std::visit([](const auto& problem) { return text_of(problem); }, parse_problem(text));
}

GemmProblem product(std::string_view text) { return std::get<GemmProblem>(parse_problem(text)); }

TEST(ProblemTextTest, OfEachKindOfProduct) {
  const auto expect = [](const auto& problem, std::string_view text) {
    EXPECT_EQ(text_of(problem), text);
    EXPECT_EQ(complete(text), text);
    using Problem = std::remove_cvref_t<decltype(problem)>;
    EXPECT_EQ(std::get<Problem>(parse_problem(text)), problem) << text;
  };
  constexpr std::string_view kSizes = "m 64, n 256, k 512, a e4m3 1x128, b e4m3 128x128, out ";
  const auto of = [&](const GemmProblem& problem, std::string_view operation,
                      std::string_view rest) {
    expect(as_allocated(problem), core::format("{}: {}{}", operation, kSizes, rest));
  };
  GemmProblem dense{.product = {.m = 64, .n = 256, .k = 512}};
  of(dense, "gemm", "bfloat16");
  of(test::cast_problem(64, 256, 512), "gemm", "bfloat16, cast_from bfloat16");
  of(test::gated_problem(64, 256, 512), "gated_gemm", "e4m3, activation swiglu");
  of(test::grouped_problem(Work::kGroupedRows, 64, 256, 512, 4, 16), "grouped_gemm",
     "bfloat16, groups 4 of rows");
  of(test::grouped_problem(Work::kMaskedRows, 64, 256, 512, 4, 9), "grouped_gemm",
     "bfloat16, groups 4 of masked rows, expected 9");
  of(test::grouped_problem(Work::kGroupedDepth, 64, 256, 512, 4, 32), "grouped_gemm",
     "bfloat16, groups 4 of k");
  dense.product.form.out = DType::kFloat16;
  dense.product.form.c = Addend::kOutputType;
  dense.product.form.bias = Addend::kFloat32;
  dense.batch_invariant = true;
  of(dense, "gemm", "float16, c float16, bias float32, batch_invariant");
  dense = as_allocated(dense);
  dense.operands_fit_tma = dense.output_fits_tma = dense.c_fits_tma = false;
  expect(dense, core::format("gemm: {}float16, c float16, bias float32, batch_invariant, "
                             "operands_unaligned, out_unaligned, c_unaligned",
                             kSizes));
  const WeightOnlyProblem weights{
      .rows = 32, .columns = 4096, .depth = 4096, .w_scales = Granularity::kChannel};
  expect(as_allocated(weights),
         "gemm_weight_only: m 32, n 4096, k 4096, x bfloat16, w e4m3 channel, out bfloat16");
  expect(as_allocated(WeightOnlyProblem{.rows = 32,
                                        .columns = 64,
                                        .depth = 128,
                                        .x = DType::kFloat16,
                                        .transposed = true,
                                        .w_scales = Granularity::kTensor,
                                        .work = Work::kGroupedRows,
                                        .groups = 8,
                                        .gathered = true}),
         "grouped_gemm_weight_only_gradient: m 32, n 64, k 128, x float16, w e4m3 tensor, "
         "out bfloat16, groups 8 of rows, gathered");
  WeightOnlyProblem blocks = as_allocated(WeightOnlyProblem{.rows = 3,
                                                            .columns = 64,
                                                            .depth = 128,
                                                            .x = DType::kE5M2,
                                                            .w_scales = Granularity::kBlock1x128,
                                                            .x_blocks = true});
  blocks.is_aligned = blocks.fits_tma = false;
  expect(blocks,
         "gemm_weight_only: m 3, n 64, k 128, x e5m2 1x128, w e4m3 1x128, out bfloat16, "
         "operands_unaligned");
}

TEST(ProblemTextTest, WhatIsLeftOutIsAsOftenAsNot) {
  EXPECT_EQ(complete("gemm: m 1, n 2, k 3"),
            "gemm: m 1, n 2, k 3, a e4m3 1x128, b e4m3 128x128, out bfloat16");
  EXPECT_EQ(complete("gemm: k 3, b e5m2, n 2, m 1"),
            "gemm: m 1, n 2, k 3, a e4m3 1x128, b e5m2 128x128, out bfloat16");
  EXPECT_EQ(complete("gated_gemm: m 1, n 2, k 3"),
            "gated_gemm: m 1, n 2, k 3, a e4m3 1x128, b e4m3 128x128, out e4m3, "
            "activation swiglu");
  EXPECT_EQ(complete("gemm_weight_only: m 1, n 2, k 3"),
            "gemm_weight_only: m 1, n 2, k 3, x bfloat16, w e4m3 128x128, out bfloat16");
  EXPECT_FALSE(product("gemm: m 1, n 64, k 3, c float32").c_fits_tma);
  EXPECT_TRUE(product("gemm: m 1, n 64, k 3, c bfloat16").c_fits_tma);
  EXPECT_EQ(product("grouped_gemm: m 70, n 2, k 3, groups 4 of masked rows").expected, 70);
  EXPECT_EQ(product("grouped_gemm: m 70, n 2, k 3, groups 4 of rows").expected, 18);
  EXPECT_EQ(product("gemm: m 1, n 2, k 3, arriving_rows").work, Work::kArrivingRows);
}

TEST(ProblemTextTest, WhatIsNoneIsNamed) {
  const std::pair<const char*, const char*> faults[] = {
      {"", "'operation': expected one of gemm, grouped_gemm, gated_gemm, gemm_weight_only, "},
      {"matmul: m 1", "'operation': expected one of gemm"},
      {"gemm", "'m': expected a whole number of at least 1, got none"},
      {"gemm: m y, n 1, k 1", "'m': expected a whole number of at least 1, got y"},
      {"gemm: m 0, n 1, k 1", "'m': expected a whole number of at least 1, got 0"},
      {"gemm: m 1, n 1x, k 1", "'n': expected a whole number of at least 1, got 1x"},
      {"gemm: m 1, n 1, k -1", "'k': expected a whole number of at least 0, got -1"},
      {"gemm: m 1, m 1, n 1, k 1", "'m 1': expected phrases that the operation has"},
      {"gemm: m 1, n 1, k 1, groups 2 of rows", "'groups 2 of rows': expected phrases"},
      {"gemm: m 1, n 1, k 1, a float32", "'a': expected one of e4m3, e5m2, got float32"},
      {"gemm: m 1, n 1, k 1, b e4m3 64x64",
       "'b': expected one of tensor, channel, 1x128, 128x128, got 64x64"},
      {"gemm: m 1, n 1, k 1, out e4m3",
       "'out': expected one of bfloat16, float16, float32, got e4m3"},
      {"gemm: m 1, n 1, k 1, c float16", "'c': expected one of bfloat16, float32, got float16"},
      {"gemm: m 1, n 1, k 1, fast_accumulation",
       "'fast_accumulation': expected tensor or channel scales of a and b beside it, got 1x128"},
      {"gemm: m 1, n 1, k 1, fast_accumulation yes",
       "'fast_accumulation': expected nothing behind it, got yes"},
      {"gated_gemm: m 1, n 1, k 1, activation silu",
       "'activation': expected one of swiglu, geglu-tanh, geglu, swiglu-oss, got silu"},
      {"grouped_gemm: m 1, n 1, k 1", "'groups': expected a number and 'of rows'"},
      {"grouped_gemm: m 1, n 1, k 1, groups 0 of rows",
       "'groups': expected a whole number of at least 1, got 0"},
      {"grouped_gemm: m 1, n 1, k 1, groups 2 of n", "got 2 of n"},
      {"grouped_gemm_weight_only: m 1, n 1, k 1", "'groups': expected a number and 'of rows' or"},
      {"grouped_gemm_weight_only: m 1, n 1, k 1, groups 2 of k", "got 2 of k"},
      {"grouped_gemm_weight_only: m 1, n 1, k 1, groups 2 of masked rows, gathered",
       "'gathered': expected groups 'of rows' beside it"},
      {"grouped_gemm_weight_only: m 1, n 1, k 1, groups 2 of rows, x float32",
       "'x': expected one of float16, bfloat16, got float32"},
      {"gemm_weight_only: m 1, n 1, k 1, x float16 1x128", "'x': expected one of e4m3, e5m2"}};
  for (const auto& [text, fault] : faults) {
    EXPECT_THAT(error_of([&] { parse_problem(text); }),
                AllOf(HasSubstr(core::format("problem '{}'", text)), HasSubstr(fault)));
  }
}

}  // namespace
}  // namespace octofold::plan
