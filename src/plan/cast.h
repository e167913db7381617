// From a cast to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/config/cast_config.h"
#include "plan/gpu.h"

namespace octofold::plan {

/// All that a plan depends on. Alignment enters as yes or no, so that casts that differ in
/// addresses only share a plan.
struct CastProblem {
  std::int64_t rows = 0;  ///< of x
  std::int64_t cols = 0;
  config::Element in = config::Element::kBFloat16;
  config::Element out = config::Element::kE4M3;
  config::ScaleUnit unit = config::ScaleUnit::kBlock1x128;
  config::CastDirection direction = config::CastDirection::kRows;
  config::CastRule rule = config::kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;
  /// Whether address and row stride of x, and those of all codes, are multiples of 16 and 8 bytes.
  bool x_is_aligned = true;
  bool codes_are_aligned = true;

  friend bool operator==(const CastProblem&, const CastProblem&) = default;
  /// For hashing; of the rule, what most of them differ in.
  auto fields() const {
    return std::tuple(rows, cols, in, out, unit, direction, rule.form, rule.rounding, power_of_two,
                      saturate, x_is_aligned, codes_are_aligned);
  }
};

struct CastLaunch {
  config::CastConfig config;
  std::int64_t blocks = 0;  ///< of config.threads() threads; of a persistent kernel, at most
};

/// The kernels of a cast, at most four, to be launched one after another. None for a matrix without
/// units. Throws Error(kUnsupported) for a GPU without FP8 conversions and for 2^31 and more tiles.
std::vector<CastLaunch> plan_cast(const CastProblem& problem, const Gpu& gpu);

/// An element-wise conversion, or a dequantization (`scaled`).
struct ConvertProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  config::Element in = config::Element::kE4M3;
  config::Element out = config::Element::kBFloat16;
  bool scaled = false;
  config::ScaleUnit unit = config::ScaleUnit::kTensor;
  bool saturate = true;
  /// Whether addresses and row strides are multiples of ConvertConfig::vector().
  bool is_aligned = true;

  friend bool operator==(const ConvertProblem&, const ConvertProblem&) = default;
  /// For hashing.
  auto fields() const {
    return std::tuple(rows, cols, in, out, scaled, unit, saturate, is_aligned);
  }
};

struct ConvertPlan {
  config::ConvertConfig config;
  std::int64_t blocks = 0;  ///< 0: nothing to do
};

/// Throws as plan_cast does.
ConvertPlan plan_convert(const ConvertProblem& problem, const Gpu& gpu);

/// The header and the name expression of each kernel.
inline constexpr const char* kCastHeader = "kernels/quant/cast.h";
inline constexpr const char* kConvertHeader = "kernels/quant/convert.h";
std::string cast_kernel_name(const config::CastConfig& config);
std::string convert_kernel_name(const config::ConvertConfig& config);

/// One line for logs and errors: "cast bfloat16 → e4m3, 1x128, transposed".
std::string describe(const config::CastConfig& config);
std::string describe(const config::ConvertConfig& config);

}  // namespace octofold::plan
