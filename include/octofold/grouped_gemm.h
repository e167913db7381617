// FP8 matrix products of groups of rows, or of K, whose sizes are numbers in device memory: those
// of the experts of a layer. Each group's result has the bits of a product of its own.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/cast_targets.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold {

// Of all these products: types, granularities, arithmetic and rounding are those of gemm(). The
// host reads no size of a group, so that routing may change between replays of a CUDA graph.
// Numbers of groups that make no sense are an error on the CPU; on a GPU nothing outside of the
// given tensors is read or written, whatever they are, and what then is computed has no meaning.
//
// b [G, N, K]: each group's matrix, row-major, all rows equally far apart, from group to group too.
// Its scales, by granularity; those of 128x128 begin with the group:
//
// | granularity | scale of b [G, N, K]                    |
// |-------------|-----------------------------------------|
// | tensor      | one element, or [G]                     |
// | channel     | [G, N], or [G, N, 1]                    |
// | 1x128       | [G, N, ceil(K / 128)]                   |
// | 128x128     | [G, ceil(N / 128), ceil(K / 128)]; where N is a multiple of 128, what a cast of b
// | |             | gives: [G · N / 128, ceil(K / 128)]     |

/// out[rows of g] = a[rows of g] · b[g]ᵀ (+ c[rows of g]) (+ bias[g]).
///
/// a: [M, K], rows sorted by group. out, c: [M, N]. bias: [G, N], contiguous.
/// offsets: int32 [G + 1], contiguous: the rows of g are those from offsets[g] up to
///   offsets[g + 1], none if these are equal. Begins at 0, never decreases, ends at M or before.
///   Rows from the last offset on are not written.
struct GroupedGemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  TensorView offsets;
  MutableTensorView out;
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
  bool fast_accumulation = false;
};

/// Throws Error as gemm(), and kInvalidArgument for two-level scales, of `b` too.
OCTOFOLD_API void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream = {});

/// out[g, i] = a[g, i] · b[g]ᵀ (+ bias[g]) for the first counts[g] rows i of each group: others are
/// not written.
///
/// a: [G, rows, K]; its scales are those of the matrix [G · rows, K]. out: [G, rows, N].
/// counts: int32 [G], contiguous, from 0 to rows.
/// expected_rows: how many rows a group is expected to have; from this the kernel is chosen. Unset:
///   all.
struct MaskedGemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  TensorView counts;
  MutableTensorView out;
  std::optional<TensorView> bias{};
  std::optional<std::int64_t> expected_rows{};
  bool fast_accumulation = false;
};
OCTOFOLD_API void masked_gemm(const MaskedGemmArguments& arguments, Stream stream = {});

/// out[g] = a[:, K of g] · b[:, K of g]ᵀ (+ c[g]): the gradients by the weights of all experts.
///
/// a: [M, columns], b: [N, columns], both as casts of transposes with these offsets have them
///   (CastTargets::offsets): `columns` is group_columns() of the rows that were cast.
/// offsets: int32 [G + 1], contiguous, of the rows that were cast. Of no rows the sum is 0.
/// out, c: [G, M, N]; c may be out: then it is added to in place.
struct GroupedGemmKArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  TensorView offsets;
  MutableTensorView out;
  std::optional<TensorView> c{};
  bool fast_accumulation = false;
};

/// Throws Error as gemm(), and kUnsupported on a GPU where addresses or row strides of a or b are
/// no multiples of 16 bytes.
OCTOFOLD_API void grouped_gemm_k(const GroupedGemmKArguments& arguments, Stream stream = {});

/// out = cast(activation(a · Wgᵀ, a · Wuᵀ)), each row with the weights of its group: gated_gemm()
/// of groups of rows.
///
/// a: [M, K], scales 1x128. b: [G, 2·N, K], scales 128x128; a group's gates, then its ups.
/// offsets: as in grouped_gemm(). out: a target of cast(), of codes [M, N] and scales 1x128.
struct GroupedGatedGemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  TensorView offsets;
  CastTarget out;
  Activation activation = Activation::kSwiGlu;
};

/// Throws Error as gated_gemm().
OCTOFOLD_API void grouped_gated_gemm(const GroupedGatedGemmArguments& arguments,
                                     Stream stream = {});

}  // namespace octofold
