// Matrices for tests: owned memory with padding between rows, filled with fresh random values or
// poison, and read back as doubles by decoders that share nothing with the code under test.
#pragma once

#include "octofold/tensor.h"

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

/// The code of a query's largest magnitude where its scores are products of e4m3 codes: the nearest
/// e4m3 number of 16 steps to the octave's, at most 448 (octofold/attention.h).
inline float fp8_query_code(float largest) {
  int exponent;  // of numbers from 1/2 on
  const float code = std::floor(std::frexp(largest, &exponent) * 16 + 0.5f) * 32;
  return code > 448 ? code / 2 : code;
}

class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t row_padding = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + row_padding),
        bytes_(as_size(rows * stride_ * size_of(dtype)), 0xFF) {}  // NaN

  MutableTensorView view() { return matrix(data(), dtype_, rows_, cols_, stride_); }
  TensorView view() const { return matrix(data(), dtype_, rows_, cols_, stride_); }
  MutableTensorView row_vector() { return vector(data(), dtype_, cols_); }
  TensorView row_vector() const { return vector(data(), dtype_, cols_); }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

  double at(std::int64_t row, std::int64_t col) const {
    const std::uint8_t* element = bytes_.data() + (row * stride_ + col) * size_of(dtype_);
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

  /// For float32 only: other dtypes are filled through octofold::convert.
  float& float_at(std::int64_t row, std::int64_t col) {
    return reinterpret_cast<float*>(bytes_.data())[row * stride_ + col];
  }

  /// True if the bytes between the rows are still as they were made.
  bool padding_is_untouched() const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t i = cols_ * size_of(dtype_); i < stride_ * size_of(dtype_); ++i) {
        if (bytes_[as_size(row * stride_ * size_of(dtype_) + i)] != 0xFF) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  DType dtype_;
  std::int64_t rows_, cols_, stride_;
  std::vector<std::uint8_t> bytes_;
};

/// A float32 matrix of normal random numbers; each row has a magnitude of its own, so that scales
/// differ and mixing them up shows.
inline Matrix random_matrix(std::mt19937& random, std::int64_t rows, std::int64_t cols,
                            std::int64_t row_padding = 0) {
  Matrix result(DType::kFloat32, rows, cols, row_padding);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-3.0f, 3.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float magnitude = std::exp2(exponent(random));
    for (std::int64_t col = 0; col < cols; ++col) {
      result.float_at(row, col) = magnitude * normal(random);
    }
  }
  return result;
}

}  // namespace octofold::test
