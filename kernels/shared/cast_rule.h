// The FP8 formats as constants (Micikevicius et al., "FP8 Formats for Deep Learning", 2022,
// arXiv:2209.05433, table 1), and how a scaled cast gets from the largest magnitude of a unit
// (amax) to a scale and to codes. Libraries differ in the details and so in bytes; each one's
// arithmetic is a value of CastRule. All arithmetic is FP32 unless a comment says otherwise.
// docs/numerics.md tabulates the rules.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::config {

struct Fp8Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  unsigned char largest_code;  // the code of the largest finite value
  bool has_infinity;           // then infinity is the code after largest_code
  float largest_finite;
};

inline constexpr Fp8Format kE4M3Format{4, 3, 7, 0x7E, false, 448.0f};
inline constexpr Fp8Format kE5M2Format{5, 2, 15, 0x7B, true, 57344.0f};

// Every NaN that a cast produces. Hopper's conversion instructions give this code in both formats.
inline constexpr unsigned char kFp8Nan = 0x7F;

enum class CastArithmetic {
  kReciprocal,    // scale = amax / max;  code = x · (1 / scale)
  kDivide,        // scale = amax / max;  code = x / scale
  kDivideInType,  // likewise, with x / scale rounded to the type of x first, and 0 in place of -0
  kFactor,        // factor = max / amax; code = x · factor;  scale = 1 / factor
  kFactorBeside,  // factor = max / amax; code = x · factor;  scale = amax / max
};

// True if values are divided by the scale, not multiplied with its reciprocal.
constexpr bool divides(CastArithmetic arithmetic) {
  return arithmetic == CastArithmetic::kDivide || arithmetic == CastArithmetic::kDivideInType;
}

// Rounds the scale up to a power of two, or the factor down; the other is then its inverse.
enum class PowerOfTwoRounding {
  kCeil,        // up, exactly; the result is clamped to the normal numbers
  kCeilFinite,  // up, exactly; infinity and NaN stay
  kCeilLog2,    // exp2(ceil(log2(·))) with a correctly rounded FP32 logarithm
  kTruncate,    // down: the mantissa bits are dropped
  kFloorLog2,   // exp2(floor(log2(·))), likewise
};

constexpr bool rounds_scale(PowerOfTwoRounding rounding) {
  return rounding != PowerOfTwoRounding::kTruncate && rounding != PowerOfTwoRounding::kFloorLog2;
}

enum class FactorRepair {
  kNone,
  kZero,       // 1 where amax is 0 or NaN
  kAll,        // likewise, and where it is infinite; FP32's largest number where it overflows
  kAllInType,  // likewise, the largest number of the type of x
};

struct CastRule {
  CastArithmetic arithmetic;
  PowerOfTwoRounding rounding;
  bool power_of_two_by_default = false;
  bool scale_by_product = false;    // amax / max is amax · (1 / max), as compilers make it
  bool factor_by_product = false;   // max / amax is max · (1 / amax), as torch makes it
  double amax_floor = 0.0;          // amax is raised to this (FP64: one library computes there)
  bool scale_in_type = false;       // then amax / max is rounded to the type of x
  bool epsilon_for_zero = false;    // a scale of 0 is replaced by the epsilon of that type
  float scale_floor = 0.0f;         // then the scale is raised to this
  float power_of_two_floor = 0.0f;  // and to this before it is rounded to a power of two
  FactorRepair repair = FactorRepair::kNone;

  static constexpr const char* kTypeName = "octofold::config::CastRule";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("arithmetic", arithmetic);
    field("rounding", rounding);
    field("power_of_two_by_default", power_of_two_by_default);
    field("scale_by_product", scale_by_product);
    field("factor_by_product", factor_by_product);
    field("amax_floor", amax_floor);
    field("scale_in_type", scale_in_type);
    field("epsilon_for_zero", epsilon_for_zero);
    field("scale_floor", scale_floor);
    field("power_of_two_floor", power_of_two_floor);
    field("repair", repair);
  }
  friend constexpr bool operator==(const CastRule&, const CastRule&) = default;

  // True if the scale depends on the type of x, and not on its amax alone.
  constexpr bool reads_type() const {
    return scale_in_type || epsilon_for_zero || repair == FactorRepair::kAllInType;
  }
  constexpr bool raises_in_fp64() const { return static_cast<float>(amax_floor) != amax_floor; }
};

// The distance from 1 to the next number, of the types that are cast.
constexpr float epsilon_of(DType dtype) {
  return dtype == DType::kFloat16 ? 0x1p-10f : dtype == DType::kBFloat16 ? 0x1p-7f : 0x1p-23f;
}

constexpr float largest_of(DType dtype) {
  return dtype == DType::kFloat16    ? 65504.0f
         : dtype == DType::kBFloat16 ? 0x1.FEp127f
                                     : 0x1.FFFFFEp127f;
}

// In a description the rule goes without saying.
constexpr const char* word(const CastRule&) { return ""; }

// DeepGEMM, deep_gemm/utils/math.py: per_token_cast_to_fp8 and its siblings, of CPU tensors.
inline constexpr CastRule kDeepGemmRule{.arithmetic = CastArithmetic::kReciprocal,
                                        .rounding = PowerOfTwoRounding::kCeil,
                                        .amax_floor = 1e-4f};

// TileKernels, tile_kernels/quant/common.py: get_sf_and_inv.
inline constexpr CastRule kTileKernelsRule{.arithmetic = CastArithmetic::kFactorBeside,
                                           .rounding = PowerOfTwoRounding::kCeil,
                                           .amax_floor = 1e-4f};

