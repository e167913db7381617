// Every kernel of gated products, compiled: each tiling, and with each activation, type of codes
// and rule of a cast.
#include <gtest/gtest.h>

#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

plan::GemmProblem problem() { return test::gated_problem(4096, 4096, 4096); }

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
    for (const auto& [name, config] : test::sm90_candidates(gated)) {
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
      test::expect_sound(test::sm90_plan(gated).config);
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
        test::expect_sound(test::sm90_plan(gated).config);
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
