// Random operands of products, and what they are worth.
#pragma once

#include "octofold/cast.h"
#include "octofold/convert_dtype.h"
#include "octofold/scale_layout.h"
#include "octofold/tensor.h"

#include "support/matrix.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold::test {

/// An operand with its scales, dequantized to FP64 on its own terms.
struct Operand {
  Matrix codes;
  std::vector<float> scales;
  Granularity granularity;
  std::int64_t rows, cols;

  Operand(std::mt19937& random, DType dtype, Granularity granularity_, std::int64_t rows_,
          std::int64_t cols_, std::int64_t padding, bool power_of_two)
      : codes(dtype, rows_, cols_, padding), granularity(granularity_), rows(rows_), cols(cols_) {
    std::size_t scale_count = 1;
    for (const std::int64_t size : scale_shape(granularity, rows, cols)) {
      scale_count *= as_size(size);
    }
    scales.assign(scale_count, std::nanf(""));
    const Matrix values = test::random_matrix(random, rows, cols, padding);
    cast(values.view(), test::by({.power_of_two = power_of_two}, {.rows = target()}));
  }

  CastTarget target() {
    const std::vector<std::int64_t> shape = scale_shape(granularity, rows, cols);
    const MutableTensorView scale =
        shape.size() == 1 ? vector(scales.data(), DType::kFloat32, shape[0])
                          : matrix(scales.data(), DType::kFloat32, shape[0], shape[1]);
    const MutableTensorView data = codes.view();
    return {data, scale, {.dtype = data.dtype, .granularity = granularity}};
  }

  double at(std::int64_t row, std::int64_t col) const {
    const std::int64_t col_blocks = (cols + 127) / 128;
    std::int64_t unit = 0;
    switch (granularity) {
      case Granularity::kTensor: break;
      case Granularity::kChannel: unit = row; break;
      case Granularity::kBlock1x128: unit = row * col_blocks + col / 128; break;
      case Granularity::kBlock128x128: unit = row / 128 * col_blocks + col / 128; break;
    }
    return codes.at(row, col) * static_cast<double>(scales[as_size(unit)]);
  }

  std::vector<double> dequantized() const {
    std::vector<double> values;
    values.reserve(as_size(rows * cols));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) values.push_back(at(row, col));
    }
    return values;
  }
};

/// Random numbers, rounded.
inline Matrix random_addend(std::mt19937& random, DType dtype, std::int64_t rows, std::int64_t cols,
                            std::int64_t padding) {
  const Matrix values = test::random_matrix(random, rows, cols);
  Matrix result(dtype, rows, cols, padding);
  convert_dtype(values.view(), result.view());
  return result;
}

}  // namespace octofold::test
