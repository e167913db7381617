// The loops in which products on the CPU spend their time, for each kind of vectors that a
// processor may have. The processor says which it has: its name does not matter, nor its year.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace octofold::cpu {

/// A block of a product, of which the depth is kScaleBlock at most.
template <typename Sum>
struct BlockProduct {
  std::int64_t rows, columns, depth;
  const float* a;        ///< [rows, kScaleBlock]
  const float* b;        ///< `columns` vectors of b, packed
  const float* scale_a;  ///< [rows]
  const float* scale_b;  ///< [columns up to whole panels]
  Sum* sum;              ///< [rows, columns up to whole panels]
  bool is_first;         ///< whether sums begin with this block, whatever is in their memory
  std::int64_t stride;   ///< of sum's rows
};

struct VectorKernels {
  /// "AVX-512", "AVX2", or "SSE2" or "NEON", which every processor of its kind has.
  std::string_view name;
  /// Vectors of b that are packed side by side. Divides kMostPanel.
  std::int64_t panel;

  /// b [count, kScaleBlock] as panels of [kScaleBlock, panel]. `count` is a multiple of `panel`.
  void (*pack)(const float* b, std::int64_t count, float* packed);
  /// sum[i, j] += partial · (scale_a[i] · scale_b[j]), partial = the sum over k of a[i, k] · b[j,
  /// k] in FP32, in the order of k. So an element depends on its own row and column alone.
  void (*add_block)(const BlockProduct<float>& block);
  void (*add_block_in_double)(const BlockProduct<double>& block);
  /// FP8 codes in FP32, as Fp8::decode (number_formats.h) gives them.
  void (*decode_e4m3)(const std::uint8_t* codes, std::int64_t count, float* values);
  void (*decode_e5m2)(const std::uint8_t* codes, std::int64_t count, float* values);
  /// FP32 to 16 bits, as BFloat16::encode and Float16::encode (number_formats.h) do it.
  void (*encode_bfloat16)(const float* values, std::int64_t count, std::uint16_t* codes);
  void (*encode_float16)(const float* values, std::int64_t count, std::uint16_t* codes);
};

inline constexpr std::int64_t kMostPanel = 32;

/// The kernels that this processor can run, the widest first.
std::span<const VectorKernels> all_vector_kernels();

/// The widest.
inline const VectorKernels& vector_kernels() { return all_vector_kernels().front(); }

}  // namespace octofold::cpu
