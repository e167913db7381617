// Every kernel of products that cast their A, compiled: each tiling, with each type that is cast
// and rule of a cast.
#include <gtest/gtest.h>

#include "plan/gemm.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

plan::GemmProblem problem(DType type = DType::kBFloat16) {
  return {.product = {.m = 16, .n = 4096, .k = 4096}, .dynamic = {.exists = true, .type = type}};
}

class NvrtcDynamicGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

TEST_F(NvrtcDynamicGemmTest, EveryTilingCompilesWithoutSpills) {
  for (const auto& [name, config] : plan::gemm_candidates(problem(), plan::kHopper)) {
    test::expect_sound(config);
  }
}

// With what else takes registers: loads of single elements, quotients, a bias, sums that threads
// store.
TEST_F(NvrtcDynamicGemmTest, TheHeaviestOfEachSizeCompileWithoutSpills) {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    plan::GemmProblem heavy = problem(type);
    heavy.dynamic.vectors = false;
    heavy.dynamic.rule = config::kVllmRule;
    heavy.dynamic.power_of_two = true;
    heavy.dynamic.saturate = false;
    heavy.product.form.a.type = DType::kE5M2;
    heavy.product.form.bias = Addend::kFloat32;
    heavy.output_fits_tma = false;
    for (const auto& [name, config] : plan::gemm_candidates(heavy, plan::kHopper)) {
      if (config.blocks_per_multiprocessor > 2) test::expect_sound(config);
    }
  }
}

TEST_F(NvrtcDynamicGemmTest, EveryRuleCompilesWithoutSpills) {
  for (const config::CastRule& rule :
       {config::kDeepGemmRule, config::kVllmRule, config::kVllmPerTokenRule,
        config::kTransformerEngineRule, config::kTorchAoRule, config::kTorchAoTensorRule,
        config::kDeepSeekRule, config::kCompressedTensorsRule, config::kCompressedTensors012Rule}) {
    plan::GemmProblem dynamic = problem();
    dynamic.dynamic.rule = rule;
    dynamic.dynamic.power_of_two = rule.power_of_two_by_default;
    test::expect_sound(plan::plan_gemm(dynamic, plan::kHopper).config);
  }
}

}  // namespace
}  // namespace octofold::cuda
