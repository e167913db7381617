// The targets of a cast: FP8 matrices with their scales, and reductions of columns.
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
  kComputed,  ///< computed from each unit's largest magnitude, and written
  kGiven,     ///< read from the target and never written: static scales
};

/// An FP8 matrix to be written, and how.
struct CastTarget {
  MutableTensorView data;   ///< of format.dtype; contiguous columns, rows that do not overlap
  MutableTensorView scale;  ///< float32 of any strides, in the shape of format.granularity
  Format format{};
  ScaleSource scales = ScaleSource::kComputed;
  /// The largest magnitudes of the units, where they are not to be found in the data: those of a
  /// whole tensor, of which the source is a part. float32, in the shape of the scale, apart from
  /// all that is written; signs do not count. Scales are computed from them and written, and codes
  /// are cast with these, so that they have the bits of the whole's cast. A value beyond its unit's
  /// amax becomes what it would with a static scale. For units as long as the matrix (tensor,
  /// channel), without given scales.
  std::optional<TensorView> amax{};

  /// A target that has been written converts to a tensor that can be read.
  operator ScaledTensorView() const { return {data, scale, format.granularity}; }
};

/// Reductions of each column, computed from the read that the casts take anyway, of the values that
/// are cast, in their dtype. They are float32 [K], contiguous, and overlap nothing else that is
/// written.
struct ColumnTargets {
  /// The sums over all rows, 0 for no rows. The sum of a gradient is the gradient by the bias. Sums
  /// are added in FP32 on a GPU, in double on the CPU and rounded once; in a fixed order, so that
  /// the same input gives the same bits.
  std::optional<MutableTensorView> sums{};
  /// The largest magnitudes, 0 for no rows, NaN for a column that has one.
  std::optional<MutableTensorView> amax{};
  /// Needed with either of them: float32 [column_workspace_rows(), K], contiguous. Its contents
  /// afterwards do not matter.
  std::optional<MutableTensorView> workspace{};
};

/// The number of rows of the workspace of ColumnTargets, for x of `rows` rows.
OCTOFOLD_API std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax);

/// The casts of one source, at least one. With block scales a GPU makes them in one pass over the
/// source. Both have the same dtype, rule, power_of_two, overflow and source of scales, an amax or
/// none. They have the same granularity too, except that beside rows of 1x128 the transpose may be
/// of channels, as a weight gradient wants it (the source is then read twice, or once where the
/// transpose has an amax), or, with computed scales, of 128x128.
struct CastTargets {
  /// The cast of the matrix [..., K] itself. data has its shape.
  std::optional<CastTarget> rows{};
  /// The cast of its transpose, written row-major. data is [K, rows]; with `offsets` [K, columns],
  /// with `matrices` [matrices, K, rows / matrices].
  std::optional<CastTarget> transposed{};
  /// Reductions of its columns. For them, rows alone with one scale each are read twice.
  ColumnTargets columns{};
  /// For a transpose of rows that are sorted by group: int32 [groups + 1], contiguous, on the
  /// source's device. Group g has the rows offsets[g] … offsets[g + 1] - 1, of which there may be
  /// none. Rows behind the last group are cast in neither target.
  ///
  /// The transpose then has the K-group layout, in which it is summed group by group:
  /// group_columns(rows, groups, group_layout) columns; those of group g stand from the column on
  /// that the layout says, and zeros behind them up to the next multiple of 128; other columns are
  /// not written, nor are their scales. So 1x128 and 128x128 units begin with a group, and none has
  /// values of two groups; a tensor or channel scale is shared by all groups. Rows of 128x128 are
  /// not allowed, because a square could have rows of two groups, and neither are `columns`, which
  /// are reduced over all rows.
  ///
  /// The CPU backend throws kInvalidArgument for offsets that do not begin at 0, decrease or exceed
  /// the rows, or of tight groups are no multiples of 128. On a GPU they are not checked: whatever
  /// they are, nothing outside of the tensors is read or written.
  std::optional<TensorView> offsets{};
  GroupLayout group_layout = GroupLayout::kSpaced;  ///< of the transpose, where there are offsets
  /// For a source that is a matrix in memory: the number of matrices [rows / matrices, K] that
  /// stand in it one below another, such as the weights of experts; at least 1, a divisor of the
  /// rows. Each is cast as if it were alone, byte for byte, and the transposes stand one below
  /// another too. Neither `offsets` nor `columns` are allowed. The scales of codes [matrices, R,
  /// C]:
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
  /// Beside `matrices`: which of them are cast, a number on the device. int32 [matrices + 1],
  /// contiguous, on the source's device: where the groups of rows begin that are multiplied by the
  /// matrices, and where the last one ends, as grouped products take them. A matrix whose group has
  /// no rows is not read, and neither its codes nor its scales are written: where few tokens are
  /// routed to many experts, what is read and written is that of the experts that have some.
  ///
  /// The CPU backend throws kInvalidArgument for offsets that do not begin at 0, or decrease. On a
  /// GPU they are not checked: whatever they are, a matrix is cast or left alone.
  std::optional<TensorView> used{};
};

/// Rows [begin, end) of a target, like row_slice() of a ScaledTensorView (scale_layout.h).
OCTOFOLD_API CastTarget row_slice(const CastTarget& target, std::int64_t begin, std::int64_t end);

}  // namespace octofold
