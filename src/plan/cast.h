// From a cast to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/config/cast_config.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// All that a plan depends on. Alignment enters as yes or no, so that casts that differ in
/// addresses only share a plan.
struct CastProblem {
  std::int64_t rows = 0;  ///< of x
  std::int64_t cols = 0;
  DType in = DType::kBFloat16;
  DType out = DType::kE4M3;
  Granularity unit = Granularity::kBlock1x128;
  config::CastDirection direction = config::CastDirection::kRows;
  config::CastRule rule = config::kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;
  /// Whether address and row stride of x, and those of all codes, are multiples of 16 and 8 bytes.
  bool x_is_aligned = true;
  bool codes_are_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("in", in);
    field("out", out);
    field("unit", unit);
    field("direction", direction);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
    field("x_is_aligned", x_is_aligned);
    field("codes_are_aligned", codes_are_aligned);
  }
  friend bool operator==(const CastProblem&, const CastProblem&) = default;
};

struct CastLaunch {
  config::CastConfig config;
  std::int64_t blocks = 0;  ///< of config.threads() threads; of a persistent kernel, at most
};

/// No parameter depends on a cast's configurations.
struct NoConfig {};
using CastPlan = Plan<NoConfig>;

/// The kernels of a cast, at most four, to be launched one after another. None for a matrix without
/// units. Throws Error(kUnsupported) for a GPU without FP8 conversions and for 2^31 and more tiles.
std::vector<CastLaunch> cast_launches(const CastProblem& problem, const Gpu& gpu);
CastPlan plan_cast(const CastProblem& problem, const Gpu& gpu);

/// An element-wise conversion, or a dequantization (`scaled`).
struct ConvertProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType in = DType::kE4M3;
  DType out = DType::kBFloat16;
  bool scaled = false;
  Granularity unit = Granularity::kTensor;
  bool saturate = true;
  /// Whether addresses and row strides are multiples of ConvertConfig::vector().
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("in", in);
    field("out", out);
    field("scaled", scaled);
    field("unit", unit);
    field("saturate", saturate);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const ConvertProblem&, const ConvertProblem&) = default;
};

using ConvertPlan = Plan<config::ConvertConfig>;

/// One kernel, or none where there is nothing to do. Throws as plan_cast does.
ConvertPlan plan_convert(const ConvertProblem& problem, const Gpu& gpu);

/// The header and the name of each kernel.
inline constexpr const char* kCastHeader = "kernels/quant/cast.h";
inline constexpr const char* kCastKernel = "cast_kernel";
inline constexpr const char* kConvertHeader = "kernels/quant/convert.h";
inline constexpr const char* kConvertKernel = "convert_kernel";

}  // namespace octofold::plan
