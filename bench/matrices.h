// Matrices that the benchmarks multiply and cast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "octofold/quantize.h"
#include "octofold/tensor.h"

namespace octofold::bench {

inline std::vector<float> random_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& value : values) value = normal(generator);
  return values;
}

/// An e4m3 matrix that owns its codes and scales.
struct Fp8Matrix {
  Fp8Matrix(std::int64_t rows, std::int64_t cols, Granularity granularity) {
    const std::vector<std::int64_t> shape = scale_shape(granularity, rows, cols);
    std::int64_t scale_count = 1;
    for (const std::int64_t size : shape) scale_count *= size;
    codes.resize(static_cast<std::size_t>(rows * cols));
    scales.resize(static_cast<std::size_t>(scale_count));
    view.data = matrix(codes.data(), DType::kE4M3, rows, cols);
    view.scale = shape.size() == 1 ? vector(scales.data(), DType::kFloat32, shape[0])
                                   : matrix(scales.data(), DType::kFloat32, shape[0], shape[1]);
    view.granularity = granularity;
  }

  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  MutableScaledTensorView view;
};

}  // namespace octofold::bench
