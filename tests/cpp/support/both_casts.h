// Casts of a matrix both ways, and whether two are the same.
#pragma once

#include "octofold/scaled_matrix.h"

#include "support/test.h"

namespace octofold::test {

/// What a cast of a matrix both ways writes.
struct Both {
  ScaledMatrix rows, columns;

  Both(std::int64_t height, std::int64_t width, const octofold::Format& format)
      : rows(height, width, format), columns(width, height, format) {}
  CastTargets targets() { return {.rows = rows.target(), .transposed = columns.target()}; }
};

/// To the bit, NaN included.
inline void expect_same(const ScaledMatrix& actual, const ScaledMatrix& expected) {
  EXPECT_THAT(actual.codes(), testing::ElementsAreArray(expected.codes()));
  ASSERT_EQ(actual.scales().size(), expected.scales().size());
  EXPECT_EQ(
      std::memcmp(actual.scales().data(), expected.scales().data(), expected.scales().size_bytes()),
      0);
}
inline void expect_same(const Both& actual, const Both& expected) {
  expect_same(actual.rows, expected.rows);
  expect_same(actual.columns, expected.columns);
}

}  // namespace octofold::test
