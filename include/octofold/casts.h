// Casts to and from FP8.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octofold/export.h"
#include "octofold/scale_layout.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

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

/// What is to be worked out of each column of x beside its casts, from the read that these take
/// anyway: of the values that are cast, in x's dtype. float32 [K], contiguous, apart from all else
/// that is written.
struct ColumnTargets {
  /// The sums over all rows, 0 of none: of a gradient, that by the bias. On a GPU added in FP32, on
  /// the CPU in double and rounded once; in a fixed order, so that the same input gives the same
  /// bits.
  std::optional<MutableTensorView> sums{};
  /// The largest magnitudes, 0 of no rows, NaN where a column has one.
  std::optional<MutableTensorView> amax{};
  /// With either of them: float32 [column_workspace_rows(), K], contiguous. What it holds
  /// afterwards is of no account.
  std::optional<MutableTensorView> workspace{};
};

/// Rows of the workspace of ColumnTargets for x of so many rows.
OCTOFOLD_API std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax);

/// The casts of x to be made, at least one; with block scales from one pass over x on a GPU. Both
/// have one dtype, and one granularity, but beside rows of 1x128 the transpose may be of channels,
/// as a weight gradient wants it: then x is read twice; or of 128x128.
struct CastTargets {
  /// Of x [..., K] itself. data: x's shape.
  std::optional<MutableScaledTensorView> rows{};
  /// Of x's transpose, written row-major. data: [K, rows]; with `offsets` [K, columns], with
  /// `matrices` [matrices, K, rows / matrices].
  std::optional<MutableScaledTensorView> transposed{};
  /// Of the columns of x. Rows alone that have one scale each are read twice for their sake.
  ColumnTargets columns{};
  /// With a transpose, of x whose rows are sorted by group: int32 [groups + 1], contiguous, on x's
  /// device. The rows of group g are offsets[g] … offsets[g + 1] - 1, of any number, from 0 on;
  /// rows behind the last group are not cast, in neither target.
  ///
  /// The transpose then has the K-group layout, in which it is summed group by group:
  /// group_columns(rows, groups) columns; those of group g stand from column 128 · (offsets[g] /
  /// 128 + g) on, and zeros behind them up to the next multiple of 128; other columns are not
  /// written, nor are their scales. So scale units of 1x128 and 128x128 begin with a group, and
  /// none has values of two; a scale of a tensor or channel is for all groups. No rows of 128x128,
  /// which would; no `columns`.
  ///
  /// The CPU backend throws kInvalidArgument for offsets that do not begin at 0, decrease or exceed
  /// the rows. On a GPU they are not looked at before: whatever they are, nothing outside of the
  /// tensors is read or written.
  std::optional<TensorView> offsets{};
  /// Of quantize() alone: x is a stack of so many matrices [rows / matrices, K], one below another,
  /// such as the weights of experts; at least 1, a divisor of the rows. Each is cast as if it were
  /// alone, byte for byte, and the transposes too stand one below another. No `offsets`, no
  /// `columns`. The scales of codes [matrices, R, C]:
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

/// Columns of a transpose of so many rows in the K-group layout: 128 · (rows / 128 + groups).
OCTOFOLD_API std::int64_t group_columns(std::int64_t rows, std::int64_t groups);

enum class ScaleSource : std::uint8_t {
  kComputed,  ///< each unit's from its largest magnitude, and written
  kGiven,     ///< the targets' scales are read, never written: static scales
};

struct QuantizeOptions {
  /// Whose scale rule and rounding to follow; docs/numerics.md lists them. Of given scales only
  /// one thing: whether codes round x · (1 / scale) or x / scale.
  CastProfile profile = CastProfile::kDeepGemm;
  /// Round scales to powers of two (UE8M0 values kept as FP32). Unset: the profile's own default.
  /// Given scales are taken as they are, and true is an error.
  std::optional<bool> power_of_two{};
  Overflow overflow = Overflow::kSaturate;
  ScaleSource scales = ScaleSource::kComputed;
};

/// Casts x to FP8 with one FP32 scale per unit of each target, and writes codes and scales.
///
/// x: [..., K] float32, float16 or bfloat16; columns contiguous, any row stride (0 and negative
///   ones too).
/// out: e4m3 or e5m2 data with contiguous columns and rows that do not overlap; float32 scales of
///   any strides.
/// NaN and Inf follow IEEE rules through the arithmetic of the profile.
/// Throws Error, as all of these functions: kInvalidArgument for wrong dtypes, shapes, strides or
/// overlapping memory; on a GPU kUnsupported without kernels for it, kUnavailable without a usable
/// driver or compiler.
OCTOFOLD_API void quantize(const TensorView& x, const CastTargets& out,
                           const QuantizeOptions& options = {}, Stream stream = {});

/// out = code × scale, the product in FP32, rounded to nearest even in out's type.
/// x.data: [..., K], any row stride; of a stack [matrices, ..., K] the scales may be those of
/// CastTargets::matrices, which begin anew with each matrix; out: the same shape, float32, float16
/// or bfloat16, columns contiguous, rows that do not overlap.
OCTOFOLD_API void dequantize(const ScaledTensorView& x, const MutableTensorView& out,
                             Stream stream = {});

/// Element-wise conversion between any two of float32, float16, bfloat16, e4m3 and e5m2, without
/// scales, rounding to nearest even.
/// `overflow` applies to FP8 results; float16 and bfloat16 overflow to infinity.
/// x, out: the same shape [..., K], last dimension contiguous; x of any row stride, out with
/// rows that do not overlap.
OCTOFOLD_API void convert(const TensorView& x, const MutableTensorView& out,
                          Overflow overflow = Overflow::kSaturate, Stream stream = {});

}  // namespace octofold
