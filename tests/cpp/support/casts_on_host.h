// Kernels of casts, run on the host, and what they write to. To be included before what else has
// CUDA's types.
#pragma once

#include "octofold/cast_targets.h"

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/matrices.h"
#include "kernels/cast/rows.h"
#include "kernels/cast/scale_steps.h"
#include "kernels/cast/tiles.h"
#include "support/test.h"

namespace octofold::ptx {

inline void raise_global(unsigned* address, unsigned value) {
  std::atomic_ref<unsigned> held(*address);
  for (unsigned found = held; found < value && !held.compare_exchange_weak(found, value);) {
  }
}

}  // namespace octofold::ptx

namespace octofold::cast {

using config::RowCastConfig;
using config::ScaleStepConfig;
using enum Granularity;

// Codes and scales of one target, with what nobody may write around them; or of a stack of so many
// matrices [rows, cols].
class Target {
 public:
  Target(Granularity granularity, std::int64_t rows, std::int64_t cols, std::int64_t matrices = 1)
      : granularity_(granularity), rows_(matrices * rows), cols_(cols), matrices_(matrices) {
    const auto units = [](std::int64_t size, int unit) {
      return unit == GranularityRow::kWhole ? 1 : config::ceil_divide(size, std::int64_t{unit});
    };
    scale_rows_ = matrices * units(rows, row_of(granularity).rows);
    scale_cols_ = units(cols, row_of(granularity).cols);
    codes_.assign(as_size(rows_ * cols) + 2 * kGuard, 0xAA);
    scales_.assign(as_size(scale_rows_ * scale_cols_) + 2 * kGuard, -1.0f);
  }

  CastTarget view() {
    const MutableTensorView lines = vector(scale(), DType::kFloat32, scale_rows_);
    const bool blocks = varies_along_k(granularity_);
    return {matrix(codes(), DType::kE4M3, rows_, cols_),
            blocks ? matrix(scale(), DType::kFloat32, scale_rows_, scale_cols_) : lines,
            {.granularity = granularity_}};
  }
  config::CastTarget target() {
    const bool one = granularity_ == kTensor && matrices_ == 1;
    return {codes(), cols_, scale(), one ? 0 : scale_cols_, varies_along_k(granularity_) ? 1 : 0};
  }
  void expect_same(const Target& other) const {
    EXPECT_THAT(codes_, testing::ElementsAreArray(other.codes_));
    ASSERT_EQ(scales_.size(), other.scales_.size());
    EXPECT_EQ(std::memcmp(scales_.data(), other.scales_.data(), scales_.size() * sizeof(float)), 0);
  }
  // Expects matrix `index` of the stack to equal another target.
  void expect_matrix(std::int64_t index, const Target& other) const {
    const auto expect_part = [&](const auto& all, const auto& part) {
      const std::size_t count = part.size() - 2 * kGuard;
      const auto* begin = all.data() + kGuard + as_size(index) * count;
      EXPECT_EQ(std::memcmp(begin, part.data() + kGuard, count * sizeof(part[0])), 0)
          << "matrix " << index;
    };
    expect_part(codes_, other.codes_);
    expect_part(scales_, other.scales_);
  }
  // Expects that nothing has been written to matrix `index` of the stack.
  void expect_untouched(std::int64_t index) const {
    const auto expect_part = [&](const auto& all, auto poison) {
      const std::size_t count = (all.size() - 2 * kGuard) / as_size(matrices_);
      const auto* begin = all.data() + kGuard + as_size(index) * count;
      EXPECT_THAT(std::span(begin, count), testing::Each(poison)) << "matrix " << index;
    };
    expect_part(codes_, 0xAA);
    expect_part(scales_, -1.0f);
  }
  // Scales to be read.
  std::span<float> scales() { return {scale(), as_size(scale_rows_ * scale_cols_)}; }
  void expect_guards() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(codes_[i], 0xAA);
      EXPECT_EQ(codes_[codes_.size() - 1 - i], 0xAA);
      EXPECT_EQ(scales_[i], -1.0f);
      EXPECT_EQ(scales_[scales_.size() - 1 - i], -1.0f);
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;

  unsigned char* codes() { return codes_.data() + kGuard; }
  float* scale() { return scales_.data() + kGuard; }

  Granularity granularity_;
  std::int64_t rows_, cols_, matrices_, scale_rows_ = 0, scale_cols_ = 0;
  std::vector<unsigned char> codes_;
  std::vector<float> scales_;
};

template <TileCastConfig kConfig>
void launch(const CastParams& params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t down = kConfig.grouped   ? config::blocks_before_group<std::int64_t>(
                                                    params.group_layout, params.rows, params.groups)
                            : kConfig.stacked ? params.matrices * params.matrix_tiles
                                              : config::ceil_divide(params.rows, kConfig.tile_rows);
  const std::int64_t blocks = down * config::ceil_divide(params.cols, kScaleBlock);
  if constexpr (kConfig.source.transposed_factors) {
    using Cast = OneByOneCast<kConfig>;
    typename Cast::Shared shared{};
    return test::launch(blocks, kConfig.threads(), [&] { Cast::run(params, shared); });
  }
  typename TileCast<kConfig>::Shared shared;
  test::launch(blocks, kConfig.threads(), [&] {
    Tiles<kConfig> tiles{{params, 0}};
    if (!tiles[0].any(params)) return;
    load<kConfig>(params, tiles);
    TileCast<kConfig>(params, shared, tiles[0]).run();
  });
}

template <ScaleStepConfig kConfig>
void launch(const CastParams& params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t transposed = (kConfig.stacked ? params.matrices : 1) * params.cols;
  const std::int64_t units = std::max<std::int64_t>(params.rows, transposed);
  test::launch(config::ceil_divide(units, kConfig.threads()), kConfig.threads(),
               [&] { scale_step_kernel<kConfig>(params); });
}

template <RowCastConfig kConfig>
void launch(const CastParams& params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  typename RowCast<kConfig>::Shared shared;
  test::launch(config::ceil_divide(params.rows, kConfig.rows_per_block()), kConfig.threads(),
               [&] { RowCast<kConfig>(params, shared).run(); });
}

// Matrices of random values, each column with a magnitude of its own.
template <DType kIn>
std::vector<Storage<kIn>> random_values(std::int64_t rows, std::int64_t cols) {
  test::Random random;
  std::normal_distribution<float> normal;
  std::vector<float> values(as_size(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(normal(random), static_cast<int>(i % 7));
  }
  std::vector<Storage<kIn>> x(values.size());
  cpu::store(values.data(), std::ssize(values), x.data(), kIn, 0, Overflow::kNan);
  return x;
}

// Positive, and each another.
inline std::vector<float> random_factors(std::int64_t count) {
  test::Random random;
  std::normal_distribution<float> normal;
  std::vector<float> factors(as_size(count));
  for (float& factor : factors) factor = std::exp(2 * normal(random));
  return factors;
}

}  // namespace octofold::cast
