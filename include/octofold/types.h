// The vocabulary of the public API: element types, scale granularities, cast rules.
#pragma once

#include <cstdint>
#include <string_view>

#include "octofold/export.h"

namespace octofold {

/// Element types. FP8 formats as in "FP8 Formats for Deep Learning" (Micikevicius et al., 2022,
/// arXiv:2209.05433): e4m3 is the `fn` variant (no infinity, largest finite 448), e5m2 is
/// IEEE-like (largest finite 57344).
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2 };

/// How many elements of a row-major matrix X[rows, cols] share one FP32 scale.
///
/// | granularity    | shape of the scale tensor           |
/// |----------------|-------------------------------------|
/// | kTensor        | [1] (or any shape with one element) |
/// | kChannel       | [rows] (or [rows, 1])               |
/// | kBlock1x128    | [rows, ceil(cols / 128)]            |
/// | kBlock128x128  | [ceil(rows / 128), ceil(cols / 128)]|
///
/// A partial block at a ragged edge has a scale of its own, over the elements that exist.
enum class Granularity : std::uint8_t { kTensor, kChannel, kBlock1x128, kBlock128x128 };

/// What becomes of values beyond the largest finite FP8 value.
/// kSaturate: to the largest finite value, infinities included; NaN stays NaN (CUDA's SATFINITE).
/// kNan: e4m3 above 464 (the tie rounds down to 448) becomes NaN; e5m2 at 61440 and above becomes
/// infinity (the rule of Python's ml_dtypes).
enum class Overflow : std::uint8_t { kSaturate, kNan };

/// Whose arithmetic a scaled cast follows, byte for byte. The rules themselves are values in
/// kernels/config/cast_rule.h; docs/numerics.md tabulates them.
enum class CastProfile : std::uint8_t {
  kDeepGemm,
  kVllm,
  kTransformerEngine,
  kTorchAo,
  kDeepSeek,
  kCompressedTensors,
};

/// Number of consecutive K values that share a scale in the block granularities, and the longest
/// run of K that is summed before its partial sum is promoted to the FP32 accumulator.
inline constexpr std::int64_t kScaleBlock = 128;

/// Names as the Python API, the tool and error messages spell them: "float32", "float16",
/// "bfloat16", "e4m3", "e5m2" · "tensor", "channel", "1x128", "128x128" · "saturate", "nan" ·
/// "deepgemm", "vllm", "te", "torchao", "deepseek", "compressed-tensors". Throws
/// Error(kInvalidArgument) for a number that is none of the enumerators.
OCTOFOLD_API std::string_view name(DType dtype);
OCTOFOLD_API std::string_view name(Granularity granularity);
OCTOFOLD_API std::string_view name(Overflow overflow);
OCTOFOLD_API std::string_view name(CastProfile profile);

/// The inverse of name(). parse_dtype also takes "float8_e4m3fn" and "float8_e5m2".
/// Throws Error(kInvalidArgument) that lists the names there are.
OCTOFOLD_API DType parse_dtype(std::string_view text);
OCTOFOLD_API Granularity parse_granularity(std::string_view text);
OCTOFOLD_API Overflow parse_overflow(std::string_view text);
OCTOFOLD_API CastProfile parse_profile(std::string_view text);

/// Bytes of one element; 0 for a number that is no DType.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kE4M3:
    case DType::kE5M2: return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

}  // namespace octofold
