// The cast of two-level scales, run on the host by a thread for each of a block's, beside the CPU
// backend's: the same bytes.
#include <cmath>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "octofold/cast_targets.h"

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/cast_values.h"
#include "cpu/convert.h"
#include "kernels/cast/tiles.h"
#include "support/random.h"

namespace octofold::cast {
namespace {

template <TileCastConfig kConfig>
void launch(const CastParams& params) {
  const std::int64_t blocks = config::ceil_divide(params.rows, kConfig.tile_rows) *
                              config::ceil_divide(params.cols, kScaleBlock);
  typename TileCast<kConfig>::Shared shared;
  test::launch(blocks, kConfig.threads(), [&] {
    Tiles<kConfig> tiles{{params, 0}};
    load<kConfig>(params, tiles);
    TileCast<kConfig>(params, shared, tiles[0]).run();
  });
}

// Codes and scales of one target.
struct Cast {
  std::vector<unsigned char> codes;
  std::vector<float> scales;
  std::int64_t rows, cols, scale_rows, scale_cols;

  Cast(Granularity granularity, std::int64_t rows_, std::int64_t cols_)
      : codes(static_cast<std::size_t>(rows_ * cols_), 0xAA),
        rows(rows_),
        cols(cols_),
        scale_rows(granularity == Granularity::kBlock1x128 ? rows_
                                                           : config::ceil_divide(rows_, 128L)),
        scale_cols(config::ceil_divide(cols_, 128L)) {
    scales.assign(static_cast<std::size_t>(scale_rows * scale_cols), -1.0f);
  }
  CastTarget view(Granularity granularity, const std::vector<float>* factors) {
    CastTarget view{matrix(codes.data(), DType::kE4M3, rows, cols),
                    matrix(scales.data(), DType::kFloat32, scale_rows, scale_cols),
                    {.granularity = granularity}};
    if (factors != nullptr) {
      view.channel_scale = vector(factors->data(), DType::kFloat32, std::ssize(*factors));
    }
    return view;
  }
  config::CastTarget target() { return {codes.data(), cols, scales.data(), scale_cols, 1}; }
  void expect_same(const Cast& other) const {
    EXPECT_THAT(codes, testing::ElementsAreArray(other.codes));
    EXPECT_THAT(scales, testing::ElementsAreArray(other.scales));
  }
};

template <DType kIn, config::CastRule kRule, Granularity kRowGranularity, bool kVectors>
void expect_cpu_bytes(std::int64_t rows, std::int64_t cols) {
  constexpr TileCastConfig kConfig{
      .format = {.in = kIn, .granularity = kRowGranularity, .rule = kRule},
      .two_level = true,
      .to_rows = true,
      .to_transposed = true,
      .vector_loads = kVectors,
      .vector_stores = kVectors,
      .group_m = 2};
  static_assert(kConfig.invalid_reason() == nullptr);
  test::Random random;
  std::normal_distribution<float> normal;
  const auto factors_of = [&](std::int64_t channels) {
    std::vector<float> factors(static_cast<std::size_t>(channels));
    for (float& factor : factors) factor = std::exp(2 * normal(random));
    factors.front() = 0;
    factors.back() = std::nanf("");
    return factors;
  };
  const std::vector<float> of_rows = factors_of(rows), of_columns = factors_of(cols);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * of_columns[1 + i % (of_columns.size() - 2)];
  }
  std::vector<Storage<kIn>> x(values.size());
  cpu::store(values.data(), std::ssize(values), x.data(), kIn, 0, Overflow::kNan);

  constexpr auto kSquares = Granularity::kBlock128x128;
  Cast to_rows(kRowGranularity, rows, cols), to_columns(kSquares, cols, rows);
  Cast cpu_rows = to_rows, cpu_columns = to_columns;
  CastParams params{};
  params.x = x.data();
  params.x_stride = cols;
  params.rows = rows;
  params.cols = cols;
  params.row_target = to_rows.target();
  params.transposed_target = to_columns.target();
  params.row_channel_scale = of_rows.data();
  params.transposed_channel_scale = of_columns.data();
  launch<kConfig>(params);

  const bool lines = kRowGranularity == Granularity::kBlock1x128;
  cpu::cast_values(matrix<const void>(x.data(), kIn, rows, cols),
                   {.rows = cpu_rows.view(kRowGranularity, lines ? nullptr : &of_rows),
                    .transposed = cpu_columns.view(kSquares, &of_columns)},
                   kConfig.format);
  to_rows.expect_same(cpu_rows);
  to_columns.expect_same(cpu_columns);
}

template <DType kIn>
void expect_cpu_bytes() {
  using enum Granularity;
  expect_cpu_bytes<kIn, config::kTorchAoRule, kBlock1x128, true>(136, 264);
  expect_cpu_bytes<kIn, config::kVllmRule, kBlock1x128, false>(129, 77);
  expect_cpu_bytes<kIn, config::kVllmRule, kBlock128x128, true>(136, 264);
  expect_cpu_bytes<kIn, config::kCompressedTensorsRule, kBlock128x128, false>(70, 131);
}

TEST(TwoLevelScalesTest, OfFloat32) { expect_cpu_bytes<DType::kFloat32>(); }
TEST(TwoLevelScalesTest, OfFloat16) { expect_cpu_bytes<DType::kFloat16>(); }
TEST(TwoLevelScalesTest, OfBFloat16) { expect_cpu_bytes<DType::kBFloat16>(); }

}  // namespace
}  // namespace octofold::cast
