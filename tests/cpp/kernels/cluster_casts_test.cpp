// Casts whose columns a cluster of blocks has, run on the host, against the CPU backend: rows with
// scales of 1x128, and a transpose with one for each of its rows.
#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "core/scale_layout.h"
#include "cpu/backend.h"

namespace octofold::cast {
namespace {

// A thread's block has shared memory of its own.
template <TileCastConfig kConfig>
void run(const CastParams& params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  std::vector<typename TileCast<kConfig>::Shared> shared(ptx::kMostBlocks);
  const std::int64_t across = config::ceil_divide(params.cols, std::int64_t{kScaleBlock});
  const auto body = [&] {
    Tiles<kConfig> tiles{{params, 0}};
    load<kConfig>(params, tiles);
    TileCast<kConfig>(params, shared[ptx::cluster_rank()], tiles[0]).run();
  };
  test::launch(kConfig.cluster_tiles * across, kConfig.threads(), body, kConfig.cluster_tiles);
}

template <DType kIn, int kTiles>
void expect_right(std::int64_t rows, std::int64_t cols, bool spoil) {
  constexpr TileCastConfig kConfig{.format = {.in = kIn, .rule = config::kTorchAoRule},
                                   .to_rows = true,
                                   .to_transposed = true,
                                   .vector_loads = false,
                                   .vector_stores = false,
                                   .cluster_tiles = kTiles};
  std::mt19937 random(static_cast<unsigned>(rows + cols));
  std::normal_distribution<float> normal;
  std::vector<float> values(as_size(rows * cols));
  for (float& value : values) value = normal(random);
  values[as_size((rows - 1) * cols + 1)] = 1000;  // of the last block, for all
  if (spoil) {
    values[as_size(3 * cols + 2)] = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t row = 0; row < rows; ++row) values[as_size(row * cols)] = 0;
  }
  std::vector<Storage<kIn>> x(values.size());
  cpu::store(values.data(), std::ssize(values), x.data(), kIn, 0, Overflow::kNan);
  Target lines(kBlock1x128, rows, cols), channels(kChannel, cols, rows);
  Target expected_lines(kBlock1x128, rows, cols), expected_channels(kChannel, cols, rows);
  CastParams params{};
  params.x = x.data();
  params.x_stride = cols;
  params.rows = rows;
  params.cols = cols;
  params.row_target = lines.target();
  params.transposed_target = channels.target();
  run<kConfig>(params);
  cpu::cast(TensorView(matrix(x.data(), kIn, rows, cols)),
            {.rows = expected_lines.view(), .transposed = expected_channels.view()},
            kConfig.format);
  lines.expect_same(expected_lines);
  channels.expect_same(expected_channels);
}

TEST(ClusterCastTest, FindsTheLargestOfAllBlocks) {
  expect_right<DType::kFloat32, 2>(129, 130, false);
  expect_right<DType::kBFloat16, 2>(256, 17, false);
  expect_right<DType::kFloat32, 3>(300, 257, false);
  expect_right<DType::kBFloat16, 4>(500, 128, false);
}

TEST(ClusterCastTest, NanIsTheLargestAndZeroTheSmallest) {
  expect_right<DType::kFloat32, 3>(300, 140, true);
  expect_right<DType::kFloat16, 3>(300, 140, true);
}

}  // namespace
}  // namespace octofold::cast
