// Operands of products with FP8 weights that run on the host, among NaN.
#pragma once

#include <span>

#include "octofold/types.h"

#include "cpu/matrices.h"
#include "kernels/weight_only/config/config.h"
#include "support/test.h"

namespace octofold::test {

// Rows among NaN, which begin `offset` elements behind a multiple of 16 bytes.
class Matrix {
 public:
  Matrix(DType type, std::int64_t rows, std::int64_t cols, std::int64_t pad, std::int64_t offset)
      : type_(type), cols_(cols), stride_(cols + pad), offset_(offset) {
    const auto count = as_size(rows * stride_ + offset + 64);
    memory_.resize(count * as_size(size_of(type)) / 16 + 2);
    const std::vector<float> nan(count, NAN);
    cpu::store(nan.data(), std::ssize(nan), memory_.data(), type, 0, Overflow::kNan);
  }

  void draw(Random& random, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols_; ++col) {
        set(row, col, static_cast<float>(static_cast<int>(random() % 8192)) / 999 - 4);
      }
    }
  }

  void set(std::int64_t row, std::int64_t col, float value) {
    cpu::store(&value, 1, memory_.data(), type_, index(row, col), Overflow::kNan);
  }
  double at(std::int64_t row, std::int64_t col) const {
    float value = 0;
    cpu::load(memory_.data(), type_, index(row, col), 1, 1, &value);
    return value;
  }
  unsigned char* data() {
    return reinterpret_cast<unsigned char*>(memory_.data()) + offset_ * size_of(type_);
  }
  std::int64_t stride() const { return stride_; }

 private:
  struct alignas(16) Unit {
    unsigned char bytes[16];
  };
  std::int64_t index(std::int64_t row, std::int64_t col) const {
    return offset_ + row * stride_ + col;
  }

  DType type_;
  std::int64_t cols_, stride_, offset_;
  std::vector<Unit> memory_;
};

// Scales of a matrix by granularity, column by column, beside NaN.
class Scales {
 public:
  Scales(Granularity granularity, std::int64_t rows, std::int64_t cols)
      : granularity_(granularity), stride_(rows + 3) {
    values_.assign(as_size(stride_ * (cols / kScaleBlock + 2)), NAN);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        const auto unit = static_cast<float>((unit_row(row) * 5 + unit_col(col) * 3) % 7);
        values_[index(row, col)] = std::exp2f(unit - 3) * 1.25f;
      }
    }
  }

  // Sets the scale of each 128 columns, whatever the row.
  void set(std::span<const float> of_columns) {
    for (std::size_t i = 0; i < of_columns.size(); ++i) {
      for (std::int64_t row = 0; row < stride_; ++row) {
        values_[i * as_size(stride_) + as_size(row)] = of_columns[i];
      }
    }
  }

  double at(std::int64_t row, std::int64_t col) const { return values_[index(row, col)]; }
  config::WeightOnlyScale of_rows() const {
    return {values_.data(), row_stride(), col_stride(), is_square() ? 7 : 0};
  }
  config::WeightOnlyScale of_columns() const {
    return {values_.data(), col_stride(), row_stride(), 7};
  }

 private:
  bool is_square() const { return granularity_ == Granularity::kBlock128x128; }
  std::int64_t unit_row(std::int64_t row) const {
    return granularity_ == Granularity::kTensor ? 0 : is_square() ? row / kScaleBlock : row;
  }
  std::int64_t unit_col(std::int64_t col) const {
    return varies_along_k(granularity_) ? col / kScaleBlock : 0;
  }
  std::int64_t row_stride() const { return granularity_ == Granularity::kTensor ? 0 : 1; }
  std::int64_t col_stride() const { return varies_along_k(granularity_) ? stride_ : 0; }
  std::size_t index(std::int64_t row, std::int64_t col) const {
    return as_size(unit_row(row) * row_stride() + unit_col(col) * col_stride());
  }

  Granularity granularity_;
  std::int64_t stride_;
  std::vector<float> values_;
};

struct WeightOnlyCase {
  std::int64_t rows, columns, depth;
  Granularity w_scales = Granularity::kTensor;
  Granularity x_scales = Granularity::kTensor;  // of FP8
  bool has_bias = false;
  bool bias_is_float32 = false;
  std::int64_t pad = 0, offset = 0;
  bool has_nan = false;
  int splits = 1;
  std::span<const float> scales = {};  // of W, of each 128 columns, in place of others
};

