// Casts by kernels that run on the host, by the parameters that src/cuda makes, and the same by the
// CPU backend. To be included before what else has CUDA's types.
#pragma once

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"

#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "core/scale_layout.h"
#include "cpu/backend.h"
#include "cuda/params.h"
#include "kernels/cast/rows.h"
#include "kernels/cast/scale_steps.h"
#include "kernels/cast/tiles.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::cast {

using config::CastFormat;
using config::CastRule;
using config::RowCastConfig;
using config::ScaleStep;
using config::ScaleStepConfig;
using enum Granularity;
using test::Matrix;
using Floats = std::vector<float>;

// Codes and scales of one target, or of a stack of so many matrices [rows, cols]: rows lie apart,
// scales column by column, and nobody may write between them.
class Target {
 public:
  Target(Granularity granularity, std::int64_t rows, std::int64_t cols, std::int64_t matrices = 1)
      : granularity_(granularity),
        rows_(matrices * rows),
        cols_(cols),
        grid_(core::scale_grid(granularity, matrices * rows, cols, matrices)) {
    codes_.assign(as_size(rows_ * stride()) + 2 * kGuard, kPoison);
    scales_.assign(as_size(kApart * grid_.rows * grid_.cols) + 2 * kGuard, -1.0f);
  }

  Floats given_scales{};  // of units
  void set_amax(const Floats& amax) {
    amax_.assign(as_size(kApart) * amax.size(), NAN);
    for (std::size_t i = 0; i < amax.size(); ++i) amax_[as_size(kApart) * i] = amax[i];
  }

  CastTarget view() {
    float* const scale = scales_.data() + kGuard;
    CastTarget view{matrix(codes_.data() + kGuard, DType::kE4M3, rows_, cols_, stride()),
                    vector(scale, DType::kFloat32, grid_.rows),
                    {.granularity = granularity_}};
    if (varies_along_k(granularity_)) {
      view.scale = matrix(scale, DType::kFloat32, grid_.rows, grid_.cols);
      view.scale.strides[1] = kApart * grid_.rows;
    }
    view.scale.strides[0] = kApart;
    if (!given_scales.empty()) {
      view.scales = ScaleSource::kGiven;
      for (std::size_t i = 0; i < given_scales.size(); ++i)
        scale[as_size(kApart) * i] = given_scales[i];
    }
    if (!amax_.empty()) {
      view.amax = vector<const void>(amax_.data(), DType::kFloat32, std::ssize(amax_) / kApart);
      view.amax->strides[0] = kApart;
    }
    return view;
  }
  Granularity granularity() const { return granularity_; }
  std::int64_t units() const { return grid_.rows * grid_.cols; }

  // All of it, guards and what lies between rows too.
  void expect_same(const Target& other) const {
    EXPECT_THAT(codes_, testing::ElementsAreArray(other.codes_));
    ASSERT_EQ(scales_.size(), other.scales_.size());
    EXPECT_EQ(std::memcmp(scales_.data(), other.scales_.data(), scales_.size() * sizeof(float)), 0);
  }
  void expect_guards() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(codes_[i], kPoison);
      EXPECT_EQ(codes_[codes_.size() - 1 - i], kPoison);
      EXPECT_EQ(scales_[i], -1.0f);
      EXPECT_EQ(scales_[scales_.size() - 1 - i], -1.0f);
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xAA;
  static constexpr std::int64_t kApart = 2;                     // from a scale to the next one
  std::int64_t stride() const { return (cols_ + 31) / 8 * 8; }  // vectors of codes are aligned

  Granularity granularity_;
  std::int64_t rows_, cols_;
  core::ScaleGrid grid_;
  std::vector<unsigned char> codes_;
  Floats scales_, amax_;
};

// The targets of a cast, and what else is given to it.
struct Targets {
  std::optional<Target> rows{}, transposed{};
  CastTargets given{};

