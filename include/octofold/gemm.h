// FP8 matrix product.
#pragma once

#include <optional>
#include <variant>

#include "octofold/export.h"
#include "octofold/format.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// An operand in high precision that the product casts itself, with scales of 1x128: dynamic
/// quantization and the product in one kernel. Its codes and scales are never in memory.
struct CastOperand {
  /// float32, float16 or bfloat16 [..., K]; columns (K) contiguous, any row stride.
  TensorView data;
  /// How it is cast; its granularity is 1x128. Scales are computed.
  Format format{};
};

/// Rows of A that arrive while the product runs: A's M rows are n shards of M / n, one below
/// another, as n ranks gather them.
///
/// The product begins with the rows of shard `own`, goes on with those of the shards behind it, and
/// then from shard 0 on. It reads nothing of a shard, neither codes nor scales, before the shard's
/// flag is not 0. A tile of rows that lies in two shards waits for both. The product leaves the
/// flags as they are: who calls it sets them to 0 before the next copies.
///
/// On a GPU the kernel itself waits, without an end, and holds all multiprocessors meanwhile. So
/// what sets a flag must not need any: copies by the copy engine (cudaMemcpyAsync,
/// cuStreamWriteValue32) on another stream, queued before the product is, or another GPU. A flag is
/// set behind what it tells of in the order of one stream. The CPU waits 60 s for each.
struct Arrivals {
  /// int32 [n], on A's device, n ≥ 1 a divisor of M.
  TensorView flags;
  /// 0 ≤ own < n.
  std::int64_t own = 0;
};

/// out[..., N] = A[..., K] · B[N, K]ᵀ (+ C[..., N]) (+ bias[N]).
///
/// A: e4m3 or e5m2 of any granularity, or numbers that the product casts.
/// B: e4m3 or e5m2, of any granularity and type beside A's; two-level scales beside an A of FP8.
/// Columns (K) of both are contiguous; row strides are arbitrary, 0 and negative ones too.
/// out: bfloat16, float16 or float32; columns contiguous, rows that do not overlap.
/// C: of out's type or float32; either disjoint from out or exactly out (in place). Not allowed
/// with an A that is cast. bias: of out's type or float32, contiguous. out and C have A's leading
/// dimensions, which together are M rows. M, N, K ≥ 0; with K = 0 the sum is 0 (times the scales
/// that do not vary along K, on a GPU).
///
/// Arithmetic: codes are multiplied and summed over at most 128 values of K, and such partial sums
/// are added in FP32. Scales that vary along K (1x128, 128x128) multiply each partial sum; those
/// that do not (tensor, channel) multiply the finished sum on a GPU, each partial sum on the CPU. C
/// and bias are added in FP32; one rounding to out's type. docs/numerics.md has the error limits.
/// The same input gives the same bits.
///
/// With an A that is cast, the result is that of cast() and gemm() one after another, to the bit,
/// except that on a GPU both may split K differently, and then round their sums differently, unless
/// both are batch_invariant. This saves a kernel and is meant for few rows, as in decoding: each
/// tile of out casts the rows that it takes, where cast() would cast them once. Many rows are
/// correct too, but slow.
struct GemmArguments {
  std::variant<ScaledTensorView, CastOperand> a;
  ScaledTensorView b;
  MutableTensorView out;
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
  /// Lets a backend sum all of K inside the tensor core (about 14 significant bits on Hopper).
  /// For tensor and channel scales only; a backend that gains nothing by it does not use it.
  bool fast_accumulation = false;
  /// A row of out depends on that row of A alone, not on how many rows there are nor on its place:
  /// K is never split, and on the CPU rows are summed in blocks of one size
  /// (docs/batch-invariance.md).
  bool batch_invariant = false;
  /// The arrivals of A's rows that are still on their way. A is FP8 then, K ≥ 1, and beside 128x128
  /// scales of A shards are whole blocks of 128 rows. Scales of a tensor are there from the start.
  /// The result has the bits that it has without, as long as both split K alike: with `arrivals` K
  /// is never split.
  std::optional<Arrivals> arrivals{};
};

/// All tensors lie on one device. On a GPU (compute capability 8.9, 9.0 or 12.x; with an A that is
/// cast 9.0) the product is queued on `stream` and the call returns; it may be captured in a CUDA
/// graph. The first call of a problem compiles a kernel or finds it on disk. A and B are read
/// fastest if their addresses and row strides are multiples of 16 bytes; the log names those that
/// are not. 1x128 scales are read fastest with strides (1, round_up(rows, 4)); any strides are
/// accepted.
///
/// Example: octofold::gemm({.a = activations, .b = weights, .out = output, .bias = bias}, stream);
/// Throws Error: kInvalidArgument, which names the argument; kUnavailable without a usable driver
/// or compiler; kUnsupported for a GPU without kernels, for sizes or numbers of tiles near 2^31 or
/// more, for `arrivals` on another GPU than 9.0, and, with an A that is cast, for K = 0 and for a B
/// whose address or row stride is no multiple of 16 bytes. For these, call cast() and gemm() of its
/// codes, or use the CPU.
OCTOFOLD_API void gemm(const GemmArguments& arguments, Stream stream = {});

}  // namespace octofold
