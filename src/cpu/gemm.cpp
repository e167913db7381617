#include "cpu/gemm.h"

#include <algorithm>
#include <cblas.h>
#include <cstdint>
#include <memory>

#include "core/scale_layout.h"
#include "cpu/blas.h"
#include "cpu/convert.h"
#include "cpu/parallel.h"
#include "kernels/config/channel_scale.h"

namespace octofold::cpu {
namespace {

// Output tiles are what threads share. A tile's two operand blocks, its partial sum and its
// accumulator take 448 KiB, which a level-2 cache holds. The sizes are multiples of the scale
// block in N, so that the tile grid keeps to the weights' scale grid.
constexpr std::int64_t kTileM = 128;
constexpr std::int64_t kTileN = 2 * kScaleBlock;

struct Tile {
  std::int64_t m, rows;
  std::int64_t n, cols;
};

// Scratch of one thread, allocated without touching it.
struct Workspace {
  std::unique_ptr<float[]> a = std::make_unique_for_overwrite<float[]>(kTileM * kScaleBlock);
  std::unique_ptr<float[]> b = std::make_unique_for_overwrite<float[]>(kTileN * kScaleBlock);
  std::unique_ptr<float[]> partial = std::make_unique_for_overwrite<float[]>(kTileM * kTileN);
  std::unique_ptr<float[]> sum = std::make_unique_for_overwrite<float[]>(kTileM * kTileN);
  float scale_a[kTileM];
  float scale_b[kTileN];
};

// Codes of rows [row, row + rows) and columns [k, k + depth) as FP32, kScaleBlock to a row; and the
// scale of each row there.
void load_block(const ScaledTensorView& operand, std::int64_t row, std::int64_t rows,
                std::int64_t k, std::int64_t depth, float* codes, float* scales) {
  const TensorView& data = operand.data;
  const core::UnitSize unit = core::unit_size(operand.granularity, data.shape[0], data.shape[1]);
  const core::ScaleAccess<const float> scale = core::scale_access(operand);
  for (std::int64_t i = 0; i < rows; ++i) {
    load(data.data, data.dtype, (row + i) * data.strides[0] + k, 1, depth, codes + i * kScaleBlock);
    scales[i] = scale((row + i) / unit.rows, k / unit.cols);
  }
}

// sum[i, j] += partial[i, j] · (scale_a[i] · scale_b[j]): the second level of the accumulation.
void promote(const Tile& tile, Workspace& work) {
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const float* partial = work.partial.get() + i * kTileN;
    float* sum = work.sum.get() + i * kTileN;
    for (std::int64_t j = 0; j < tile.cols; ++j) {
      sum[j] += partial[j] * (work.scale_a[i] * work.scale_b[j]);
    }
  }
}

// The last level of two-level scales: b's factors, which are those of D's columns.
void multiply_columns(const TensorView& factors, const Tile& tile, Workspace& work) {
  const float* of_tile = static_cast<const float*>(factors.data) + tile.n;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    float* sum = work.sum.get() + i * kTileN;
    for (std::int64_t j = 0; j < tile.cols; ++j) sum[j] *= config::channel_factor(of_tile[j]);
  }
}

// Adds C and the bias in FP32 and rounds once.
void store_tile(const GemmArguments& arguments, const Tile& tile, Workspace& work) {
  float* const addend = work.partial.get();
  const auto add_row = [&](const TensorView& tensor, std::int64_t offset, float* sum) {
    load(tensor.data, tensor.dtype, offset + tile.n, 1, tile.cols, addend);
    for (std::int64_t j = 0; j < tile.cols; ++j) sum[j] += addend[j];
  };
  const MutableTensorView& out = arguments.out;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    float* const sum = work.sum.get() + i * kTileN;
    if (arguments.c) add_row(*arguments.c, (tile.m + i) * arguments.c->strides[0], sum);
    if (arguments.bias) add_row(*arguments.bias, 0, sum);
    store(sum, tile.cols, out.data, out.dtype, (tile.m + i) * out.strides[0] + tile.n,
          Overflow::kSaturate);
  }
}

void compute_tile(const GemmArguments& arguments, const Tile& tile, Workspace& work) {
  std::fill_n(work.sum.get(), tile.rows * kTileN, 0.0f);
  const std::int64_t size_k = arguments.a.data.shape[1];
  for (std::int64_t k = 0; k < size_k; k += kScaleBlock) {
    const std::int64_t depth = std::min<std::int64_t>(kScaleBlock, size_k - k);
    load_block(arguments.a, tile.m, tile.rows, k, depth, work.a.get(), work.scale_a);
    load_block(arguments.b, tile.n, tile.cols, k, depth, work.b.get(), work.scale_b);
    multiply(tile.rows, tile.cols, depth, work.a.get(), kScaleBlock, work.b.get(), kScaleBlock,
             work.partial.get(), kTileN);
    promote(tile, work);
  }
  if (arguments.b.channel_scale) multiply_columns(*arguments.b.channel_scale, tile, work);
  store_tile(arguments, tile, work);
}

}  // namespace

void gemm(const GemmArguments& arguments) {
  const std::int64_t size_m = arguments.out.shape[0], size_n = arguments.out.shape[1];
  const std::int64_t size_k = arguments.a.data.shape[1];
  const std::int64_t tiles_n = core::ceil_divide(size_n, kTileN);
  const std::int64_t tiles = core::ceil_divide(size_m, kTileM) * tiles_n;
  const std::int64_t work_per_tile =  // multiplications cost a small part of a converted element
      std::min(kTileM, size_m) * std::min(kTileN, size_n) * (1 + size_k / 16);
  parallel_for(tiles, work_per_tile, [&] {
    return [&, work = Workspace()](std::int64_t index) mutable {
      const std::int64_t m = index / tiles_n * kTileM, n = index % tiles_n * kTileN;
      compute_tile(arguments, {m, std::min(kTileM, size_m - m), n, std::min(kTileN, size_n - n)},
                   work);
    };
  });
}

}  // namespace octofold::cpu
