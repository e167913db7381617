// The computation of a cast, as one value: for the planner, the host and the kernels.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/cast_rule.h"

namespace octofold::config {

// A CastFormat says what a cast computes, whichever kernels do it.
struct CastFormat {
  DType in = DType::kBFloat16;  // of the values that are cast
  DType out = DType::kE4M3;
  Granularity granularity = Granularity::kBlock1x128;
  CastRule rule = kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;

  static constexpr const char* kTypeName = "octofold::config::CastFormat";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("out", out);
    field("granularity", granularity);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
  }
  friend constexpr bool operator==(const CastFormat&, const CastFormat&) = default;

  // Elements of a 16-byte load; as many codes are one store.
  constexpr int vector() const { return 16 / size_of(in); }
  // True if each row of what is written, and so each column of what is transposed, has scales of
  // its own.
  constexpr bool scales_lines() const { return scales_rows(granularity); }
  constexpr bool scales_blocks() const { return varies_along_k(granularity); }
  constexpr const char* invalid_reason() const {
    if (in != DType::kFloat32 && in != DType::kFloat16 && in != DType::kBFloat16) {
      return "the input has to be float32, float16 or bfloat16";
    }
    if (!is_fp8(out)) return "codes have to be FP8";
    return nullptr;
  }
};

}  // namespace octofold::config
