// The products by warps, compiled for their GPUs: no register leaves the register file, and tensor
// cores multiply FP8.
#include "jit/kernel_cache.h"
#include "support/granularities.h"
#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/product_problems.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Work;
using plan::GemmProblem;

class MmaGemmKernelsTest : public test::NvrtcGpuTest {
 protected:
  void expect_sound(const config::MmaGemmConfig& config) const {
    const std::string description = plan::describe(config);
    const std::optional<jit::Binary> compiled =
        test::compiled({config.kHeader, plan::kernel_name(config.kKernel, config),
                        plan::architecture(gpu_), description});
    if (!compiled) return;
    const jit::Binary& binary = *compiled;
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
    EXPECT_EQ(count_operations(binary.image, kQmma), 4 * config.sub_tiles() * config.eights())
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

// The form with most registers: all scales, C and bias.
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

GemmProblem grouped(Work work, Granularity a, Granularity b, DType out) {
  GemmProblem problem = test::grouped_problem(work, 8192, 4096, 4096, 32, 256);
  problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .out = out};
  return problem;
}

// Everything is added.
TEST_P(MmaGemmKernelsTest, EveryTileOfGroupsCompilesWithoutSpills) {
  using enum Granularity;
  for (const Work work : {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth}) {
    GemmProblem added = grouped(work, kBlock1x128, kBlock1x128, DType::kFloat32);
    if (work != Work::kMaskedRows) added.product.form.c = Addend::kFloat32;
    if (work != Work::kGroupedDepth) added.product.form.bias = Addend::kFloat32;
    expect_all_sound(added);
  }
}

TEST_P(MmaGemmKernelsTest, TheLargestTileOfGroupsOfEachPairCompilesWithoutSpills) {
  using test::kGranularities;
  for (const Granularity a : kGranularities) {
    for (const Granularity b : kGranularities) {
      GemmProblem rows = grouped(Work::kGroupedRows, a, b, DType::kBFloat16);
      rows.product.form.c = rows.product.form.bias = Addend::kOutputType;
      expect_planned_sound(rows);
      expect_planned_sound(grouped(Work::kGroupedDepth, a, b, DType::kFloat32));
    }
  }
}

TEST_P(MmaGemmKernelsTest, EachLoadOfGroupsCompilesWithoutSpills) {
  GemmProblem rows = grouped(Work::kGroupedRows, Granularity::kBlock128x128,
                             Granularity::kBlock128x128, DType::kFloat16);
  expect_planned_sound(rows);
  for (const auto fits : {&GemmProblem::operands_fit_tma, &GemmProblem::operands_fit_words}) {
    rows.*fits = false;
    expect_planned_sound(rows);
  }
  GemmProblem fast =
      grouped(Work::kGroupedRows, Granularity::kChannel, Granularity::kChannel, DType::kBFloat16);
  fast.product.form.fast_accumulation = true;
  expect_planned_sound(fast);
}

TEST_P(MmaGemmKernelsTest, EveryGatedTileCompilesWithoutSpills) {
  using enum Activation;
  for (const Activation activation : {kSwiGlu, kGeGluTanh, kGeGluErf}) {
    GemmProblem gated = test::gated_problem(4096, 4096, 4096);
    gated.gated.activation = activation;
    expect_all_sound(gated);
  }
  GemmProblem of_groups = test::gated_problem(8192, 2048, 4096);
  of_groups.work = Work::kGroupedRows;
  of_groups.groups = 32, of_groups.expected = 256;
  expect_all_sound(of_groups);
}

TEST_P(MmaGemmKernelsTest, EveryRuleOfGatedTilesCompilesWithoutSpills) {
  for (const config::CastRule& rule : {config::kDeepSeekRule, config::kTorchAoRule,
                                       config::kDeepSeekRule, config::kCompressedTensorsRule}) {
    for (const DType out : {DType::kE4M3, DType::kE5M2}) {
      GemmProblem gated = test::gated_problem(4096, 4096, 4096);
      gated.product.form.b.type = gated.product.form.out = out;
      gated.gated.rule = rule;
      gated.gated.power_of_two = out == DType::kE5M2;
      gated.gated.saturate = out == DType::kE4M3;
      expect_planned_sound(gated);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, MmaGemmKernelsTest, testing::Values(89, 120), test::sm_name);

}  // namespace
}  // namespace octofold::cuda
