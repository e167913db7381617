// The first half of a gated MLP: both products, the activation and the cast of its result.
#pragma once

#include <optional>

#include "octofold/cast_targets.h"
#include "octofold/export.h"
#include "octofold/grouped_gemm.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// out = cast(activation(A · Wgᵀ, A · Wuᵀ)): neither gate nor up nor H is in memory.
///
/// a: [..., K], scales 1x128; e4m3 or e5m2. With groups: [M, K], rows sorted by group.
/// b: [2·N, K], scales 128x128; e4m3 or e5m2. Rows 0 to N - 1 are Wg, the others Wu. With groups:
///   [G, 2·N, K], a group's gates, then its ups; scales as in grouped_gemm().
/// groups: if set, each row is multiplied with the weights of its group. There are no gated
/// products
///   of masked groups or of groups along K.
/// out: a target as of cast(), with codes [..., N] and computed 1x128 scales. With groups, rows
/// from
///   the last offset on are not written.
/// activation: a gated one (vocabulary.h).
/// batch_invariant: as in gemm().
///
/// The codes and scales are those of gemm() to a bfloat16 [..., 2·N] and cast() of that as
/// Activated, with gate and up in halves: gate and up are the sums rounded to BF16, the activation
/// is computed in FP32 and rounded to BF16, and that is cast. They agree to the bit, except where
/// gemm() uses split-K and may round its sums differently.
struct GatedGemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  std::optional<RowGroups> groups{};
  CastTarget out;
  Activation activation = Activation::kSwiGlu;
  bool batch_invariant = false;
};

/// All tensors lie on one device. On a GPU one kernel is queued on `stream`, as by gemm(), and may
/// be captured in a CUDA graph.
///
/// Throws Error: kInvalidArgument, which names the argument; kUnavailable without a usable driver
/// or compiler; kUnsupported as gemm(), and on a GPU for an N that is no multiple of 128 (a block
/// of 128 rows of b would then scale gates and ups), for K = 0, and if addresses or row strides of
/// a, b or out's codes are no multiples of 16 bytes. For these, call gemm() and cast(), or use the
/// CPU.
OCTOFOLD_API void gated_gemm(const GatedGemmArguments& arguments, Stream stream = {});

}  // namespace octofold
