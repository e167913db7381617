// The kernels of the dot product, compiled for each architecture: no register leaves the register
// file.
#include <gtest/gtest.h>
#include <string>

#include "plan/dot.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"

namespace octofold::cuda {
namespace {

class DotKernelsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

TEST_P(DotKernelsTest, CompileWithoutSpills) {
  const plan::Gpu gpu = plan::gpu_of(GetParam(), 100);
  test::Compiler compiler(gpu);
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kBFloat16, DType::kFloat32}) {
      const plan::DotProblem problem{
          .size = 100'000, .a = a, .b = b, .a_blocks = true, .b_blocks = is_fp8(b)};
      compiler.expect_sound(plan_dot(problem, gpu).kernels);
    }
  }
  compiler.expect_sound(
      plan_dot({.size = 100, .a = DType::kFloat16, .is_aligned = false}, gpu).kernels);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, DotKernelsTest, testing::Values(75, 80, 86, 89, 90, 120),
                         [](const auto& target) { return "Sm" + std::to_string(target.param); });

}  // namespace
}  // namespace octofold::cuda
