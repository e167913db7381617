// The product of two matrices that every product of the CPU backend is made of: FP8 products of all
// kinds, gemm_weight_only() and its gradient.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/dot.h"
#include "octofold/tensor.h"

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
  /// Factors of out's columns (BasicScaledTensorView::channel_scale), a matrix and a row to add.
  std::optional<TensorView> channel_scale{};
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

}  // namespace octofold::cpu
