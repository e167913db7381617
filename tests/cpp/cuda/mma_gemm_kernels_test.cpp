// The products by warps, compiled for their GPUs: no register leaves the register file, and tensor
// cores multiply FP8.
#include "jit/kernel_cache.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using plan::GemmProblem;

class MmaGemmKernelsTest : public test::NvrtcGpuTest {
 protected:
  void expect_sound(const config::MmaGemmConfig& config) const {
    const std::string description = plan::describe(config);
    const jit::Binary binary =
        jit::compile_cached({config.kHeader, plan::kernel_name(config.kKernel, config),
                             plan::architecture(gpu_), description},
                            kernel_headers());
    test::record_resources({.kernel = plan::kernel_name(config.kKernel, config),
                            .threads = config.threads(),
                            .shared_bytes = config.shared_bytes()},
                           binary.resources);
    EXPECT_EQ(binary.resources.spill_store_bytes, 0) << description;
    EXPECT_EQ(binary.resources.stack_bytes, 0) << description;
    EXPECT_EQ(binary.resources.shared_bytes, 0) << description;
    EXPECT_LE(binary.resources.registers, config.registers()) << description;
    using enum test::SassOperation;
    EXPECT_EQ(count_operations(binary.image, kLdl), 0) << description;
    EXPECT_EQ(count_operations(binary.image, kStl), 0) << description;
    // Four steps of K, each of all sub-tiles by all eights.
    EXPECT_EQ(count_operations(binary.image, kQmma),
              4 * config.sub_tiles() * config.warp_columns() / 8)
        << description;
  }

  void expect_planned_sound(const GemmProblem& problem) const {
    expect_sound(test::plan_as<config::MmaGemmConfig>(problem, gpu_).config);
  }

  void expect_all_sound(const GemmProblem& problem) const {
    for (const auto& [name, config] : test::candidates_as<config::MmaGemmConfig>(problem, gpu_)) {
      expect_sound(config);
    }
  }

  plan::Gpu gpu_ = plan::gpu_of(GetParam(), 100);
};

// What has most registers: all scales, C and bias. And what is used most.
TEST_P(MmaGemmKernelsTest, EveryTileCompilesWithoutSpills) {
  constexpr Operand kRows{.scales = Granularity::kBlock1x128};
  expect_all_sound({.product = {.form = {.a = kRows,
                                         .b = {.type = DType::kE5M2, .scales = kRows.scales},
                                         .out = DType::kFloat32,
                                         .c = Addend::kFloat32,
                                         .bias = Addend::kFloat32}}});
}

TEST_P(MmaGemmKernelsTest, TheLargestTileOfEachPairCompilesWithoutSpills) {
  using test::kGranularities;
  for (const Granularity a : kGranularities) {
    for (const Granularity b : kGranularities) {
      const GemmProblem problem{.product = {.m = 8192,
                                            .n = 8192,
                                            .k = 8192,
                                            .form = {.a = {.scales = a},
                                                     .b = {.scales = b},
                                                     .c = Addend::kOutputType,
                                                     .bias = Addend::kOutputType}}};
      expect_planned_sound(problem);
    }
  }
}

TEST_P(MmaGemmKernelsTest, EachLoadAndFormCompilesWithoutSpills) {
  GemmProblem problem{.product = {.m = 8192, .n = 8192, .k = 8192}};
  problem.product.form.b_channel_scale = true;
  expect_planned_sound(problem);
  problem.operands_fit_tma = false;
  expect_planned_sound(problem);
  problem.operands_fit_words = false;
  expect_planned_sound(problem);
  for (const Granularity scales : {Granularity::kTensor, Granularity::kChannel}) {
    expect_planned_sound({.product = {.m = 8192,
                                      .n = 8192,
                                      .k = 8192,
                                      .form = {.a = {DType::kE5M2, scales},
                                               .b = {DType::kE4M3, scales},
                                               .out = DType::kFloat16,
                                               .fast_accumulation = true}}});
  }
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, MmaGemmKernelsTest, testing::Values(89, 120), test::sm_name);

}  // namespace
}  // namespace octofold::cuda
