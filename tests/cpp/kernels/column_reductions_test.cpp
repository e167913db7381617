// The kernels that reduce columns, run on the host, against loops in double: which element goes
// into which sum.
#include "octofold/cast_targets.h"

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/matrices.h"
#include "kernels/cast/column_reductions.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

using test::launch;

struct Columns {
  std::vector<float> sums, amax;
};

// Returns the reductions of the columns of x [rows, cols], rows `stride` apart, by the kernels.
template <DType kIn, bool kVectors>
Columns reduced(const std::vector<Storage<kIn>>& x, std::int64_t rows, std::int64_t cols,
                std::int64_t stride) {
  constexpr TileCastConfig kTiles{.format = {.in = kIn},
                                  .to_transposed = true,
                                  .vector_loads = kVectors,
                                  .group_m = 2,
                                  .columns = {.sums = true, .amax = true}};
  constexpr ColumnReductionConfig kColumns{.columns = kTiles.columns};
  static_assert(kTiles.invalid_reason() == nullptr && kColumns.invalid_reason() == nullptr);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t down = config::ceil_divide(rows, config::kReducedRows);
  std::vector<float> partial_sums(as_size(down * cols), kNan), partial_amax;
  partial_amax = partial_sums;
  Columns columns{std::vector<float>(as_size(cols), kNan), {}};
  columns.amax = columns.sums;
  CastParams params{};
  params.x = x.data();
  params.x_stride = stride;
  params.rows = rows;
  params.cols = cols;
  params.columns = {partial_sums.data(), partial_amax.data(), columns.sums.data(),
                    columns.amax.data()};

  ColumnsOfGroups<kTiles> shared;
  launch(down * config::ceil_divide(cols, kScaleBlock), kTiles.threads(), [&] {
    Tiles<kTiles> tiles{{params, 0}};
    load<kTiles>(params, tiles);
    reduce_columns<kTiles>(params, tiles[0], shared);
  });
  typename ColumnReduction<kColumns>::Shared shared_by_groups;
  launch(config::ceil_divide(cols, kColumns.kColumns), kColumns.threads(),
         [&] { ColumnReduction<kColumns>(params, shared_by_groups).run(); });
  return columns;
}

template <DType kIn, bool kVectors>
void expect_columns(std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  test::Random random;
  std::vector<float> values(as_size(rows * stride));
  // Sums of these are exact, in any order.
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 512) - 100);
  std::vector<Storage<kIn>> x(values.size());
  cpu::store(values.data(), std::ssize(values), x.data(), kIn, 0, Overflow::kNan);
  cpu::load(x.data(), kIn, 0, 1, std::ssize(values), values.data());  // as they were rounded
  const Columns columns = reduced<kIn, kVectors>(x, rows, cols, stride);
  for (std::int64_t col = 0; col < cols; ++col) {
    double sum = 0, amax = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const double value = static_cast<double>(values[as_size(row * stride + col)]);
      sum += value;
      amax = std::max(amax, std::abs(value));
    }
    ASSERT_EQ(columns.sums[as_size(col)], sum) << col;
    ASSERT_EQ(columns.amax[as_size(col)], amax) << col;
  }
}

template <DType kIn>
void expect_columns() {
  expect_columns<kIn, true>(300, 264, 272);
  expect_columns<kIn, false>(129, 77, 80);
  expect_columns<kIn, false>(1, 1, 1);
}

TEST(ColumnReductionsTest, OfFloat32) { expect_columns<DType::kFloat32>(); }
TEST(ColumnReductionsTest, OfFloat16) { expect_columns<DType::kFloat16>(); }
TEST(ColumnReductionsTest, OfBFloat16) { expect_columns<DType::kBFloat16>(); }

// More rows of the workspace than groups of threads.
TEST(ColumnReductionsTest, OfManyRows) { expect_columns<DType::kBFloat16, true>(1500, 40, 40); }

TEST(ColumnReductionsTest, NanIsHandedOn) {
  constexpr Storage<DType::kBFloat16> kNan = 0xFFC0, kInfinity = 0xFF80;
  std::vector<Storage<DType::kBFloat16>> x(200 * 16, 0x3F80);
  x[150 * 16 + 3] = kNan;
  x[7 * 16 + 4] = kInfinity;
  const Columns columns = reduced<DType::kBFloat16, true>(x, 200, 16, 16);
  EXPECT_TRUE(std::isnan(columns.sums[3]) && std::isnan(columns.amax[3]));
  EXPECT_TRUE(std::isinf(columns.sums[4]) && columns.amax[4] > 0 && std::isinf(columns.amax[4]));
  EXPECT_EQ(columns.sums[5], 200.0f);
  EXPECT_EQ(columns.amax[5], 1.0f);
}

}  // namespace
}  // namespace octofold::cast
