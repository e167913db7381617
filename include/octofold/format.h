// How numbers are cast to FP8, in one value.
#pragma once

#include <optional>

#include "octofold/types.h"

namespace octofold {

/// Every function that casts takes one, or a target that has one.
///
/// Example:
///   constexpr Format kWeights{.granularity = Granularity::kBlock128x128, .rule = Rule::kTorchAo};
struct Format {
  DType dtype = DType::kE4M3;  ///< e4m3 or e5m2
  Granularity granularity = Granularity::kBlock1x128;
  /// The library whose scales and rounding to follow (docs/numerics.md). With given scales it says
  /// one thing: whether codes round x · (1 / scale) or x / scale.
  Rule rule = Rule::kDeepGemm;
  /// Round scales to powers of two (UE8M0 values kept as FP32). Unset: as the rule does by itself.
  /// Given scales are taken as they are, and true is an error.
  std::optional<bool> power_of_two{};
  Overflow overflow = Overflow::kSaturate;

  friend bool operator==(const Format&, const Format&) = default;
};

}  // namespace octofold
