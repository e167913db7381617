// Every kernel of gated products, compiled: each tiling, and with each activation, type of codes
// and rule of a cast.
#include <gtest/gtest.h>

#include "plan/gemm.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

plan::GemmProblem problem() {
  plan::GemmProblem problem{.product = {.m = 4096, .n = 4096, .k = 4096},
                            .gated = {.exists = true}};
  problem.product.form.out = DType::kE4M3;
  return problem;
}

class NvrtcGatedGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

TEST_F(NvrtcGatedGemmTest, EveryTilingCompilesWithoutSpills) {
  for (const Activation activation :
       {Activation::kSwiGlu, Activation::kGeGluTanh, Activation::kGeGluErf}) {
    plan::GemmProblem gated = problem();
    gated.gated.activation = activation;
    for (const auto& [name, config] : plan::gemm_candidates(gated, plan::kHopper)) {
      test::expect_sound(config);
    }
  }
}

TEST_F(NvrtcGatedGemmTest, EveryRuleCompilesWithoutSpills) {
  for (const config::CastRule& rule :
       {config::kDeepGemmRule, config::kVllmRule, config::kVllmPerTokenRule,
        config::kTransformerEngineRule, config::kTorchAoRule, config::kTorchAoTensorRule,
        config::kDeepSeekRule, config::kCompressedTensorsRule, config::kCompressedTensors012Rule}) {
    for (const bool power_of_two : {false, true}) {
      plan::GemmProblem gated = problem();
      gated.gated.rule = rule;
      gated.gated.power_of_two = power_of_two;
      test::expect_sound(plan::plan_gemm(gated, plan::kHopper).config);
    }
  }
}

TEST_F(NvrtcGatedGemmTest, EveryCombinationOfElementTypes) {
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      for (const DType out : {DType::kE4M3, DType::kE5M2}) {
        plan::GemmProblem gated = problem();
        gated.product.form.a.type = a;
        gated.product.form.b.type = b;
        gated.product.form.out = out;
        gated.gated.saturate = a == b;
        test::expect_sound(plan::plan_gemm(gated, plan::kHopper).config);
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
