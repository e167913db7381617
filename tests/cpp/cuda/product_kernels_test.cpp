// Every kernel of products that cast their A, of gated ones and of those of groups, compiled: each
// tiling, with what decides the shape of its code. What they share with dense ones
// gemm_kernels_test.cpp has.
#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using plan::GemmProblem;
using NvrtcDynamicGemmTest = test::NvrtcTest<>;
using NvrtcGatedGemmTest = test::NvrtcTest<>;
using NvrtcGroupedGemmTest = test::NvrtcTest<>;
using NvrtcArrivingGemmTest = test::NvrtcTest<>;
using test::expect_every_tiling_sound;
using enum Granularity;

void expect_planned_sound(const GemmProblem& problem) {
  test::expect_sound(test::sm90_plan(problem).config);
}

const GemmProblem kDynamic = test::cast_problem(16, 4096, 4096);

TEST_F(NvrtcDynamicGemmTest, EveryTilingCompilesWithoutSpills) {
  expect_every_tiling_sound(kDynamic);
}

// With what else takes registers: loads of single elements, quotients, a bias, sums that threads
// store.
TEST_F(NvrtcDynamicGemmTest, TheHeaviestOfEachSizeCompileWithoutSpills) {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    GemmProblem heavy = kDynamic;
    heavy.dynamic = {.exists = true,
                     .type = type,
                     .rule = config::kVllmPerTokenRule,
                     .power_of_two = true,
                     .saturate = false,
                     .vectors = false};
    heavy.product.form.a.type = DType::kE5M2;
    heavy.product.form.bias = Addend::kFloat32;
    heavy.output_fits_tma = false;
    for (const auto& [name, config] : test::sm90_candidates(heavy)) {
      if (config.blocks_per_multiprocessor > 2) test::expect_sound(config);
    }
  }
}

TEST_F(NvrtcDynamicGemmTest, EveryRuleCompilesWithoutSpills) {
  for (const config::CastRuleRow& row : config::kCastRules) {
    GemmProblem dynamic = kDynamic;
    dynamic.dynamic.rule = row.value;
    dynamic.dynamic.power_of_two = row.value.power_of_two_by_default;
    expect_planned_sound(dynamic);
  }
}

const GemmProblem kGated = test::gated_problem(4096, 4096, 4096);

TEST_F(NvrtcGatedGemmTest, EveryTilingCompilesWithoutSpills) {
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGluTanh,
                                      Activation::kGeGluErf, Activation::kSwiGluOss}) {
    GemmProblem gated = kGated;
    gated.gated.activation = activation;
    expect_every_tiling_sound(gated);
  }
}

TEST_F(NvrtcGatedGemmTest, EveryRuleCompilesWithoutSpills) {
  for (const config::CastRuleRow& row : config::kCastRules) {
    for (const bool power_of_two : {false, true}) {
      GemmProblem gated = kGated;
      gated.gated.rule = row.value;
      gated.gated.power_of_two = power_of_two;
      expect_planned_sound(gated);
    }
  }
}

TEST_F(NvrtcGatedGemmTest, EveryCombinationOfElementTypes) {
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      for (const DType out : {DType::kE4M3, DType::kE5M2}) {
        GemmProblem gated = kGated;
        gated.product.form.a.type = a;
        gated.product.form.b.type = b;
        gated.product.form.out = out;
        gated.gated.saturate = a == b;
        expect_planned_sound(gated);
      }
    }
  }
}

GemmProblem arriving(Granularity a = kBlock1x128, Granularity b = kBlock128x128,
                     DType out = DType::kBFloat16) {
  GemmProblem problem{.product = {.m = 8192, .n = 4096, .k = 4096}, .work = Work::kArrivingRows};
  problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .out = out};
  return problem;
}

TEST_F(NvrtcArrivingGemmTest, EveryTilingCompilesWithoutSpills) {
  expect_every_tiling_sound(arriving());
}