// Scales of blocks one after another, of a depth of 896: sums in units of the last scale have to
// change it.
inline constexpr float kFarApart[][7] = {{0, 3, 0, 0, 1e-6f, 2, 0},
                                         {1e20f, 1e-30f, 1e-30f, 7e19f, 0, 1, 1},
                                         {-1, 2, 1e-38f, -3, 1e-20f, 4, 5},
                                         {0, 0, 0, 0, 0, 0, 0},
                                         {1e-30f, 2e-30f, 1e-31f, 0, 3e-30f, 1e-30f, 1e-30f}};

// A product in memory, for a kernel of this configuration, and what FP64 makes of it.
template <auto kConfig>
class WeightOnlyProduct {
 public:
  explicit WeightOnlyProduct(const WeightOnlyCase& given)
      : given_(given),
        w_(kConfig.w, w_rows(), w_cols(), given.pad, given.offset),
        x_(kConfig.x, given.rows, given.depth, given.pad, given.offset),
        out_(kConfig.out, given.rows, given.columns, given.pad, given.offset),
        bias_(given.bias_is_float32 ? DType::kFloat32 : kConfig.out, 1, given.columns, 0, 0),
        w_scales_(given.w_scales, w_rows(), w_cols()),
        x_scales_(given.x_scales, given.rows, given.depth),
        partials_(as_size(given.splits * given.rows * given.columns), NAN) {
    Random random;
    w_.draw(random, w_rows());
    x_.draw(random, given.rows);
    bias_.draw(random, 1);
    w_scales_.set(given.scales);
    if (given.has_nan) w_.set(w_rows() / 2, w_cols() / 2, NAN);
  }

  config::WeightOnlyParams params() {
    config::WeightOnlyParams params{.w = w_.data(),
                                    .w_stride = w_.stride(),
                                    .x = x_.data(),
                                    .x_stride = x_.stride() * size_of(kConfig.x),
                                    .out = out_.data(),
                                    .out_stride = out_.stride(),
                                    .bias = given_.has_bias ? bias_.data() : nullptr,
                                    .bias_is_float32 = given_.bias_is_float32,
                                    .w_scale = w_scale(),
                                    .x_scale = {},
                                    .rows = given_.rows,
                                    .columns = given_.columns,
                                    .depth = given_.depth,
                                    .partials = partials_.data(),
                                    .splits = given_.splits};
    if (is_fp8(kConfig.x)) params.x_scale = x_scales_.of_rows();
    return params;
  }

  void expect_right() const {
    // A weight that has a factor is rounded once more.
    const double rounding = kConfig.x == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    const double unit = kConfig.out == DType::kFloat32   ? 0
                        : kConfig.out == DType::kFloat16 ? 0x1p-11
                                                         : 0x1p-8;
    const double of_terms = 2e-6 + (kConfig.depth_factors ? rounding : 0);
    for (std::int64_t row = 0; row < given_.rows; ++row) {
      for (std::int64_t column = 0; column < given_.columns; ++column) {
        double terms;
        const double sum = sum_of(row, column, terms), actual = out_.at(row, column);
        if (std::isnan(sum)) {
          EXPECT_TRUE(std::isnan(actual)) << row << " " << column;
        } else {
          ASSERT_NEAR(actual, sum, of_terms * terms + unit * std::abs(sum))
              << row << " " << column << " of " << given_.depth;
        }
      }
    }
    // The memory beside out is as it was.
    if (given_.pad > 0) {
      EXPECT_TRUE(std::isnan(out_.at(given_.rows - 1, given_.columns)));
    }
    EXPECT_TRUE(std::isnan(out_.at(given_.rows, 0)));
  }

  config::WeightOnlyScale w_scale() const {
    return kConfig.transposed ? w_scales_.of_columns() : w_scales_.of_rows();
  }

 private:
  std::int64_t w_rows() const { return kConfig.transposed ? given_.depth : given_.columns; }
  std::int64_t w_cols() const { return kConfig.transposed ? given_.columns : given_.depth; }

  double sum_of(std::int64_t row, std::int64_t column, double& terms) const {
    double sum = terms = 0;
    for (std::int64_t k = 0; k < given_.depth; ++k) {
      const std::int64_t w_row = kConfig.transposed ? k : column;
      const std::int64_t w_col = kConfig.transposed ? column : k;
      double term = x_.at(row, k) * w_.at(w_row, w_col) * w_scales_.at(w_row, w_col);
      if (is_fp8(kConfig.x)) term *= x_scales_.at(row, k);
      sum += term;
      terms += std::abs(term);
    }
    return given_.has_bias ? sum + bias_.at(0, column) : sum;
  }

  WeightOnlyCase given_;
  Matrix w_, x_, out_, bias_;
  Scales w_scales_, x_scales_;
  std::vector<float> partials_;
};

}  // namespace octofold::test
