// The inputs of the kernels of routing on the host: numbers, and rows that slots go to.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "octofold/tensor.h"

#include "cpu/matrices.h"
#include "kernels/numeric/elements.h"
#include "support/test.h"

namespace octofold::test {

using Index = std::vector<std::int32_t>;
using Floats = std::vector<float>;

inline constexpr std::int32_t kHostile[] = {-2, std::numeric_limits<std::int32_t>::min(),
                                            std::numeric_limits<std::int32_t>::max()};

inline MutableTensorView index_of(Index& values, std::int64_t rows, std::int64_t cols) {
  return matrix(values.data(), DType::kInt32, rows, cols);
}
inline MutableTensorView floats_of(Floats& values, std::int64_t cols) {
  return matrix(values.data(), DType::kFloat32, std::ssize(values) / cols, cols);
}

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

// Each row in turn, some of them twice, and none: as they are given, and as they are meant.
struct Positions {
  Positions(std::int64_t tokens, std::int64_t slots, std::int64_t rows) {
    Random random;
    for (std::int64_t i = 0; i < tokens * slots; ++i) {
      const auto row = static_cast<std::int32_t>(random() % static_cast<unsigned>(rows));
      const bool is_hostile = random() % 4 == 0;
      given.push_back(is_hostile ? kHostile[random() % 3] : row);
      if (is_hostile && random() % 2 == 0) given.back() = static_cast<std::int32_t>(rows);
      plain.push_back(is_hostile ? -1 : row);
    }
  }
  Index given, plain;
};

inline constexpr std::int64_t kRows = 11, kTokens = 5;

}  // namespace octofold::test
