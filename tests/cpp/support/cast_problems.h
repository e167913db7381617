// Problems of casts for the planners, in words.
#pragma once

#include "plan/cast.h"
#include "support/test.h"

namespace octofold::test::casts {

using config::CastRule;
using config::CastSource;
using config::SourceKind;
using enum DType;
using enum Granularity;
using config::kCompressedTensorsRule, config::kDeepGemmRule, config::kDeepSeekRule,
    config::kTorchAoRule, config::kVllmTritonRule;

// A cast, both ways where nothing else is said.
struct Cast : plan::CastProblem {
  explicit Cast(DType in, Granularity granularity, const CastRule& rule = kDeepGemmRule,
                const CastSource& of = {})
      : CastProblem{.rows = 256,
                    .cols = 1024,
                    .format = {.in = in, .granularity = granularity, .rule = rule},
                    .source = of,
                    .to_transposed = true} {}

  Cast with(auto&& change) const {
    Cast cast = *this;
    change(cast);
    return cast;
  }
  Cast to_rows_alone() const {
    return with([](Cast& cast) { cast.to_transposed = false; });
  }
  Cast transposed_alone() const {
    return with([](Cast& cast) { cast.to_rows = false; });
  }
  Cast beside(Granularity transposed) const {
    return with([&](Cast& cast) {
      cast.transposed_by_channel = transposed == kChannel;
      cast.transposed_by_squares = transposed == kBlock128x128;
    });
  }
  Cast unaligned() const {
    return with([](Cast& cast) { cast.x_is_aligned = cast.codes_are_aligned = false; });
  }
  Cast in_groups(std::int64_t count = 8) const {
    return with([&](Cast& cast) { cast.groups = count; });
  }
  // Squares do not end with its matrices.
  Cast of_stack(std::int64_t rows_of_matrix = 1000) const {
    return with([&](Cast& cast) { cast.rows = rows_of_matrix * (cast.matrices = 4); });
  }
  Cast of(std::int64_t width) const { return of(rows, width); }
  Cast of(std::int64_t height, std::int64_t width) const {
    return with([&](Cast& cast) { cast.rows = height, cast.cols = width; });
  }
  Cast of_given_scales() const {
    return with([](Cast& cast) { cast.scales_given = true; });
  }
  Cast of_given_amax() const {
    return with([](Cast& cast) { cast.amax_given = true; });
  }
  Cast reducing(const config::ColumnReductions& reductions) const {
    return with([&](Cast& cast) { cast.columns = reductions; });
  }
};

constexpr config::ColumnReductions kSums{.sums = true}, kAmax{.amax = true},
    kBoth{.sums = true, .amax = true};
constexpr CastSource kSwiGlu{SourceKind::kActivation},
    kSwiGluGradient{SourceKind::kActivationGradient};
constexpr CastSource kGathered{.kind = SourceKind::kGathered};
constexpr CastSource kMultiplied{.kind = SourceKind::kGathered, .factors = true};
constexpr CastSource kTransposeMultiplied{.kind = SourceKind::kGathered,
                                          .transposed_factors = true};
constexpr auto kOfInputType = config::NormOperand::kInputType;
constexpr CastSource kNormed{.kind = SourceKind::kNormed,
                             .norm = {.kind = NormKind::kLayer,
                                      .weight = kOfInputType,
                                      .bias = kOfInputType,
                                      .scale = kOfInputType,
                                      .shift = kOfInputType}};

}  // namespace octofold::test::casts
