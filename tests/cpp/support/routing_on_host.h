// The inputs of the kernels of routing on the host: numbers, and rows that slots go to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "octofold/tensor.h"

#include "cpu/convert.h"
#include "kernels/numeric/elements.h"
#include "support/test.h"

namespace octofold::test {

using Index = std::vector<std::int32_t>;
using Floats = std::vector<float>;

inline constexpr std::int32_t kHostile[] = {-2, std::numeric_limits<std::int32_t>::min(),
                                            std::numeric_limits<std::int32_t>::max()};

inline MutableTensorView index_of(Index& values) {
  return vector(values.data(), DType::kInt32, std::ssize(values));
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

// Numbers [tokens, slots] in rows that lie apart: as they are given, and as the CPU is given them,
// -1 for each that is none.
class SlotNumbers {
 public:
  SlotNumbers(std::int64_t tokens, std::int64_t slots) : tokens_(tokens), slots_(slots) {}

  // `most`: numbers from there on are none.
  void add(std::int32_t number, bool is_hostile, std::int64_t most, Random& random) {
    std::int32_t given = is_hostile ? kHostile[random() % 3] : number;
    if (is_hostile && random() % 2 == 0) given = static_cast<std::int32_t>(most);
    given_.push_back(given);
    plain_.push_back(is_hostile ? -1 : number);
    if (std::ssize(given_) % stride() != slots_) return;
    for (Index* numbers : {&given_, &plain_}) numbers->resize(numbers->size() + kPadding, 0);
  }

  TensorView given() const { return view(given_); }
  TensorView plain() const { return view(plain_); }
  bool is_none(std::int64_t token, std::int64_t slot) const {
    return plain_[as_size(token * stride() + slot)] < 0;
  }

 private:
  static constexpr std::int64_t kPadding = 3;
  std::int64_t stride() const { return slots_ + kPadding; }
  TensorView view(const Index& numbers) const {
    return matrix(numbers.data(), DType::kInt32, tokens_, slots_, stride());
  }

  std::int64_t tokens_, slots_;
  Index given_, plain_;
};

// Rows that slots go to.
inline SlotNumbers draw_positions(std::int64_t tokens, std::int64_t slots, std::int64_t rows) {
  Random random;
  SlotNumbers positions(tokens, slots);
  for (std::int64_t i = 0; i < tokens * slots; ++i) {
    const auto row = static_cast<std::int32_t>(random() % static_cast<unsigned>(rows));
    positions.add(row, random() % 4 == 0, rows, random);
  }
  return positions;
}

// Experts from -1 on, most of them few.
inline SlotNumbers draw_ids(std::int64_t tokens, std::int64_t slots, int experts) {
  Random random;
  SlotNumbers ids(tokens, slots);
  for (std::int64_t i = 0; i < tokens * slots; ++i) {
    const auto limit = random() % 2 == 0 ? std::min(experts, 3) : experts;
    const auto id = static_cast<std::int32_t>(random() % static_cast<unsigned>(limit + 1)) - 1;
    ids.add(id, random() % 16 == 0, experts, random);
  }
  return ids;
}

// A matrix [rows, cols] of random numbers of a type, in rows that lie `padding` elements apart. Of
// what is written a copy is given to the CPU.
template <DType kType>
class Numbers {
 public:
  Numbers(std::int64_t rows, std::int64_t cols, std::int64_t padding)
      : Numbers(rows, cols, padding, draw(as_size(rows * (cols + padding)))) {}
  Numbers(std::int64_t rows, std::int64_t cols, std::int64_t padding, const Floats& values)
      : rows_(rows), cols_(cols), stride_(cols + padding), elements_(stored<kType>(values)) {}

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

inline constexpr std::int64_t kRows = 11, kTokens = 5;

}  // namespace octofold::test