  CastTargets view() {
    CastTargets view = given;
    if (rows) view.rows = rows->view();
    if (transposed) view.transposed = transposed->view();
    return view;
  }
  void for_each(auto&& visit) {
    for (std::optional<Target>* target : {&rows, &transposed}) {
      if (*target) visit(**target);
    }
  }
  void expect_guards() {
    for_each([](const Target& target) { target.expect_guards(); });
  }
  void expect_same(const Targets& other) const {
    if (rows) rows->expect_same(*other.rows);
    if (transposed) transposed->expect_same(*other.transposed);
  }
};

template <TileCastConfig kConfig>
void launch(const CastParams& params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t down = kConfig.is_clustered() ? kConfig.cluster_tiles
                            : kConfig.grouped ? config::blocks_before_group<std::int64_t>(
                                                    params.group_layout, params.rows, params.groups)
                            : kConfig.stacked ? params.matrices * params.matrix_tiles
                                              : config::ceil_divide(params.rows, kConfig.tile_rows);
  const std::int64_t blocks = down * config::ceil_divide(params.cols, kScaleBlock);
  if constexpr (kConfig.source.transposed_factors) {
    using Cast = OneByOneCast<kConfig>;
    typename Cast::Shared shared{};
    return test::launch(blocks, kConfig.threads(), [&] { Cast::run(params, shared); });
  }
  std::vector<typename TileCast<kConfig>::Shared> shared(as_size(kConfig.cluster_tiles));
  const auto body = [&] {
    Tiles<kConfig> tiles{{params, 0}};
    if (!tiles[0].any(params)) return;
    load<kConfig>(params, tiles);
    TileCast<kConfig>(params, shared[ptx::cluster_rank()], tiles[0]).run();
  };
  test::launch(blocks, kConfig.threads(), body, kConfig.cluster_tiles);
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

// Tiles of rows that no vector can access.
constexpr TileCastConfig unaligned(TileCastConfig tiles) {
  tiles.vector_loads = tiles.vector_stores = false;
  return tiles;
}

// The kernels of a cast by steps, for scales that no tile finds: they are cleared, found by tiles,
// and finished behind the codes.
constexpr ScaleStepConfig scale_step(const TileCastConfig& tiles, ScaleStep step) {
  const bool of_groups = tiles.grouped && tiles.to_rows;
  return {.format = tiles.format,
          .step = step,
          .to_rows = tiles.to_rows,
          .to_transposed = tiles.to_transposed,
          .grouped = of_groups,
          .gathered = of_groups && tiles.source.kind == config::SourceKind::kGathered,
          .stacked = tiles.stacked,
          .skips_unused = tiles.skips_unused};
}
constexpr TileCastConfig in_phase(TileCastConfig tiles, CastPhase phase) {
  tiles.phase = phase;
  return tiles;
}

// Random values in rows that lie apart, each column with a magnitude of its own.
inline Matrix random_values(DType in, std::int64_t rows, std::int64_t cols) {
  test::Random random;
  std::normal_distribution<float> normal;
  Matrix x(in, rows, cols, 8);
  x.fill([&, i = std::int64_t{0}]() mutable {
    return std::ldexp(normal(random), static_cast<int>(i++ % cols % 7));
  });
  return x;
}

// Positive, and each another.
inline Floats random_factors(std::int64_t count) {
  test::Random random;
  std::normal_distribution<float> normal;
  Floats factors(as_size(count));
  for (float& factor : factors) factor = std::exp(2 * normal(random));
  return factors;
}

// Runs these kernels, one after another.
template <auto... kConfigs>
void cast_by(const CastSource& source, Targets& targets, const CastFormat& format) {
  const CastParams params = cuda::params_of(source, targets.view(), format);
  (launch<kConfigs>(params), ...);
}

// They write what the CPU backend writes, and nothing beside it.
template <auto... kConfigs>
void expect_as_on_cpu(const CastSource& source, const Targets& targets, const CastFormat& format) {
  Targets device = targets, cpu = targets;
  cast_by<kConfigs...>(source, device, format);
  cpu::cast(source, cpu.view(), format);
  device.expect_same(cpu);
}

}  // namespace octofold::cast
