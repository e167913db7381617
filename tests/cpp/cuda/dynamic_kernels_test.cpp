// Every kernel of products that cast their A, compiled: each tiling, with each type that is cast
// and rule of a cast.
#include <gtest/gtest.h>

#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

plan::GemmProblem problem(DType type = DType::kBFloat16) {
  plan::GemmProblem problem = test::cast_problem(16, 4096, 4096);
  problem.dynamic.type = type;
  return problem;
}

class NvrtcDynamicGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

TEST_F(NvrtcDynamicGemmTest, EveryTilingCompilesWithoutSpills) {
  for (const auto& [name, config] : test::sm90_candidates(problem())) {
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
    for (const auto& [name, config] : test::sm90_candidates(heavy)) {
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
    test::expect_sound(test::sm90_plan(dynamic).config);
  }
}

}  // namespace
}  // namespace octofold::cuda
