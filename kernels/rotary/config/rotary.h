// Rotary embeddings: the kernel's configuration, and what the host passes.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"

namespace octofold::config {

struct RotaryConfig {
  DType type = DType::kBFloat16;
  bool vectors = true;        // whether halves of heads can be accessed in whole vectors
  int threads_per_token = 8;  // a power of two

  static constexpr const char* kHeader = "kernels/rotary/rotary.h";
  static constexpr const char* kKernel = "rotary_kernel";
  static constexpr const char* kTypeName = "octofold::config::RotaryConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("type", type);
    field("vectors", vectors);
    field("threads_per_token", threads_per_token);
  }
  friend constexpr bool operator==(const RotaryConfig&, const RotaryConfig&) = default;

  static constexpr int kHeads = 2;  // of a thread at a time: they share what it reads of the tables
  static constexpr int kThreads = 128;
  constexpr int vector() const { return 16 / size_of(type); }
  constexpr int threads() const { return kThreads; }
  constexpr int tokens_per_block() const { return kThreads / threads_per_token; }

  constexpr const char* invalid_reason() const {
    if (type != DType::kFloat32 && type != DType::kFloat16 && type != DType::kBFloat16) {
      return "the input has to be float32, float16 or bfloat16";
    }
    if (threads_per_token < 1 || threads_per_token > kThreads ||
        (threads_per_token & (threads_per_token - 1)) != 0) {
      return "threads_per_token has to be a power of two up to 128";
    }
    return nullptr;
  }
};

// Rows of cos or sin. Strides count elements.
struct RotaryTable {
  const void* data;
  long long batch_stride;
  long long token_stride;
};

struct RotaryParams {
  const void* x;  // [batches, tokens, heads, 2 half]
  long long x_batch_stride;
  long long x_token_stride;
  long long x_head_stride;
  RotaryTable cos;  // [batches, tokens, 2 half]
  RotaryTable sin;
  void* y;  // as x, contiguous
  unsigned all_tokens;
  unsigned tokens;  // of a batch
  int heads;
  int half;
  bool inverse;
};

}  // namespace octofold::config
