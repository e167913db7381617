// Every kernel of products of groups, compiled: each tiling, with the scales, outputs and addends
// that decide the shape of its code. What it shares with dense ones gemm_kernels_test.cpp has.
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

using config::Work;

class NvrtcGroupedGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

plan::GemmProblem problem(Work work, Granularity a, Granularity b, DType out = DType::kBFloat16) {
  plan::GemmProblem problem = test::grouped_problem(work, 8192, 4096, 4096, 32, 256);
  problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .out = out};
  return problem;
}

void expect_all_sound(const plan::GemmProblem& problem) {
  const auto candidates = test::sm90_candidates(problem);
  EXPECT_FALSE(candidates.empty());
  for (const auto& [name, config] : candidates) test::expect_sound(config);
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfRows) {
  expect_all_sound(
      problem(Work::kGroupedRows, Granularity::kBlock1x128, Granularity::kBlock128x128));
}

// A's squares are read row by row; everything is added.
TEST_F(NvrtcGroupedGemmTest, GroupsOfRowsThatBeginWithinSquares) {
  plan::GemmProblem added = problem(Work::kGroupedRows, Granularity::kBlock128x128,
                                    Granularity::kBlock128x128, DType::kFloat32);
  added.product.form.c = added.product.form.bias = Addend::kFloat32;
  expect_all_sound(added);
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfRowsWhoseScalesAreConstant) {
  plan::GemmProblem constant =
      problem(Work::kGroupedRows, Granularity::kChannel, Granularity::kChannel);
  constant.product.form.fast_accumulation = true;
  constant.product.form.bias = Addend::kOutputType;
  expect_all_sound(constant);
}

TEST_F(NvrtcGroupedGemmTest, GroupsThatThreadsLoadOrStore) {
  plan::GemmProblem unaligned =
      problem(Work::kGroupedRows, Granularity::kBlock1x128, Granularity::kBlock128x128);
  unaligned.output_fits_tma = false;
  expect_all_sound(unaligned);
  unaligned.operands_fit_tma = false;
  expect_all_sound(unaligned);
  unaligned.operands_fit_words = false;
  expect_all_sound(unaligned);
}

TEST_F(NvrtcGroupedGemmTest, MaskedGroups) {
  expect_all_sound(
      problem(Work::kMaskedRows, Granularity::kBlock1x128, Granularity::kBlock128x128));
}

TEST_F(NvrtcGroupedGemmTest, GatedGroups) {
  plan::GemmProblem gated = problem(Work::kGroupedRows, Granularity::kBlock1x128,
                                    Granularity::kBlock128x128, DType::kE4M3);
  gated.gated.exists = true;
  expect_all_sound(gated);
}

TEST_F(NvrtcGroupedGemmTest, GroupsOntoC) {
  for (const Work work : {Work::kGroupedRows, Work::kGroupedDepth}) {
    plan::GemmProblem onto_c = problem(work, Granularity::kBlock1x128, Granularity::kBlock1x128);
    onto_c.product.form.out = DType::kFloat32;
    onto_c.product.form.c = Addend::kOutputType;
    for (const auto& [name, config] : test::sm90_candidates(onto_c)) {
      if (config.prefetches_c()) test::expect_sound(config);
    }
  }
}

TEST_F(NvrtcGroupedGemmTest, GroupsOfDepth) {
  for (const Granularity b :
       {Granularity::kBlock1x128, Granularity::kBlock128x128, Granularity::kChannel}) {
    plan::GemmProblem in_place =
        problem(Work::kGroupedDepth, Granularity::kBlock1x128, b, DType::kFloat32);
    in_place.product.form.c = Addend::kOutputType;
    in_place.c_is_out = true;
    expect_all_sound(in_place);
  }
  expect_all_sound(problem(Work::kGroupedDepth, Granularity::kTensor, Granularity::kTensor));
}

}  // namespace
}  // namespace octofold::cuda
