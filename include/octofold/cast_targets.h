// What a cast writes: FP8 matrices with their scales, and what it finds out about columns.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/format.h"
#include "octofold/tensor.h"

namespace octofold {

// Tensors x [..., K] with leading dimensions count as matrices [rows, K], rows being the product of
// the leading dimensions and a vector [K] one row. Strides have to compose for that, as those of
// any contiguous tensor and of slices of rows or columns do.
//
// x ≈ code × scale, with a scale for each unit of the matrix (vocabulary.h has the granularities):
//
// | granularity | scale of codes [..., K]                           |
// |-------------|---------------------------------------------------|
// | tensor      | one element, of any shape                         |
// | channel     | [...] or [rows], either with a last dimension 1    |
// | 1x128       | [..., ceil(K / 128)] or [rows, ceil(K / 128)]      |
// | 128x128     | [ceil(rows / 128), ceil(K / 128)]                 |

enum class ScaleSource : std::uint8_t {
  kComputed,  ///< each unit's from its largest magnitude, and written
  kGiven,     ///< the target's scales are read, never written: static scales
};

/// An FP8 matrix to be written, and how.
struct CastTarget {
  MutableTensorView data;   ///< of format.dtype; contiguous columns, rows that do not overlap
  MutableTensorView scale;  ///< float32 of any strides, in the shape of format.granularity
  Format format{};
  ScaleSource scales = ScaleSource::kComputed;
  /// As in ScaledTensorView: it is read, never written. None beside given scales, as kernels find
  /// scales of two levels with the codes.
  std::optional<TensorView> channel_scale{};

  /// What has been written can be read.
  operator ScaledTensorView() const { return {data, scale, format.granularity, channel_scale}; }
};

/// What is to be worked out of each column beside the casts, from the read that these take anyway:
/// of the values that are cast, in their dtype. float32 [K], contiguous, apart from all else
/// that is written.
struct ColumnTargets {
  /// The sums over all rows, 0 of none. The sum of a gradient is the gradient by the bias. On a GPU
  /// added in FP32, on the CPU in double and rounded once; in a fixed order, so that the same input
  /// gives the same bits.
  std::optional<MutableTensorView> sums{};
  /// The largest magnitudes, 0 of no rows, NaN where a column has one.
  std::optional<MutableTensorView> amax{};
  /// With either of them: float32 [column_workspace_rows(), K], contiguous. What it holds
  /// afterwards is of no account.
  std::optional<MutableTensorView> workspace{};
};

/// Rows of the workspace of ColumnTargets for x of so many rows.
OCTOFOLD_API std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax);

/// The casts to be made of one source, at least one; with block scales from one pass over it on a
/// GPU. Both have one dtype, rule, power_of_two, overflow and source of scales, and one
/// granularity, but that beside rows of 1x128 the transpose may be of channels, as a weight
/// gradient wants it (then the source is read twice), or of 128x128 where scales are computed.
struct CastTargets {
  /// Of the matrix [..., K] itself. data: its shape.
  std::optional<CastTarget> rows{};
  /// Of its transpose, written row-major. data: [K, rows]; with `offsets` [K, columns], with
  /// `matrices` [matrices, K, rows / matrices].
  std::optional<CastTarget> transposed{};
  /// Of its columns. Rows alone that have one scale each are read twice for their sake.
  ColumnTargets columns{};
  /// With a transpose, where rows are sorted by group: int32 [groups + 1], contiguous, on the
  /// source's device. The rows of group g are offsets[g] … offsets[g + 1] - 1, of any number, from
  /// 0 on; rows behind the last group are not cast, in neither target.
  ///
  /// The transpose then has the K-group layout, in which it is summed group by group:
  /// group_columns(rows, groups) columns; those of group g stand from column 128 · (offsets[g] /
  /// 128 + g) on, and zeros behind them up to the next multiple of 128; other columns are not
  /// written, nor are their scales. So scale units of 1x128 and 128x128 begin with a group, and
  /// none has values of two; a scale of a tensor or channel is for all groups. No rows of 128x128,
  /// which would; no `columns`, which are of all rows.
  ///
  /// The CPU backend throws kInvalidArgument for offsets that do not begin at 0, decrease or exceed
  /// the rows. On a GPU they are not looked at before: whatever they are, nothing outside of the
  /// tensors is read or written.
  std::optional<TensorView> offsets{};
  /// Where the source is a matrix as it is: it is a stack of so many matrices [rows / matrices, K],
  /// one below another, such as the weights of experts; at least 1, a divisor of the rows. Each is
  /// cast as if it were alone, byte for byte, and the transposes too stand one below another. No
  /// `offsets`, no `columns`, which are of all rows. The scales of codes [matrices, R, C]:
  ///
  /// | granularity | scale                                       |
  /// |-------------|---------------------------------------------|
  /// | tensor      | [matrices]                                  |
  /// | channel     | [matrices, R], or with a last dimension 1   |
  /// | 1x128       | [matrices, R, ceil(C / 128)]                |
  /// | 128x128     | [matrices, ceil(R / 128), ceil(C / 128)]    |
  ///
  /// Their strides, and those of the codes, have to compose as x's do. (Rows, whose shape is x's,
  /// may have any leading dimensions, and so may their scales of channels and 1x128.)
  std::optional<std::int64_t> matrices{};
};

/// Rows [begin, end) of a target, as row_slice() of a ScaledTensorView (scale_layout.h).
OCTOFOLD_API CastTarget row_slice(const CastTarget& target, std::int64_t begin, std::int64_t end);

}  // namespace octofold
