// The kernels of casts and conversions, from the problems that take most registers. Float16 differs
// from bfloat16 in a conversion, so it is rarer.
#pragma once

#include "support/cast_problems.h"
#include "support/sound_kernel.h"

namespace octofold::test::casts {

constexpr std::array kInputs{kFloat32, kFloat16, kBFloat16};
constexpr std::array kTwoInputs{kFloat32, kBFloat16};
// The other type of 16 bits takes its place where nothing is aligned.
constexpr DType other(DType in) { return in == kBFloat16 ? kFloat16 : in; }
constexpr std::array kBools{false, true};

// Scales of rows: rows that a warp, 256 threads, 512, a cluster and none of them holds.
inline void add_widths(Kernels& kernels, const Cast& cast) {
  const bool has_row_kernels = cast.format.granularity == kChannel && !cast.to_transposed;
  kernels.add(cast.of(512));
  if (has_row_kernels) {
    for (const std::int64_t cols : {7168, 28'672, 100'000, 500'000}) kernels.add(cast.of(cols));
  }
  kernels.add(cast.of(has_row_kernels ? 500'000 : 512).of_given_scales());
}

// One rule of each form, the one whose logarithm needs FP64 among them. Types of codes and overflow
// change a few instructions, so they take turns.
inline void add_plain(Kernels& kernels, Granularity granularity, bool to_rows, bool to_transposed) {
  bool turn = false;
  for (const auto& [aligned, in] : combinations(std::array{true, false}, kInputs)) {
    if (!aligned && in == kFloat16) continue;
    for (const CastRule& rule :
         {kVllmTritonRule, kDeepGemmRule, kTorchAoRule, kCompressedTensorsRule}) {
      // The largest of the first three will do, and the divisions of the last, the longest code.
      const bool is_last = rule == kCompressedTensorsRule;
      const bool is_largest = rule.arithmetic == config::CastArithmetic::kDivide;
      if ((!aligned || in == kFloat16) && !is_largest && !is_last) continue;
      turn ^= !is_last;
      Cast cast(in, granularity, rule);
      cast.format.power_of_two = turn;
      cast.format.saturate = !turn;
      cast.format.out = turn ? kE5M2 : kE4M3;
      cast.to_rows = to_rows;
      cast.to_transposed = to_transposed;
      cast.x_is_aligned = cast.codes_are_aligned = aligned;
      add_widths(kernels, cast);
      if (to_transposed && aligned) kernels.add(cast.with([](Cast& odd) { odd.rows = 250; }));
    }
  }
}

// Scales of other kinds in the transpose, by a cluster and by four kernels; and columns that are
// reduced beside what takes most registers.
inline void add_options(Kernels& kernels) {
  for (const DType in : kInputs) {
    for (const CastRule& rule : {kVllmTritonRule, kTorchAoRule}) {
      const Cast cast(in, kBlock1x128, rule), beside = cast.beside(kChannel);
      kernels.add(beside);
      kernels.add(beside.with([](Cast& larger) { larger.rows = 2048; }));
      kernels.add(cast.reducing(kAmax));
    }
    kernels.add(Cast(in, kBlock1x128).reducing(kBoth));
    kernels.add(Cast(in, kBlock1x128, kDeepGemmRule, kSwiGluGradient).reducing(kSums));
  }
  kernels.add(Cast(kBFloat16, kBlock128x128).reducing(kSums));
  kernels.add(Cast(kBFloat16, kChannel).reducing(kSums).transposed_alone());
  kernels.add(Cast(kBFloat16, kTensor).reducing(kBoth));
  kernels.add(Cast(kFloat16, kBlock1x128).reducing(kBoth).unaligned());
}

// One choice will do of all that a source changes nothing in (rules, wide rows).
inline void add_activations(Kernels& kernels, SourceKind kind) {
  using enum Activation;
  using enum GateLayout;
  const auto cast = [&](DType in, Granularity granularity, Activation activation,
                        GateLayout layout = kHalves) {
    return Cast(in, granularity, kDeepGemmRule, CastSource::of(kind, activation, layout));
  };
  for (const Activation activation :
       {kSwiGlu, kGeGluTanh, kGeGluErf, kSwiGluOss, kSilu, kGelu, kGeluTanh, kReluSquared}) {
    kernels.add(cast(kBFloat16, kBlock1x128, activation));
  }
  for (const Granularity granularity : kGranularities) {
    kernels.add(cast(kBFloat16, granularity, kSwiGlu).of(7168).to_rows_alone());
    kernels.add(cast(kFloat16, granularity, kSwiGlu, kInterleaved));
    kernels.add(cast(kFloat32, granularity, kSwiGlu).transposed_alone());
    kernels.add(cast(kBFloat16, granularity, kGeGluErf).of(7168).to_rows_alone().unaligned());
  }
  kernels.add(cast(kFloat32, kBlock1x128, kGeGluErf, kInterleaved).unaligned());
  kernels.add(cast(kFloat16, kBlock1x128, kGeGluTanh).unaligned());
}

// The kernels take x in FP8: each way in which its pieces lie, and each unit of its scales.
inline void add_activations_of_fp8(Kernels& kernels, SourceKind kind) {
  using enum Activation;
  using enum GateLayout;
  const auto cast = [&](DType in, Granularity granularity, Activation activation, GateLayout layout,
                        Granularity of_x, const CastRule& rule = kDeepGemmRule) {
    return Cast(in, granularity, rule,
                CastSource::of(kind, activation, layout).of_codes(kE4M3, of_x));
  };
  kernels.add(cast(kBFloat16, kBlock1x128, kSwiGlu, kHalves, kBlock1x128));
  kernels.add(cast(kFloat32, kBlock1x128, kGeGluErf, kInterleaved, kBlock128x128));
  kernels.add(cast(kFloat16, kBlock128x128, kGeGluErf, kInterleaved, kChannel));
  kernels.add(cast(kFloat16, kBlock1x128, kGelu, kHalves, kTensor).transposed_alone());
  // Halves that no tile takes together; no vectors.
  kernels.add(cast(kFloat32, kBlock1x128, kGeGluTanh, kHalves, kBlock1x128).of(7168 + 16));
  kernels.add(cast(kBFloat16, kBlock1x128, kSwiGlu, kHalves, kBlock1x128).unaligned());
  // The fewest registers for the longest code.
  for (const CastRule& rule : {kVllmTritonRule, kCompressedTensorsRule}) {
    kernels.add(
        cast(kFloat16, kBlock1x128, kSwiGlu, kInterleaved, kBlock1x128, rule).to_rows_alone());
  }
  Cast rows = cast(kBFloat16, kChannel, kSwiGlu, kHalves, kBlock1x128).of(7168).to_rows_alone();
  rows.source.codes = kE5M2;
  kernels.add(rows);
}

inline void add_conversions(Kernels& kernels) {
  plan::ConvertProblem problem{.rows = 64, .cols = 4096};
  for (int in = 0; in < 5; ++in) {
    for (int out = 0; out < 5; ++out) {
      problem.in = static_cast<DType>(in);
      problem.out = static_cast<DType>(out);
      problem.saturate = in % 2 == 0;
      problem.is_aligned = (in + out) % 2 == 0;
      kernels.add(problem);
    }
  }
  problem = {.rows = 64, .cols = 4096, .scaled = true};
  for (const auto& [granularity, out, aligned] : combinations(kGranularities, kInputs, kBools)) {
    problem.granularity = granularity;
    problem.out = out;
    problem.is_aligned = aligned;
    kernels.add(problem);
  }
}

inline void add_transposes(Kernels& kernels) {
  for (const auto& [x, out] : combinations(kBools, kBools)) {
    kernels.add(
        plan::TransposeProblem{.rows = 256, .cols = 256, .x_is_aligned = x, .out_is_aligned = out});
  }
}

// Transposes in groups, of rows as they are.
inline void add_groups(Kernels& kernels) {
  for (const DType in : kTwoInputs) {
    for (const CastRule& rule : {kDeepSeekRule, kDeepGemmRule}) {
      kernels.add(Cast(in, kBlock1x128, rule).in_groups());
    }
    kernels.add(Cast(in, kBlock128x128, kTorchAoRule).in_groups().transposed_alone());
    kernels.add(Cast(in, kBlock1x128, kTorchAoRule).in_groups().beside(kChannel));
    kernels.add(Cast(in, kBlock1x128, kDeepSeekRule).in_groups().beside(kBlock128x128));
  }
  for (const Granularity granularity : {kTensor, kChannel}) {
    kernels.add(Cast(kBFloat16, granularity).in_groups());
  }
  kernels.add(Cast(kFloat16, kBlock1x128, kDeepSeekRule).in_groups().unaligned());
  kernels.add(Cast(kBFloat16, kBlock1x128).in_groups().transposed_alone().of_given_scales());
}

inline void add_activations_in_groups(Kernels& kernels, SourceKind kind) {
  const CastSource swiglu{kind};
  for (const DType in : kTwoInputs) {
    kernels.add(Cast(in, kBlock1x128, kDeepSeekRule, swiglu).in_groups());
  }
  const Cast cast = Cast(kBFloat16, kBlock1x128, kDeepGemmRule, swiglu).in_groups();
  kernels.add(Cast(kBFloat16, kBlock1x128, kTorchAoRule, swiglu).in_groups().beside(kChannel));
  kernels.add(cast.beside(kBlock128x128));
  kernels.add(cast.with([&](Cast& fp8) { fp8.source = swiglu.of_codes(kE4M3, kBlock1x128); }));
  const auto geglu = CastSource::of(kind, Activation::kGeGluErf, GateLayout::kInterleaved);
  kernels.add(Cast(kFloat16, kBlock1x128, kDeepGemmRule, geglu).in_groups().unaligned());
}

inline void add_gathered(Kernels& kernels, const CastSource& source) {
  for (const DType in : kTwoInputs) {
    for (const CastRule& rule : {kDeepSeekRule, kCompressedTensorsRule}) {
      const Cast both(in, kBlock1x128, rule, source);
      kernels.add(both.in_groups());
      kernels.add(both);
      for (const Granularity granularity : kGranularities) {
        const Cast rows = Cast(in, granularity, rule, source).to_rows_alone();
        kernels.add(rows.of(512));
        if (granularity != kChannel) continue;
        for (const std::int64_t cols : {7168, 28'672, 100'000}) kernels.add(rows.of(cols));
      }
    }
    const Cast blocks = Cast(in, kBlock1x128, kDeepSeekRule, source).in_groups();
    kernels.add(Cast(in, kBlock1x128, kTorchAoRule, source).in_groups().beside(kChannel));
    kernels.add(blocks.beside(kBlock128x128));
    kernels.add(Cast(in, kBlock128x128, kDeepSeekRule, source).in_groups().transposed_alone());
    kernels.add(Cast(other(in), kBlock1x128, kDeepSeekRule, source).in_groups().unaligned());
  }
  for (const Granularity granularity : {kTensor, kChannel}) {
    kernels.add(Cast(kBFloat16, granularity, kDeepSeekRule, source).in_groups());
  }
  kernels.add(Cast(kFloat16, kChannel, kDeepSeekRule, source).to_rows_alone().unaligned());
}

inline void add_factors_of_transposes(Kernels& kernels) {
  for (const auto& [in, rule] : combinations(kTwoInputs, std::array{kDeepSeekRule, kTorchAoRule})) {
    for (const Cast& cast :
         {Cast(in, kBlock1x128, rule, kTransposeMultiplied).in_groups(),
          Cast(other(in), kBlock1x128, rule, kTransposeMultiplied).in_groups().unaligned()}) {
      kernels.add(cast);
      kernels.add(cast.beside(kChannel));
    }
  }
}

inline void add_norms_in_groups(Kernels& kernels) {
  for (const DType in : kTwoInputs) {
    kernels.add(Cast(in, kBlock1x128, kDeepSeekRule, kNormed).in_groups());
    kernels.add(Cast(in, kBlock128x128, kDeepGemmRule, kNormed).in_groups().transposed_alone());
  }
  for (const Granularity granularity : {kTensor, kChannel}) {
    kernels.add(Cast(kBFloat16, granularity, kTorchAoRule, kNormed).in_groups());
  }
  const Cast blocks = Cast(kBFloat16, kBlock1x128, kTorchAoRule, kNormed).in_groups();
  kernels.add(blocks.beside(kChannel));
  kernels.add(blocks.beside(kBlock128x128));
  kernels.add(Cast(kFloat16, kBlock1x128, kTorchAoRule, kNormed).in_groups().unaligned());
}

// Options that any source may have: columns, given scales.
inline void add_options_of_sources(Kernels& kernels) {
  for (const auto& [source, in] : combinations(
           std::array{kSwiGlu, kSwiGluGradient, kNormed, kGathered, kMultiplied}, kTwoInputs)) {
    const Cast cast(in, kBlock1x128, kDeepSeekRule, source);
    kernels.add(cast.reducing(kBoth));
    kernels.add(cast.reducing(kBoth).to_rows_alone());
    kernels.add(cast.of_given_scales());
  }
}

inline void add_stacks(Kernels& kernels) {
  for (const DType in : kTwoInputs) {
    for (const auto& [rule, granularity] : combinations(std::array{kDeepGemmRule, kDeepSeekRule},
                                                        std::array{kBlock1x128, kBlock128x128})) {
      kernels.add(Cast(in, granularity, rule).of_stack());
      kernels.add(Cast(in, granularity, rule).of_stack().transposed_alone());
      kernels.add(Cast(in, kBlock128x128, rule).of_stack().to_rows_alone());
      kernels.add(Cast(in, kBlock1x128, rule).of_stack().beside(kBlock128x128));
    }
    for (const auto& [rule, granularity] :
         combinations(std::array{kTorchAoRule, kDeepSeekRule}, std::array{kTensor, kChannel})) {
      kernels.add(Cast(in, granularity, rule).of_stack());
      kernels.add(Cast(in, granularity, rule).of_stack().transposed_alone());
    }
    kernels.add(Cast(in, kTensor, config::kTransformerEngineRule).of_stack().to_rows_alone());
    kernels.add(Cast(in, kBlock1x128, kTorchAoRule).of_stack().beside(kChannel));
    for (const Granularity granularity : kGranularities) {
      kernels.add(Cast(in, granularity, kDeepSeekRule).of_stack().of_given_scales());
      const Cast used =
          Cast(in, granularity).of_stack().with([](Cast& cast) { cast.skips_unused = true; });
      kernels.add(used);
      kernels.add(used.to_rows_alone());
    }
    for (const Granularity granularity : {kBlock1x128, kBlock128x128}) {
      kernels.add(Cast(other(in), granularity, kDeepSeekRule).of_stack().unaligned());
    }
  }
}

// Largest magnitudes are given: divisions have kernels of their own, and so has a tensor both ways.
// One read may serve more besides: columns in the kernel of codes, groups, stacks, sources.
inline void add_given_amax(Kernels& kernels) {
  const auto beside = [](DType in, const CastRule& rule, const CastSource& source = {}) {
    return Cast(in, kBlock1x128, rule, source).of_given_amax().beside(kChannel);
  };
  for (const DType in : kInputs) {
    for (const Granularity granularity : {kTensor, kChannel}) {
      const Cast cast = Cast(in, granularity, kDeepSeekRule).of_given_amax();
      kernels.add(cast);
      kernels.add(cast.to_rows_alone());
      kernels.add(cast.transposed_alone());
    }
    for (const CastRule& rule : {kTorchAoRule, kCompressedTensorsRule}) {
      kernels.add(Cast(in, kTensor, rule).of_given_amax());
    }
    for (const CastRule& rule : {kTorchAoRule, kDeepSeekRule}) {
      kernels.add(beside(in, rule));
      kernels.add(beside(in, rule).reducing(kBoth));
      kernels.add(beside(in, rule).in_groups());
      kernels.add(beside(in, rule).of_stack(250));
    }
    kernels.add(beside(in, kDeepSeekRule).unaligned());
    kernels.add(beside(in, kDeepSeekRule, kSwiGluGradient));
    kernels.add(beside(in, kDeepSeekRule, kGathered));
  }
}

inline void add_batches(Kernels& kernels) {
  for (const auto& [in, granularity, rule] :
       combinations(kTwoInputs, kGranularities, std::array{kDeepGemmRule, kTorchAoRule})) {
    const auto kind = plan::batch_kind(Cast(in, granularity, rule));
    kernels.add(plan::plan_cast_batch(*kind, kernels.gpu()).kernels);
  }
}

}  // namespace octofold::test::casts
