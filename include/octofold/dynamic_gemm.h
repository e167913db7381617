// A product whose activations come in high precision: dynamic quantization and the FP8 product in
// one operation.
#pragma once

#include <optional>

#include "octofold/export.h"
#include "octofold/format.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// out[..., N] = cast(x[..., K]) · B[N, K]ᵀ (+ bias[N]): codes and scales of x are not in memory.
///
/// x: float32, float16 or bfloat16; columns (K) contiguous, any row stride.
/// b: e4m3 or e5m2, scales of any granularity, no channel_scale.
/// out: bfloat16, float16 or float32; columns contiguous, rows apart from each other.
/// bias: of out's type or float32, contiguous.
/// format: how x is cast; its granularity is 1x128.
/// x's leading dimensions, M rows together, are those of out. M, N, K ≥ 0.
///
/// The result of cast() and gemm() one after another, to the bit but for one thing: on a GPU
/// both may take K in other slices, and round their sums otherwise.
///
/// For few rows, as in decoding: each tile of out casts the rows that it takes, where cast()
/// would have cast them once, and what is saved is a kernel. Many rows are right too, but slow.
struct DynamicGemmArguments {
  TensorView x;
  ScaledTensorView b;
  MutableTensorView out;
  std::optional<TensorView> bias{};
  Format format{};
};

/// All tensors lie on one device. On a GPU one kernel is queued on `stream`, as by gemm(), and may
/// be captured in a CUDA graph. Rows of x whose addresses and lengths are multiples of 16 bytes are
/// read fastest.
///
/// Throws Error: kInvalidArgument names the argument; kUnavailable: no usable driver or compiler;
/// kUnsupported: as gemm(), and on a GPU for K = 0 and where the address or the row stride of b is
/// no multiple of 16 bytes. cast() and gemm() take those, and the CPU.
OCTOFOLD_API void dynamic_gemm(const DynamicGemmArguments& arguments, Stream stream = {});

}  // namespace octofold
