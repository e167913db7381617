// Every way to cut D into tiles, with every pair of granularities, load and store, compiled for its
// GPU: no register leaves the register file, and FP8 tensor cores do the work.
#include "support/nvrtc.h"
#include "support/product_plans.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using plan::GemmProblem;
using test::expect_sound;

using Problems = std::map<std::string, GemmProblem>;

const std::pair<const char*, Granularity> kGranularities[] = {
    {"Tensor", Granularity::kTensor},
    {"Channel", Granularity::kChannel},
    {"1x128", Granularity::kBlock1x128},
    {"128x128", Granularity::kBlock128x128}};

// Problems with all that decides the shape of the code but for the epilogue.
Problems mainloops() {
  Problems problems;
  for (const auto& [a_name, a] : kGranularities) {
    for (const auto& [b_name, b] : kGranularities) {
      for (const bool fast : {false, true}) {
        if (fast && (varies_along_k(a) || varies_along_k(b))) continue;
        const std::string text = std::string(a_name) + "_" + b_name + (fast ? "_Fast" : "");
        GemmProblem problem;
        problem.product.form = {.a = {.scales = a}, .b = {.scales = b}, .fast_accumulation = fast};
        problems[text + "_Tma"] = problem;
        problems[text + "_DirectStores"] = problem;
        problems[text + "_DirectStores"].output_fits_tma = false;
        problems[text + "_Words"] = problem;
        problems[text + "_Words"].operands_fit_tma = false;
        problems[text + "_Threads"] = problems[text + "_Words"];
        problems[text + "_Threads"].operands_fit_words = false;
      }
    }
  }
  return problems;
}

// Each body once: mainloops differ in which scales vary along K, not in which are constant along
// it, and have the heaviest epilogue; the pairs that models use most have the lightest one too. The
// element types of A and B only change an instruction's name; NvrtcGemmTypesTest has all of them.
Problems problems() {
  Problems problems;
  for (auto [name, problem] : mainloops()) {
    const GemmForm& form = problem.product.form;
    const bool is_tma = problem.operands_fit_tma && problem.output_fits_tma;
    const bool is_usual =
        form.a.scales == form.b.scales ||
        (form.a.scales == Granularity::kBlock1x128 && varies_along_k(form.b.scales));
    if (is_tma && is_usual) {
      problems[name + "_Plain"] = problem;
      GemmProblem& added = problems[name + "_AddedInPlace"] = problem;
      added.product.form.out = DType::kFloat32;
      added.product.form.c = Addend::kOutputType;
      added.c_is_out = true;
    }
    if (form.a.scales == Granularity::kTensor || form.b.scales == Granularity::kTensor) continue;
    if (form.fast_accumulation && !is_tma) continue;
    // Direct stores change the epilogue alone, so not every mainloop needs them.
    if (problem.operands_fit_tma && !problem.output_fits_tma && !is_usual) continue;
    problem.product.form.a.type = DType::kE5M2;
    problem.product.form.c = problem.product.form.bias = Addend::kFloat32;
    if (!problem.output_fits_tma) problem.product.form.out = DType::kFloat32;
    problems[name + "_WithCAndBias"] = problem;
  }
  return problems;
}

class NvrtcGemmTest : public test::NvrtcTest<testing::TestWithParam<Problems::value_type>> {};

TEST_P(NvrtcGemmTest, EveryTilingCompilesWithoutSpills) {
  test::expect_every_tiling_sound(GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Problems, NvrtcGemmTest, testing::ValuesIn(problems()),
                         [](const auto& instance) { return instance.param.first; });

using NvrtcGemmOntoCTest = test::NvrtcTest<>;
// With a bias; _AddedInPlace has none.
TEST_F(NvrtcGemmOntoCTest, CompilesWithoutSpills) {
  for (const auto& [text, b] : kGranularities) {
    for (const bool fast : {false, true}) {
      if (fast && varies_along_k(b)) continue;
      GemmProblem problem;
      problem.product.form = {.a = {.scales = fast ? b : Granularity::kBlock1x128},
                              .b = {.scales = b},
                              .out = DType::kFloat32,
                              .c = Addend::kOutputType,
                              .bias = Addend::kFloat32,
                              .fast_accumulation = fast};
      for (const auto& [name, config] : test::sm90_candidates(problem)) {
        if (config.prefetches_c()) expect_sound(config);
      }
    }
  }
}

// All epilogues of all pairs: hours on one core. To be run by hand when the kernel changes.
class NvrtcGemmEpilogueTest : public NvrtcGemmTest {};

TEST_P(NvrtcGemmEpilogueTest, DISABLED_EveryKernelCompilesWithoutSpills) {
  GemmProblem problem = GetParam().second;
  constexpr std::array kAddends{Addend::kNone, Addend::kOutputType, Addend::kFloat32};
  for (const DType out : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const Addend c : kAddends) {
      for (const Addend bias : kAddends) {
        problem.product.form.out = out;
        problem.product.form.c = c;
        problem.product.form.bias = bias;
        for (const auto& [name, config] : test::sm90_candidates(problem)) {
          expect_sound(config);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mainloops, NvrtcGemmEpilogueTest, testing::ValuesIn(mainloops()),
                         [](const auto& instance) { return instance.param.first; });

using NvrtcGemmTwoLevelTest = test::NvrtcTest<>;
// The weight gradient of two-level scales: the planner's choice for many sizes, and the others.
TEST_F(NvrtcGemmTwoLevelTest, CompilesWithoutSpills) {
  GemmProblem problem{.product = {.m = 4096, .n = 14'336, .k = 16'384}};
  problem.product.form.b_channel_scale = true;
  expect_sound(test::sm90_plan(problem).config);
  problem.product.form.out = DType::kFloat32;
  problem.product.form.c = Addend::kOutputType;
  problem.c_is_out = true;
  for (const auto& [m, n] : {std::pair{4096, 14'336}, {8, 4096}, {256, 256}}) {  // swapped, slices
    problem.product.m = m;
    problem.product.n = n;
    expect_sound(test::sm90_plan(problem).config);
  }
  problem.c_is_out = false;
  problem.operands_fit_tma = problem.output_fits_tma = false;
  expect_sound(test::sm90_plan(problem).config);
}

using NvrtcGemmTypesTest = test::NvrtcTest<>;
TEST_F(NvrtcGemmTypesTest, EveryCombinationOfElementTypes) {
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      for (const DType out : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
        for (const Addend addend : {Addend::kOutputType, Addend::kFloat32}) {
          GemmProblem problem{.product = {.m = 256, .n = 256, .k = 256}};
          problem.product.form = {.a = {.type = a},
                                  .b = {b, Granularity::kBlock128x128},
                                  .out = out,
                                  .c = addend,
                                  .bias = addend};
          expect_sound(test::sm90_plan(problem).config);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
