// Cast rules, and the names of the public API's values.
#pragma once

#include <cstdint>
#include <string_view>

#include "octofold/export.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// How a cast treats values beyond the largest finite FP8 value.
/// kSaturate: to the largest finite value, infinities included; NaN stays NaN (CUDA's SATFINITE).
/// kNan: e4m3 above 464 (the tie rounds down to 448) becomes NaN; e5m2 at 61440 and above becomes
/// infinity (the rule of Python's ml_dtypes).
enum class Overflow : std::uint8_t { kSaturate, kNan };

/// In what attention multiplies queries with keys. kExact: in 16-bit numbers, which hold queries
/// and all codes. kFp8: in FP8 where the kernel can, each query of a head cast to e4m3 codes with a
/// scale of its own.
enum class AttentionCompute : std::uint8_t { kExact, kFp8 };

/// Names as the Python API, the tool and error messages spell them: "float32", "float16",
/// "bfloat16", "e4m3", "e5m2", "int32" · "tensor", "channel", "1x128", "128x128" · "saturate",
/// "nan" · "deepgemm" and the other rules of docs/numerics.md · "swiglu", "geglu-tanh", "geglu",
/// "swiglu-oss", "silu", "gelu", "gelu-tanh", "relu-squared" · "halves", "interleaved" · "rms",
/// "layer" · "softmax", "sigmoid" · "exact", "fp8". Throws Error(kInvalidArgument) for a number
/// that is none of the enumerators.
OCTOFOLD_API std::string_view name(DType dtype);
OCTOFOLD_API std::string_view name(Granularity granularity);
OCTOFOLD_API std::string_view name(Overflow overflow);
OCTOFOLD_API std::string_view name(Rule rule);
OCTOFOLD_API std::string_view name(Activation activation);
OCTOFOLD_API std::string_view name(GateLayout layout);
OCTOFOLD_API std::string_view name(GroupLayout layout);
OCTOFOLD_API std::string_view name(NormKind norm);
OCTOFOLD_API std::string_view name(Scoring scoring);
OCTOFOLD_API std::string_view name(AttentionCompute compute);

/// The inverse of name(). parse_dtype also takes "float8_e4m3fn" and "float8_e5m2".
/// Throws Error(kInvalidArgument) that lists the names there are.
OCTOFOLD_API DType parse_dtype(std::string_view text);
OCTOFOLD_API Granularity parse_granularity(std::string_view text);
OCTOFOLD_API Overflow parse_overflow(std::string_view text);
OCTOFOLD_API Rule parse_rule(std::string_view text);
OCTOFOLD_API Activation parse_activation(std::string_view text);
OCTOFOLD_API GateLayout parse_gate_layout(std::string_view text);
OCTOFOLD_API GroupLayout parse_group_layout(std::string_view text);
OCTOFOLD_API NormKind parse_norm(std::string_view text);
OCTOFOLD_API Scoring parse_scoring(std::string_view text);
OCTOFOLD_API AttentionCompute parse_attention_compute(std::string_view text);

}  // namespace octofold
