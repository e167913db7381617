// Matrices that the benchmarks multiply and cast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace octofold::bench {

inline std::vector<float> random_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace octofold::bench
