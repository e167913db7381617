// Operands of products with FP8 weights that run on the host, among NaN.
#pragma once

#include "octofold/types.h"

#include "cpu/convert.h"
#include "kernels/weight_only/config/weight_only.h"
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

}  // namespace octofold::test
