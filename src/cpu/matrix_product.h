// The parts of every product of the CPU backend: the product of two matrices, the groups of a
// product, and rows that arrive while it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "octofold/dot.h"
#include "octofold/tensor.h"

#include "core/product.h"
#include "cpu/matrices.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cpu {

/// One of the two: vectors along the depth, the dimension that is summed.
class Operand {
 public:
  /// The rows of a matrix [rows, depth]; without scales, numbers as they are.
  explicit Operand(const DotOperand& matrix) : matrix_(matrix) {}
  explicit Operand(const ScaledTensorView& matrix)
      : matrix_{matrix.data, matrix.scale, matrix.granularity} {}
  /// The columns of a matrix [depth, columns].
  static Operand columns_of(const ScaledTensorView& matrix);

  std::int64_t depth() const { return matrix_.data.shape[has_columns_ ? 0 : 1]; }
  /// Loads from `count` vectors, from `first` on, the numbers at [k, k + depth), kScaleBlock to a
  /// vector; and what the sums with each are to be multiplied by. k is a multiple of kScaleBlock,
  /// `depth` is at most that.
  void load_block(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t depth,
                  float* values, float* scales) const;

 private:
  void load_rows(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t depth,
                 float* values, float* scales) const;
  void load_columns(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t depth,
                    float* values, float* scales) const;

  DotOperand matrix_;
  bool has_columns_ = false;
};

struct MatrixProduct {
  Operand a, b;
  /// [vectors of a, vectors of b].
  MutableTensorView out;
  /// A matrix and a row to add.
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
};

/// Sums of kScaleBlock products are made in FP32, and added, with their scales, as `Sum`: float or
/// double. The rest is FP32, with one rounding to out's type. An element's bits depend on its own
/// vectors, not on how many others there are.
template <typename Sum>
void compute(const MatrixProduct& product);

extern template void compute<float>(const MatrixProduct& product);
extern template void compute<double>(const MatrixProduct& product);

/// The rows of a group's matrix among those of all, with the scales that are its own.
inline ScaledTensorView matrix_of_group(const core::Groups& groups, ScaledTensorView all,
                                        std::int64_t group) {
  const std::int64_t rows = all.data.shape[0] / groups.count;
  all.data = rows_of(all.data, group * rows, (group + 1) * rows);
  all.scale.data = static_cast<const float*>(all.scale.data) + group * groups.scale_stride;
  return all;
}

/// The bounds of one group of a product whose rows are in groups.
inline config::GroupBounds rows_of_group(const core::Groups& groups, std::int64_t group) {
  if (groups.work == config::Work::kGroupedRows) {
    return {groups.numbers[group], groups.numbers[group + 1]};
  }
  const auto begin = static_cast<std::int32_t>(group * groups.max_rows);
  return {begin, begin + groups.numbers[group]};
}

/// A group's part of a bias [count · columns].
inline std::optional<TensorView> bias_of_group(const std::optional<TensorView>& bias,
                                               std::int64_t group, std::int64_t columns) {
  if (!bias) return std::nullopt;
  TensorView own = moved(*bias, group * columns);
  own.shape[0] = columns;
  return own;
}

/// Returns once this shard is there, and what was written before its flag can be read. Throws
/// Error(kUnavailable) where that takes longer than arrivals.most_seconds.
void await_shard(std::string_view operation, const core::Arrivals& arrivals, std::int64_t shard);

}  // namespace octofold::cpu