// The heaviest: a factor of each element, everything is added, by threads that read it.
TEST_F(NvrtcArrivingGemmTest, WithCAndBias) {
  for (const Granularity b : {kBlock1x128, kChannel}) {
    GemmProblem added = arriving(kBlock1x128, b, DType::kFloat32);
    added.product.form.c = added.product.form.bias = Addend::kFloat32;
    added.c_fits_tma = b == kChannel;
    expect_every_tiling_sound(added);
  }
}

TEST_F(NvrtcArrivingGemmTest, OperandsThatThreadsCopy) {
  for (const bool words : {true, false}) {
    GemmProblem copied = arriving(kChannel, kChannel);
    copied.operands_fit_tma = false;
    copied.operands_fit_words = words;
    expect_every_tiling_sound(copied);
  }
}

TEST_F(NvrtcArrivingGemmTest, SumsInTheTensorCore) {
  GemmProblem fast = arriving(kChannel, kChannel);
  fast.product.form.fast_accumulation = true;
  expect_planned_sound(fast);
}

GemmProblem grouped(Work work, Granularity a = kBlock1x128, Granularity b = kBlock128x128,
                    DType out = DType::kBFloat16) {
  GemmProblem problem = test::grouped_problem(work, 8192, 4096, 4096, 32, 256);
  problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .out = out};
  return problem;
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfRows) {
  expect_every_tiling_sound(grouped(Work::kGroupedRows));
}

TEST_F(NvrtcGroupedGemmTest, MaskedGroups) {
  expect_every_tiling_sound(grouped(Work::kMaskedRows));
}

// A's squares are read row by row; everything is added.
TEST_F(NvrtcGroupedGemmTest, GroupsOfRowsThatBeginWithinSquares) {
  GemmProblem added = grouped(Work::kGroupedRows, kBlock128x128, kBlock128x128, DType::kFloat32);
  added.product.form.c = added.product.form.bias = Addend::kFloat32;
  expect_every_tiling_sound(added);
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfRowsWhoseScalesAreConstant) {
  GemmProblem constant = grouped(Work::kGroupedRows, kChannel, kChannel);
  constant.product.form.fast_accumulation = true;
  constant.product.form.bias = Addend::kOutputType;
  expect_every_tiling_sound(constant);
}

TEST_F(NvrtcGroupedGemmTest, GroupsThatThreadsLoadOrStore) {
  GemmProblem unaligned = grouped(Work::kGroupedRows);
  for (const auto fits : {&GemmProblem::output_fits_tma, &GemmProblem::operands_fit_tma,
                          &GemmProblem::operands_fit_words}) {
    unaligned.*fits = false;
    expect_every_tiling_sound(unaligned);
  }
}

TEST_F(NvrtcGroupedGemmTest, GatedGroups) {
  GemmProblem gated = grouped(Work::kGroupedRows, kBlock1x128, kBlock128x128, DType::kE4M3);
  gated.gated.exists = true;
  expect_every_tiling_sound(gated);
}

TEST_F(NvrtcGroupedGemmTest, GroupsOntoC) {
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    GemmProblem onto_c = grouped(work, kBlock1x128, kBlock1x128, DType::kFloat32);
    onto_c.product.form.c = Addend::kOutputType;
    for (const auto& [name, config] : test::sm90_candidates(onto_c)) {
      if (config.prefetches_c()) test::expect_sound(config);
    }
  }
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfDepth) {
  for (const Granularity b : {kBlock1x128, kBlock128x128, kChannel}) {
    GemmProblem in_place = grouped(Work::kGroupedDepth, kBlock1x128, b, DType::kFloat32);
    in_place.product.form.c = Addend::kOutputType;
    in_place.c_is_out = true;
    expect_every_tiling_sound(in_place);
  }
  expect_every_tiling_sound(grouped(Work::kGroupedDepth, kTensor, kTensor));
}

}  // namespace
}  // namespace octofold::cuda
