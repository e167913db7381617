// Matrices of random numbers for kernels that run on the host, in rows that lie apart.
#pragma once

#include <cstdint>
#include <vector>

#include "octofold/tensor.h"

#include "cpu/matrices.h"
#include "kernels/numeric/elements.h"
#include "support/test.h"

namespace octofold::test {

using Floats = std::vector<float>;

inline Floats draw(std::size_t count) {
  Random random;
  Floats values(count);
  for (float& value : values)
    value = static_cast<float>(static_cast<int>(random() % 8192)) / 999 - 4;
  return values;
}

template <DType kType>
std::vector<numeric::Storage<kType>> stored(const Floats& values) {
  std::vector<numeric::Storage<kType>> elements(values.size());
  cpu::store(values.data(), std::ssize(values), elements.data(), kType, 0, Overflow::kNan);
  return elements;
}

// A matrix [rows, cols] of random numbers of a type, with `padding` elements between rows. Of what
// is written a copy is given to the CPU.
template <DType kType>
class Numbers {
 public:
  Numbers(std::int64_t rows, std::int64_t cols, std::int64_t padding)
      : Numbers(rows, cols, padding, draw(as_size(rows * (cols + padding)))) {}
  Numbers(std::int64_t rows, std::int64_t cols, std::int64_t padding, const Floats& values)
      : rows_(rows), cols_(cols), stride_(cols + padding), elements_(stored<kType>(values)) {}

  TensorView row() const { return vector(elements_.data(), kType, cols_); }
  MutableTensorView row() { return vector(elements_.data(), kType, cols_); }
  MutableTensorView view() { return matrix(elements_.data(), kType, rows_, cols_, stride_); }
  TensorView view() const { return matrix(elements_.data(), kType, rows_, cols_, stride_); }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  float at(std::int64_t row, std::int64_t col) const {
    float value;
    cpu::load(elements_.data(), kType, row * stride_ + col, 1, 1, &value);
    return value;
  }
  friend bool operator==(const Numbers&, const Numbers&) = default;

 private:
  std::int64_t rows_, cols_, stride_;
  std::vector<numeric::Storage<kType>> elements_;
};

// Elements differ by at most error(expected).
template <DType kType>
void expect_near(const Numbers<kType>& actual, const Numbers<kType>& expected, auto&& error) {
  for (std::int64_t row = 0; row < actual.rows(); ++row) {
    for (std::int64_t col = 0; col < actual.cols(); ++col) {
      const float wanted = expected.at(row, col);
      EXPECT_NEAR(actual.at(row, col), wanted, error(wanted)) << row << ", " << col;
    }
  }
}

}  // namespace octofold::test
