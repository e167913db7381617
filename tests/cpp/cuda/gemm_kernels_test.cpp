// Every way to cut D into tiles, with every scaling, load and store, compiled for its GPU: no
// register leaves the register file, and FP8 tensor cores do the work.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>

#include "cuda/kernel_headers.h"
#include "jit/nvrtc.h"
#include "plan/gemm.h"
#include "support/nvrtc.h"
#include "support/sass.h"

namespace octofold::cuda {
namespace {

using config::Addend;
using config::Element;
using config::GemmConfig;
using config::GemmScaling;
using plan::GemmProblem;

// What decides the shape of the code, each with the lightest and the heaviest epilogue. The element
// types only change an instruction's name; NvrtcGemmTypesTest has all of them once.
std::map<std::string, GemmProblem> problems() {
  std::map<std::string, GemmProblem> problems;
  const auto add = [&](std::string name, GemmProblem problem) {
    problems.emplace(name + "_Plain", problem);
    problem.a = Element::kE5M2;
    problem.c = problem.bias = Addend::kFloat32;
    problems.emplace(name + "_WithCAndBias", problem);
  };
  const std::pair<const char*, GemmScaling> scalings[] = {
      {"Tensor", GemmScaling::kTensor},
      {"Channel", GemmScaling::kChannel},
      {"Block", GemmScaling::kBlock},
      {"BlockByBlock", GemmScaling::kBlockByBlock}};
  for (const auto& [name, scaling] : scalings) {
    const std::string text = name;
    add(text + "_Tma", {.scaling = scaling});
    add(text + "_Float32", {.out = Element::kFloat32, .scaling = scaling});
    add(text + "_Threads",
        {.scaling = scaling, .operands_fit_tma = false, .output_fits_tma = false});
    if (!config::has_block_scales(scaling)) {
      add(text + "_Fast", {.scaling = scaling, .fast_accumulation = true});
    }
  }
  return problems;
}

void expect_sound(const GemmConfig& config) {
  const std::string description = plan::describe(config);
  const jit::Binary binary = jit::compile({plan::kGemmHeader, plan::gemm_kernel_name(config),
                                           plan::architecture(plan::kHopper), description},
                                          kernel_headers());
  EXPECT_EQ(binary.resources.spill_store_bytes, 0) << description;
  EXPECT_EQ(binary.resources.stack_bytes, 0) << description;
  EXPECT_EQ(test::count_operations(binary.cubin, test::SassOperation::kLdl), 0) << description;
  EXPECT_EQ(test::count_operations(binary.cubin, test::SassOperation::kStl), 0) << description;
  // Four products of 32 values of K for each wave; the compiler unrolls the loop of small tiles.
  const int products = test::count_operations(binary.cubin, test::SassOperation::kQgmma);
  EXPECT_GE(products, 4 * config.waves()) << description;
  EXPECT_EQ(products % (4 * config.waves()), 0) << description;
  EXPECT_LE(binary.resources.registers, config.registers_at_start()) << description;
}

class NvrtcGemmTest : public testing::TestWithParam<std::pair<const std::string, GemmProblem>> {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
  }
};

TEST_P(NvrtcGemmTest, EveryTilingCompilesWithoutSpills) {
  for (const GemmConfig& config : plan::all_gemm_configs(GetParam().second)) expect_sound(config);
}

INSTANTIATE_TEST_SUITE_P(Problems, NvrtcGemmTest, testing::ValuesIn(problems()),
                         [](const auto& instance) { return instance.param.first; });

TEST(NvrtcGemmTypesTest, EveryCombinationOfElementTypes) {
  if (test::nvrtc_is_missing()) GTEST_SKIP();
  for (const Element a : {Element::kE4M3, Element::kE5M2}) {
    for (const Element b : {Element::kE4M3, Element::kE5M2}) {
      for (const Element out : {Element::kBFloat16, Element::kFloat16, Element::kFloat32}) {
        for (const Addend addend : {Addend::kOutputType, Addend::kFloat32}) {
          const GemmProblem problem{.m = 256,
                                    .n = 256,
                                    .k = 256,
                                    .a = a,
                                    .b = b,
                                    .out = out,
                                    .c = addend,
                                    .bias = addend};
          expect_sound(plan::plan_gemm(problem, plan::kHopper).config);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
