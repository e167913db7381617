// Matrices for tests: owned memory, filled with fresh random values among NaN, and read back as
// doubles by decoders that share nothing with the code under test; and scales of matrices.
#pragma once

#include "octofold/tensor.h"
#include "octofold/types.h"

#include "cpu/matrices.h"
#include "support/test.h"

namespace octofold::test {

/// Value of a code of a format with these parameters, by the definition of the formats.
inline double decode_bits(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
  const unsigned exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const double sign = (code >> (mantissa_bits + exponent_bits)) != 0 ? -1.0 : 1.0;
  const unsigned special = (1u << exponent_bits) - 1;
  const bool e4m3 = exponent_bits == 4;
  if (e4m3 ? (exponent == special && mantissa == 7) : (exponent == special && mantissa != 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (!e4m3 && exponent == special) return sign * std::numeric_limits<double>::infinity();
  const double significand =
      (exponent == 0 ? 0.0 : 1.0) + std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  return sign * std::ldexp(significand, (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias);
}

class Matrix {
 public:
  /// All of it is NaN. Rows lie `padding` elements apart; the first element lies `offset` elements
  /// behind a multiple of 16 bytes.
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 0,
         std::int64_t offset = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        offset_(offset),
        bytes_(as_size((offset + rows * stride_ + kBehind) * size_of(dtype)), 0xFF) {}

  MutableTensorView view() { return matrix<void>(data(), dtype_, rows_, cols_, stride_); }
  TensorView view() const { return matrix<const void>(data(), dtype_, rows_, cols_, stride_); }
  MutableTensorView row_vector() { return vector<void>(data(), dtype_, cols_); }
  TensorView row_vector() const { return vector<const void>(data(), dtype_, cols_); }

  std::uint8_t* data() { return bytes_.data() + offset_ * size_of(dtype_); }
  const std::uint8_t* data() const { return bytes_.data() + offset_ * size_of(dtype_); }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  /// All that is owned, what lies beside the elements too.
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

  double at(std::int64_t row, std::int64_t col) const {
    const std::uint8_t* element = data() + (row * stride_ + col) * size_of(dtype_);
    std::uint16_t half = 0;
    float single = 0;
    switch (dtype_) {
      case DType::kE4M3: return decode_bits(*element, 4, 3, 7);
      case DType::kE5M2: return decode_bits(*element, 5, 2, 15);
      case DType::kFloat16: std::memcpy(&half, element, 2); return decode_bits(half, 5, 10, 15);
      case DType::kBFloat16: std::memcpy(&half, element, 2); return decode_bits(half, 8, 7, 127);
      case DType::kFloat32: std::memcpy(&single, element, 4); return static_cast<double>(single);
      case DType::kInt32: break;  // no matrix of them is read
    }
    return 0;
  }
  void set(std::int64_t row, std::int64_t col, float value) {
    cpu::store(&value, 1, data(), dtype_, row * stride_ + col, Overflow::kNan);
  }
  /// Sets every element, row by row.
  void fill(auto&& next) {
    std::vector<float> values(as_size(cols_));
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (float& value : values) value = next();
      cpu::store(values.data(), cols_, data(), dtype_, row * stride_, Overflow::kNan);
    }
  }

  /// Expects the bytes of `before`, but for the elements of rows that are `written`.
  void expect_as_before(const Matrix& before, const std::vector<bool>& written) const {
    const std::int64_t begin = offset_ * size_of(dtype_), row_bytes = stride_ * size_of(dtype_);
    for (std::int64_t i = 0; i < std::ssize(bytes_); ++i) {
      const std::int64_t row = (i - begin) / std::max<std::int64_t>(row_bytes, 1);
      const bool is_written = i >= begin && row < rows_ && written[as_size(row)] &&
                              (i - begin) % row_bytes < cols_ * size_of(dtype_);
      if (is_written) continue;
      ASSERT_EQ(bytes_[as_size(i)], before.bytes_[as_size(i)]) << "beside row " << row;
    }
  }
  /// Nothing is written but elements.
  void expect_untouched_beside() const {
    expect_as_before(Matrix(dtype_, rows_, cols_, stride_ - cols_, offset_),
                     std::vector<bool>(as_size(rows_), true));
  }

 private:
  static constexpr std::int64_t kBehind = 64;  // elements

  DType dtype_;
  std::int64_t rows_, cols_, stride_, offset_;
  std::vector<std::uint8_t> bytes_;
};

/// Numbers between -4.0 and 4.2.
inline float draw_number(std::mt19937& random) {
  return static_cast<float>(random() % 8192) / 999 - 4;
}
/// Matrices of other padding have others.
inline Matrix drawn(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 0,
                    std::int64_t offset = 0) {
  Random random;
  random.discard(as_size(padding));
  Matrix result(dtype, rows, cols, padding, offset);
  result.fill([&] { return draw_number(random); });
  return result;
}

/// A matrix of normal random numbers; each row has a magnitude of its own, so that scales differ
/// and mixing them up shows.
inline Matrix random_matrix(std::mt19937& random, std::int64_t rows, std::int64_t cols,
                            std::int64_t padding = 0, DType dtype = DType::kFloat32) {
  Matrix result(dtype, rows, cols, padding);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-3.0f, 3.0f);
  std::int64_t count = 0;
  float magnitude = 1;
  result.fill([&] {
    if (count++ % cols == 0) magnitude = std::exp2(exponent(random));
    return magnitude * normal(random);
  });
  return result;
}

/// Elements differ by at most error(expected).
inline void expect_near(const Matrix& actual, const Matrix& expected, auto&& error) {
  for (std::int64_t row = 0; row < actual.rows(); ++row) {
    for (std::int64_t col = 0; col < actual.cols(); ++col) {
      const auto wanted = static_cast<float>(expected.at(row, col));
      EXPECT_NEAR(actual.at(row, col), wanted, error(wanted)) << row << ", " << col;
    }
  }
}

/// Scales of a matrix by granularity, column by column, beside NaN.
class Scales {
 public:
  Scales(Granularity granularity, std::int64_t rows, std::int64_t cols, Random& random)
      : granularity_(granularity), stride_(rows + 3) {
    values_.assign(as_size(stride_ * (cols / kScaleBlock + 2)), NAN);
    for (std::int64_t row = 0; row < rows; row += row_units()) {
      for (std::int64_t col = 0; col < cols + 1; col += kScaleBlock) {
        const auto unit = static_cast<int>((unit_row(row) * 5 + unit_col(col) * 3) % 7);
        const float fraction = static_cast<float>(random() % 1024) / 1024;
        values_[index(row, col)] = std::ldexp(1 + fraction, unit - 3);
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

  double at(std::int64_t row, std::int64_t col) const { return double{values_[index(row, col)]}; }
  // The scales of a matrix [rows, cols], the first ones where there are more.
  TensorView view(std::int64_t rows, std::int64_t cols) const {
    if (granularity_ == Granularity::kTensor) return vector(values_.data(), DType::kFloat32, 1);
    if (granularity_ == Granularity::kChannel) return vector(values_.data(), DType::kFloat32, rows);
    TensorView scales =
        matrix(values_.data(), DType::kFloat32, (rows + row_units() - 1) / row_units(),
               (cols + kScaleBlock - 1) / kScaleBlock);
    scales.strides = {row_stride(), col_stride()};
    return scales;
  }
  // From the scales of one matrix to those of the next, which has as many rows.
  std::int64_t matrix_stride(std::int64_t rows) const {
    return granularity_ == Granularity::kTensor ? 0 : rows / row_units();
  }

 private:
  std::int64_t row_units() const {
    return granularity_ == Granularity::kBlock128x128 ? kScaleBlock : 1;
  }
  std::int64_t unit_row(std::int64_t row) const {
    return granularity_ == Granularity::kTensor ? 0 : row / row_units();
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