// vLLM, csrc/quantization/w8a8: per_token_group_quant_8bit, scales of groups.
inline constexpr CastRule kVllmRule{.arithmetic = CastArithmetic::kReciprocal,
                                    .rounding = PowerOfTwoRounding::kCeilFinite,
                                    .amax_floor = 1e-10f,
                                    .power_of_two_floor = 1e-10f};

// vLLM, likewise: dynamic_per_token_scaled_fp8_quant, scales of rows. It has no powers of two.
inline constexpr CastRule kVllmPerTokenRule{.arithmetic = CastArithmetic::kDivide,
                                            .rounding = PowerOfTwoRounding::kCeil,
                                            .scale_floor = 1.0f / (448.0f * 512.0f)};

// vLLM, quantization/utils/fp8_utils.py: _per_token_group_quant_fp8, in Triton.
inline constexpr CastRule kVllmTritonRule{.arithmetic = CastArithmetic::kDivide,
                                          .rounding = PowerOfTwoRounding::kCeilLog2,
                                          .scale_by_product = true,
                                          .amax_floor = 1e-10f};

// Transformer Engine, common/recipe/recipe_common.cuh: compute_scale_from_amax (_types for blocks).
inline constexpr CastRule kTransformerEngineRule{.arithmetic = CastArithmetic::kFactor,
                                                 .rounding = PowerOfTwoRounding::kTruncate,
                                                 .power_of_two_by_default = true,
                                                 .repair = FactorRepair::kAll};

// torchao, float8/float8_utils.py: amax_to_scale, for training.
inline constexpr CastRule kTorchAoRule{.arithmetic = CastArithmetic::kFactor,
                                       .rounding = PowerOfTwoRounding::kFloorLog2,
                                       .amax_floor = 1e-12};

// torchao, quantization/quant_primitives.py: _choose_scale_float8, for Float8Tensor.from_hp, of CPU
// tensors. It has no powers of two.
inline constexpr CastRule kTorchAoTensorRule{.arithmetic = CastArithmetic::kDivide,
                                             .rounding = PowerOfTwoRounding::kCeil,
                                             .scale_in_type = true};

// DeepSeek-V3, inference/kernel.py: act_quant, in Triton, whose compiler makes the product.
inline constexpr CastRule kDeepSeekRule{.arithmetic = CastArithmetic::kDivide,
                                        .rounding = PowerOfTwoRounding::kCeilLog2,
                                        .scale_by_product = true,
                                        .amax_floor = 1e-4f};

// transformers, integrations/finegrained_fp8.py: Fp8Quantize.
inline constexpr CastRule kTransformersRule{.arithmetic = CastArithmetic::kFactor,
                                            .rounding = PowerOfTwoRounding::kCeilLog2,
                                            .factor_by_product = true,
                                            .power_of_two_floor = 0x1p-126f,
                                            .repair = FactorRepair::kZero};

// compressed-tensors, quantization/utils/helpers.py: calculate_qparams, from version 0.14 on.
// Adding the zero point is what makes 0 of -0. It has no powers of two.
inline constexpr CastRule kCompressedTensorsRule{.arithmetic = CastArithmetic::kDivideInType,
                                                 .rounding = PowerOfTwoRounding::kCeil,
                                                 .scale_in_type = true,
                                                 .epsilon_for_zero = true};

// The same in version 0.12. The floor is 2^-23 for all types.
inline constexpr CastRule kCompressedTensors012Rule{.arithmetic = CastArithmetic::kDivideInType,
                                                    .rounding = PowerOfTwoRounding::kCeil,
                                                    .scale_in_type = true,
                                                    .scale_floor = 0x1p-23f};

// torch divides CUDA tensors by a number of the host so.
constexpr CastRule by_product(CastRule rule) {
  rule.scale_by_product = true;
  return rule;
}

constexpr CastRule repaired_in_type(CastRule rule) {
  rule.repair = FactorRepair::kAllInType;
  return rule;
}

struct CastRuleRow {
  Rule rule;
  const char* name;
  CastRule value;
  CastRule of_tensors = value;  // for a scale of everything, where the library has another then
  constexpr const CastRule& of(Granularity granularity) const {
    return granularity == Granularity::kTensor ? of_tensors : value;
  }
};

// All rules, in the order of the enumerators.
inline constexpr CastRuleRow kCastRules[] = {
    {Rule::kDeepGemm, "deepgemm", kDeepGemmRule},
    {Rule::kDeepGemmCuda, "deepgemm-cuda", by_product(kDeepGemmRule)},
    {Rule::kTileKernels, "tilekernels", kTileKernelsRule},
    {Rule::kVllm, "vllm", kVllmRule},
    {Rule::kVllmPerToken, "vllm-per-token", kVllmPerTokenRule},
    {Rule::kVllmTriton, "vllm-triton", kVllmTritonRule},
    {Rule::kTransformerEngine, "te", repaired_in_type(kTransformerEngineRule),
     kTransformerEngineRule},
    {Rule::kTorchAo, "torchao", kTorchAoRule},
    {Rule::kTorchAoTensor, "torchao-tensor", kTorchAoTensorRule},
    {Rule::kTorchAoTensorCuda, "torchao-tensor-cuda", by_product(kTorchAoTensorRule)},
    {Rule::kDeepSeek, "deepseek", kDeepSeekRule},
    {Rule::kTransformers, "transformers", kTransformersRule},
    {Rule::kCompressedTensors, "compressed-tensors", kCompressedTensorsRule},
    {Rule::kCompressedTensors012, "compressed-tensors-0.12", kCompressedTensors012Rule},
};

}  // namespace octofold::config
