// The words that host, device code and bindings share: element types, granularities of scales, the
// length of a scale block, cast rules. A header without includes: the run-time compiler reads it
// too.
#pragma once

namespace octofold {

/// Element types. FP8 formats as in "FP8 Formats for Deep Learning" (Micikevicius et al., 2022,
/// arXiv:2209.05433): e4m3 is the `fn` variant (no infinity, largest finite 448), e5m2 is
/// IEEE-like (largest finite 57344). int32 counts and places: no operation computes in it.
enum class DType : unsigned char { kFloat32, kFloat16, kBFloat16, kE4M3, kE5M2, kInt32 };

/// Number of consecutive K values that share a scale in the block granularities, and the longest
/// run of K that is summed before its partial sum is promoted to the FP32 accumulator.
inline constexpr int kScaleBlock = 128;

/// The elements of a row-major matrix X[rows, cols] that share one FP32 scale: a unit of them.
///
/// | granularity    | shape of the scale tensor           |
/// |----------------|-------------------------------------|
/// | kTensor        | [1] (or any shape with one element) |
/// | kChannel       | [rows] (or [rows, 1])               |
/// | kBlock1x128    | [rows, ceil(cols / 128)]            |
/// | kBlock128x128  | [ceil(rows / 128), ceil(cols / 128)]|
///
/// A partial block at a ragged edge has a scale of its own, over the elements that exist.
enum class Granularity : unsigned char { kTensor, kChannel, kBlock1x128, kBlock128x128 };

/// A granularity's name and its unit. A unit of kWhole rows or columns has all that there are.
struct GranularityRow {
  static constexpr int kWhole = 0;

  Granularity granularity;
  const char* name;
  int rows;
  int cols;

  /// True if scales differ from one block of K to the next: they act on partial sums, while others
  /// may wait until the sum is finished.
  constexpr bool varies_along_k() const { return cols != kWhole; }
  /// True if each row has scales of its own.
  constexpr bool scales_rows() const { return rows == 1; }
};

/// All that is known of granularities, in the order of the enumerators.
inline constexpr GranularityRow kGranularityTable[] = {
    {Granularity::kTensor, "tensor", GranularityRow::kWhole, GranularityRow::kWhole},
    {Granularity::kChannel, "channel", 1, GranularityRow::kWhole},
    {Granularity::kBlock1x128, "1x128", 1, kScaleBlock},
    {Granularity::kBlock128x128, "128x128", kScaleBlock, kScaleBlock},
};

/// A number that is none of the enumerators counts as the first: operations refuse it by name.
constexpr GranularityRow row_of(Granularity granularity) {
  constexpr unsigned kCount = sizeof(kGranularityTable) / sizeof(GranularityRow);
  const auto index = static_cast<unsigned>(granularity);
  return kGranularityTable[index < kCount ? index : 0];
}

constexpr bool varies_along_k(Granularity granularity) {
  return row_of(granularity).varies_along_k();
}
constexpr bool scales_rows(Granularity granularity) { return row_of(granularity).scales_rows(); }

/// The library whose arithmetic a scaled cast follows. The rules themselves are values in
/// kernels/shared/cast_rule.h; docs/numerics.md tabulates them and says for which casts of each
/// library they hold byte for byte.
enum class Rule : unsigned char {
  kDeepGemm,
  kDeepGemmCuda,
  kTileKernels,
  kVllm,
  kVllmPerToken,
  kVllmTriton,
  kTransformerEngine,
  kTorchAo,
  kTorchAoTensor,
  kTorchAoTensorCuda,
  kDeepSeek,
  kTransformers,
  kCompressedTensors,
  kCompressedTensors012,
};

/// kRms divides rows by their root mean square (Zhang, Sennrich 2019, arXiv:1910.07467), kLayer
/// centres them and divides by their standard deviation (Ba et al. 2016, arXiv:1607.06450).
enum class NormKind : unsigned char { kRms, kLayer };

/// The function between the two linear layers of an MLP. The gated ones take two values for each
/// result, gate and up ("GLU Variants Improve Transformer", Shazeer 2020, arXiv:2002.05202).
enum class Activation : unsigned char {
  kSwiGlu,       ///< silu(gate) · up
  kGeGluTanh,    ///< gelu_tanh(gate) · up
  kGeGluErf,     ///< gelu(gate) · up
  kSwiGluOss,    ///< g / (1 + exp(-1.702 · g)) · (u + 1) of g = min(gate, 7) and u = up within
                 ///< ±7, as gpt-oss has it (openai/gpt-oss, swiglu() of gpt_oss/torch/model.py)
  kSilu,         ///< x / (1 + exp(-x))
  kGelu,         ///< x · Φ(x), with the error function
  kGeluTanh,     ///< x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) / 2
  kReluSquared,  ///< max(x, 0)²
};

constexpr bool is_gated(Activation activation) { return activation <= Activation::kSwiGluOss; }

/// The places of the gate and up of column i of the result among 2·K columns.
enum class GateLayout : unsigned char {
  kHalves,       ///< i and K + i: as the product with both weights, one below the other, has them
  kInterleaved,  ///< 2·i and 2·i + 1
};

/// The places of groups of K whose rows were cast from offsets[g] on.
enum class GroupLayout : unsigned char {
  kSpaced,  ///< from column 128 · (offsets[g] / 128 + g) on: any sizes, with holes between groups
  kTight,   ///< from column offsets[g] on, a multiple of 128: as DeepGEMM and torchao have them
};

/// The scores that a router computes from its logits: a probability over all experts, or a score of
/// each by itself, 1 / (1 + exp(-logit)).
enum class Scoring : unsigned char { kSoftmax, kSigmoid };

/// Bytes of one element; 0 for a value that is no DType.
constexpr int size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kE4M3:
    case DType::kE5M2: return 1;
  }
  return 0;
}

constexpr bool is_fp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

}  // namespace octofold
