// The kernels of casts whose units' largest magnitudes are given, compiled for their GPU.
#include "plan/cast.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::CastSource;
using config::SourceKind;
using plan::CastProblem;
using enum Granularity;

constexpr std::array kInputs{DType::kFloat32, DType::kFloat16, DType::kBFloat16};

CastProblem problem_of(DType in, const config::CastRule& rule, Granularity granularity,
                       bool to_rows = true, bool to_transposed = true) {
  return {.rows = 1000,
          .cols = 1024,
          .format = {.in = in, .granularity = granularity, .rule = rule},
          .to_rows = to_rows,
          .to_transposed = to_transposed,
          .transposed_by_channel = granularity == kBlock1x128,
          .amax_given = true};
}

using NvrtcGivenAmaxTest = test::NvrtcTest<>;

// Divisions have kernels of their own, and so has a tensor both ways; they are the longest code.
TEST_F(NvrtcGivenAmaxTest, CompilesWithoutSpills) {
  test::Compiler compiler;
  for (const DType in : kInputs) {
    for (const Granularity granularity : {kTensor, kChannel}) {
      for (const auto& [rows, transposed] : {std::pair{true, false}, {false, true}, {true, true}}) {
        compiler.expect_sound(problem_of(in, config::kDeepSeekRule, granularity, rows, transposed));
      }
    }
    compiler.expect_sound(problem_of(in, config::kDeepSeekRule, kBlock1x128));
    compiler.expect_sound(problem_of(in, config::kTorchAoRule, kBlock1x128));
    for (const config::CastRule& rule : {config::kTorchAoRule, config::kCompressedTensorsRule}) {
      compiler.expect_sound(problem_of(in, rule, kTensor));
    }
    CastProblem unaligned = problem_of(in, config::kDeepSeekRule, kBlock1x128);
    unaligned.x_is_aligned = unaligned.codes_are_aligned = false;
    compiler.expect_sound(unaligned);
  }
}

// One read may serve more besides: columns in the kernel of codes, groups, stacks, sources.
TEST_F(NvrtcGivenAmaxTest, WhatIsBesideCompilesWithoutSpills) {
  test::Compiler compiler;
  for (const DType in : kInputs) {
    for (const config::CastRule& rule : {config::kTorchAoRule, config::kDeepSeekRule}) {
      CastProblem columns = problem_of(in, rule, kBlock1x128), groups = columns, stack = columns;
      columns.columns = {.sums = true, .amax = true};
      compiler.expect_sound(columns);
      groups.groups = 8;
      compiler.expect_sound(groups);
      stack.matrices = 4;
      compiler.expect_sound(stack);
    }
    const auto swiglu =
        CastSource::of(SourceKind::kActivationGradient, Activation::kSwiGlu, GateLayout::kHalves);
    for (const CastSource& source : {swiglu, CastSource{.kind = SourceKind::kGathered}}) {
      CastProblem problem = problem_of(in, config::kDeepSeekRule, kBlock1x128);
      problem.source = source;
      compiler.expect_sound(problem);
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
