// The dot product: its kernels' configurations, how its vectors are cut into parts, and what the
// host passes.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

// Vectors are cut into parts of whole blocks of 128, one to a block of threads. There are so few
// that one block adds up their sums; how many depends on the length alone.
inline constexpr long long kLeastDotSpan = 8192;
inline constexpr long long kMostDotParts = 1024;
constexpr long long dot_span(long long size) {
  return kLeastDotSpan * (size / (kLeastDotSpan * kMostDotParts) + 1);
}
constexpr long long dot_parts(long long size) { return ceil_divide(size, dot_span(size)); }

constexpr bool is_number(DType dtype) {
  return is_fp8(dtype) || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

// The sum of a part.
struct DotConfig {
  DType a = DType::kE4M3;
  DType b = DType::kE4M3;
  bool a_blocks = false;  // whether 128 elements share a scale
  bool b_blocks = false;
  bool vectors = true;  // whether both can be accessed in whole vectors, but for a last one
  bool alone = false;   // one part, which is the result

  static constexpr const char* kHeader = "kernels/dot/dot.h";
  static constexpr const char* kKernel = "dot_kernel";
  static constexpr const char* kTypeName = "octofold::config::DotConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("a", a);
    field("b", b);
    field("a_blocks", a_blocks);
    field("b_blocks", b_blocks);
    field("vectors", vectors);
    field("alone", alone);
  }
  friend constexpr bool operator==(const DotConfig&, const DotConfig&) = default;

  constexpr int threads() const { return 256; }
  // Elements that a thread loads at a time: 16 bytes of the wider type, of one block of 128.
  constexpr int vector() const { return 16 / (size_of(a) > size_of(b) ? size_of(a) : size_of(b)); }

  // On their way at one time: parts are whole multiples of what all threads have.
  constexpr int vectors_per_thread() const { return vector() == 16 ? 2 : 4; }

  constexpr const char* invalid_reason() const {
    if (!is_number(a) || !is_number(b))
      return "both vectors have to be float32, float16, bfloat16, e4m3 or e5m2";
    if (kLeastDotSpan % (threads() * vector() * vectors_per_thread()) != 0)
      return "the elements that a block reads at a time have to divide the least part";
    if ((a_blocks && !is_fp8(a)) || (b_blocks && !is_fp8(b)))
      return "only an FP8 operand can have scales";
    return nullptr;
  }
};

// The sum of all parts.
struct DotPartsConfig {
  int block_threads = 256;

  static constexpr const char* kHeader = DotConfig::kHeader;
  static constexpr const char* kKernel = "add_dot_parts_kernel";
  static constexpr const char* kTypeName = "octofold::config::DotPartsConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("block_threads", block_threads);
  }
  friend constexpr bool operator==(const DotPartsConfig&, const DotPartsConfig&) = default;

  constexpr int threads() const { return block_threads; }
  constexpr const char* invalid_reason() const {
    if (block_threads < 32 || block_threads > 1024 || block_threads % 32 != 0) {
      return "a block has to consist of whole warps, at most 1024 threads";
    }
    return nullptr;
  }
};

struct DotParams {
  const void* a;
  const void* b;
  const float* a_scale;  // of blocks, or one of all; null: there is none
  const float* b_scale;
  long long a_scale_stride;  // from block to block
  long long b_scale_stride;
  bool a_blocks;
  bool b_blocks;
  long long size;
  long long span;  // elements of a part
  int parts;
  float* part_sums;  // [parts]
  float* out;
};

}  // namespace octofold::config
