// FP8 matrix product.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/gemm_form.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// out[..., N] = A[..., K] · B[N, K]ᵀ (+ C[..., N]) (+ bias[N]).
///
/// A, B: e4m3 or e5m2, mixed too; columns (K) contiguous, any row stride, 0 and negative ones too.
/// Any granularity of either.
/// out: bfloat16, float16 or float32; columns contiguous, rows apart from each other.
/// C: of out's type or float32; either disjoint from out or exactly out (in place).
/// bias: of out's type or float32, contiguous.
/// A's leading dimensions, M rows together, are those of out and C.
/// M, N, K ≥ 0; with K = 0 the sum is 0 (times the scales that do not vary along K, on a GPU).
///
/// Arithmetic: codes are multiplied and summed over at most 128 values of K, and such partial sums
/// are added in FP32. Scales that vary along K (1x128, 128x128) multiply each partial sum; those
/// that do not (tensor, channel) multiply the finished sum on a GPU, each partial sum on the CPU. C
/// and bias are added in FP32; one rounding to out's type. docs/numerics.md has the error limits.
/// The same input gives the same bits.
struct GemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  MutableTensorView out;
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
  /// Lets a backend sum all of K inside the tensor core (about 14 significant bits on Hopper).
  /// For tensor and channel scales only; a backend that gains nothing by it does not use it.
  bool fast_accumulation = false;
};

/// All tensors lie on one device. On a GPU (compute capability 8.9, 9.0 or 12.x) the product is
/// queued on `stream` and the call returns; it may be captured in a CUDA graph. The first call of a
/// problem compiles a kernel or finds it on disk. A and B whose addresses and row strides are
/// multiples of 16 bytes are read fastest; the log names those that are not. Block scales 1x128
/// with strides (1, round_up(rows, 4)) are, too; any strides will do.
///
/// Example: octofold::gemm({.a = activations, .b = weights, .out = output, .bias = bias}, stream);
/// Throws Error: kInvalidArgument names the argument; kUnavailable: no usable driver or compiler;
/// kUnsupported: a GPU without kernels, or sizes or numbers of tiles near 2^31 and more.
OCTOFOLD_API void gemm(const GemmArguments& arguments, Stream stream = {});

/// A call of gemm() without its tensors: for kernels that are made ready in advance.
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  GemmForm form{};

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("m", m);
    field("n", n);
    field("k", k);
    field("form", form);
  }
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

}  // namespace octofold
