// FP8 matrix products of groups of rows, or of K, whose sizes are numbers in device memory, as for
// the experts of a layer. Each group's result has the bits of a product of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

// Types, granularities, arithmetic and rounding are those of gemm(); scales have one level. The
// host reads no size of a group, so routing may change between replays of a CUDA graph. Offsets and
// counts that make no sense are an error on the CPU. On a GPU nothing outside of the given tensors
// is read or written, whatever they are, and the results then mean nothing.
//
// b [G, N, K] has a matrix for each group, row-major, with one row stride, from group to group too.
// The shape of its scales depends on the granularity; 128x128 squares begin with the group:
//
// | granularity | scale of b [G, N, K]                    |
// |-------------|-----------------------------------------|
// | tensor      | one element, or [G]                     |
// | channel     | [G, N], or [G, N, 1]                    |
// | 1x128       | [G, N, ceil(K / 128)]                   |
// | 128x128     | [G, ceil(N / 128), ceil(K / 128)]; where N is a multiple of 128, what a cast of b
// | |             | gives: [G · N / 128, ceil(K / 128)]     |

/// Groups of consecutive rows of a: out[rows of g] = a[rows of g] · b[g]ᵀ (+ c[rows of g])
/// (+ bias[g]).
///
/// a: [M, K]. b: [G, N, K]. out, c: [M, N]. bias: [G, N], contiguous.
struct RowGroups {
  /// int32 [G + 1], contiguous. Group g has the rows from offsets[g] up to offsets[g + 1], none if
  /// these are equal. Offsets begin at 0, never decrease, and end at M or before. Rows from the
  /// last offset on are not written.
  TensorView offsets;
};

/// Groups with room for equally many rows each: out[g, i] = a[g, i] · b[g]ᵀ (+ bias[g]) for the
/// first counts[g] rows i of each group. Others are not written.
///
/// a: [G, rows, K]; its scales are those of the matrix [G · rows, K], or where they are of rows,
/// each group's: [G, rows, ceil(K / 128)] or [G, rows] of any strides, such as M-major ones of each
/// group (DeepGEMM's). b: [G, N, K]. out: [G, rows, N]. bias: [G, N], contiguous. There is no c.
struct MaskedGroups {
  /// int32 [G], contiguous, from 0 to rows.
  TensorView counts;
  /// The number of rows that a group is expected to have; the kernel is chosen by it. Unset: all.
  std::optional<std::int64_t> expected_rows{};
};

/// Groups along K: out[g] = a[:, K of g] · b[:, K of g]ᵀ (+ c[g]), the gradients by the weights of
/// all experts.
///
/// a: [M, columns], b: [N, columns], both as transposed casts with these offsets and this layout
///   write them (CastTargets::offsets); `columns` is group_columns() of the rows that were cast.
/// out, c: [G, M, N]; c may be out, to which the sums are then added in place. There is no bias.
struct DepthGroups {
  /// int32 [G + 1], contiguous, of the rows that were cast. The sum over no rows is 0.
  TensorView offsets;
  /// Tight: offsets that are no multiples of 128 are an error on the CPU. On a GPU results of such
  /// groups mean nothing, as those of other offsets that make no sense.
  GroupLayout layout = GroupLayout::kSpaced;
};

using Groups = std::variant<RowGroups, MaskedGroups, DepthGroups>;

struct GroupedGemmArguments {
  ScaledTensorView a;
  ScaledTensorView b;
  Groups groups;
  MutableTensorView out;
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
  bool fast_accumulation = false;  ///< as in gemm()
  bool batch_invariant = false;    ///< as in gemm(), whatever the groups are
};

/// Throws Error as gemm() does; kInvalidArgument for two-level scales, of `b` too, for a c with
/// MaskedGroups and for a bias with DepthGroups; kUnsupported for DepthGroups on a GPU if addresses
/// or row strides of a or b are no multiples of 16 bytes.
OCTOFOLD_API void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream = {});

}  // namespace octofold
