#include "cpu/matrix_product.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include "core/scale_layout.h"
#include "cpu/blas.h"
#include "cpu/convert.h"
#include "cpu/parallel.h"
#include "kernels/shared/channel_scale.h"

namespace octofold::cpu {
namespace {

// Output tiles are what threads share. A tile's two operand blocks, its partial sum and its
// accumulator take 448 KiB, which a level-2 cache holds. The sizes are multiples of the scale
// block in N, so that the tile grid keeps to the weights' scale grid.
constexpr std::int64_t kTileM = kProductTileRows;
constexpr std::int64_t kTileN = 2 * kScaleBlock;

// A BLAS chooses by the number of rows how it sums. Calls for as many rows always sum each alike,
// where the number is a multiple of what its kernels have in registers.
constexpr std::int64_t kInvariantRows = 32;
static_assert(kTileM % kInvariantRows == 0);

struct Tile {
  std::int64_t m, rows;
  std::int64_t n, cols;
};

// Scratch of one thread, allocated without touching it.
template <typename Sum>
struct Workspace {
  std::unique_ptr<float[]> a = std::make_unique_for_overwrite<float[]>(kTileM * kScaleBlock);
  std::unique_ptr<float[]> b = std::make_unique_for_overwrite<float[]>(kTileN * kScaleBlock);
  std::unique_ptr<float[]> partial = std::make_unique_for_overwrite<float[]>(kTileM * kTileN);
  std::unique_ptr<Sum[]> sum = std::make_unique_for_overwrite<Sum[]>(kTileM * kTileN);
  float scale_a[kTileM];
  float scale_b[kTileN];
};

core::ScaleAccess<const float> scale_access(const DotOperand& matrix) {
  return core::scale_access({matrix.data, *matrix.scale, matrix.granularity});
}

// sum[i, j] += partial[i, j] · (scale_a[i] · scale_b[j]): the second level of the accumulation.
template <typename Sum>
void promote(const Tile& tile, Workspace<Sum>& work) {
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const float* partial = work.partial.get() + i * kTileN;
    Sum* sum = work.sum.get() + i * kTileN;
    for (std::int64_t j = 0; j < tile.cols; ++j) {
      sum[j] += static_cast<Sum>(partial[j]) *
                (static_cast<Sum>(work.scale_a[i]) * static_cast<Sum>(work.scale_b[j]));
    }
  }
}

// The last level of two-level scales: b's factors, which are those of out's columns.
void multiply_columns(const TensorView& factors, const Tile& tile, float* sum) {
  const float* of_tile = static_cast<const float*>(factors.data) + tile.n;
  for (std::int64_t j = 0; j < tile.cols; ++j) sum[j] *= config::channel_factor(of_tile[j]);
}

// Adds C and the bias in FP32 and rounds once.
template <typename Sum>
void store_tile(const MatrixProduct& product, const Tile& tile, Workspace<Sum>& work) {
  std::array<float, kTileN> sum, addend;
  const auto add_row = [&](const TensorView& tensor, std::int64_t offset) {
    load(tensor.data, tensor.dtype, offset + tile.n, 1, tile.cols, addend.data());
    for (std::size_t j = 0; j < static_cast<std::size_t>(tile.cols); ++j) sum[j] += addend[j];
  };
  const MutableTensorView& out = product.out;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const Sum* const row = work.sum.get() + i * kTileN;
    std::transform(row, row + tile.cols, sum.begin(),
                   [](Sum value) { return static_cast<float>(value); });
    if (product.channel_scale) multiply_columns(*product.channel_scale, tile, sum.data());
    if (product.c) add_row(*product.c, (tile.m + i) * product.c->strides[0]);
    if (product.bias) add_row(*product.bias, 0);
    store(sum.data(), tile.cols, out.data, out.dtype, (tile.m + i) * out.strides[0] + tile.n,
          Overflow::kSaturate);
  }
}

// partial = a · bᵀ of a tile's blocks; with batch_invariant also of rows behind the tile's, which
// are nobody's.
template <typename Sum>
void multiply_blocks(const MatrixProduct& product, const Tile& tile, std::int64_t depth,
                     Workspace<Sum>& work) {
  const auto multiply_rows = [&](std::int64_t first, std::int64_t rows) {
    multiply(rows, tile.cols, depth, work.a.get() + first * kScaleBlock, kScaleBlock, work.b.get(),
             kScaleBlock, work.partial.get() + first * kTileN, kTileN);
  };
  if (!product.batch_invariant) return multiply_rows(0, tile.rows);
  const std::int64_t behind =
      core::ceil_divide(tile.rows, kInvariantRows) * kInvariantRows - tile.rows;
  std::fill_n(work.a.get() + tile.rows * kScaleBlock, behind * kScaleBlock, 0.0f);
  for (std::int64_t first = 0; first < tile.rows; first += kInvariantRows) {
    multiply_rows(first, kInvariantRows);
  }
}

template <typename Sum>
void compute_tile(const MatrixProduct& product, const Tile& tile, Workspace<Sum>& work) {
  std::fill_n(work.sum.get(), tile.rows * kTileN, Sum{0});
  const std::int64_t size_k = product.a.depth();
  for (std::int64_t k = 0; k < size_k; k += kScaleBlock) {
    const std::int64_t depth = std::min<std::int64_t>(kScaleBlock, size_k - k);
    product.a.load_block(tile.m, tile.rows, k, depth, work.a.get(), work.scale_a);
    product.b.load_block(tile.n, tile.cols, k, depth, work.b.get(), work.scale_b);
    multiply_blocks(product, tile, depth, work);
    promote(tile, work);
  }
  store_tile(product, tile, work);
}

}  // namespace

Operand Operand::columns_of(const ScaledTensorView& matrix) {
  Operand operand(matrix);
  operand.has_columns_ = true;
  return operand;
}

void Operand::load_block(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t depth,
                         float* values, float* scales) const {
  if (has_columns_) return load_columns(first, count, k, depth, values, scales);
  load_rows(first, count, k, depth, values, scales);
}

void Operand::load_rows(std::int64_t first, std::int64_t count, std::int64_t k, std::int64_t depth,
                        float* values, float* scales) const {
  const TensorView& data = matrix_.data;
  for (std::int64_t i = 0; i < count; ++i) {
    load(data.data, data.dtype, (first + i) * data.strides[0] + k, 1, depth,
         values + i * kScaleBlock);
  }
  std::fill_n(scales, count, 1.0f);
  if (!matrix_.scale) return;
  const core::UnitSize unit = core::unit_size(matrix_.granularity, data.shape[0], data.shape[1]);
  const core::ScaleAccess<const float> scale = scale_access(matrix_);
  for (std::int64_t i = 0; i < count; ++i) {
    scales[i] = scale((first + i) / unit.rows, k / unit.cols);
  }
}

// Scales that differ along the depth multiply numbers; others belong to columns, as those of rows
// to rows.
void Operand::load_columns(std::int64_t first, std::int64_t count, std::int64_t k,
                           std::int64_t depth, float* values, float* scales) const {
  const TensorView& data = matrix_.data;
  const core::UnitSize unit = core::unit_size(matrix_.granularity, data.shape[0], data.shape[1]);
  const core::ScaleAccess<const float> scale = scale_access(matrix_);
  const bool has_factors = matrix_.granularity == Granularity::kChannel ||
                           matrix_.granularity == Granularity::kBlock1x128;
  std::array<float, kTileN> row;
  for (std::int64_t i = 0; i < depth; ++i) {
    load(data.data, data.dtype, (k + i) * data.strides[0] + first, 1, count, row.data());
    for (std::int64_t begin = 0; begin < count; begin += kScaleBlock) {
      const std::int64_t end = std::min<std::int64_t>(begin + kScaleBlock, count);
      const float factor =
          has_factors ? scale((k + i) / unit.rows, (first + begin) / unit.cols) : 1;
      for (std::int64_t j = begin; j < end; ++j) {
        values[j * kScaleBlock + i] = row[static_cast<std::size_t>(j)] * factor;
      }
    }
  }
  for (std::int64_t j = 0; j < count; ++j) {
    scales[j] = has_factors ? 1 : scale(k / unit.rows, (first + j) / unit.cols);
  }
}

template <typename Sum>
void compute(const MatrixProduct& product) {
  const std::int64_t size_m = product.out.shape[0], size_n = product.out.shape[1];
  const std::int64_t size_k = product.a.depth();
  const std::int64_t tiles_n = core::ceil_divide(size_n, kTileN);
  const std::int64_t tiles = core::ceil_divide(size_m, kTileM) * tiles_n;
  const std::int64_t rows = std::min(kTileM, size_m), cols = std::min(kTileN, size_n);
  const std::int64_t work_per_tile =  // multiplications cost a small part of a converted element
      rows * cols * (1 + size_k / 16) + (rows + cols) * size_k;
  parallel_for(tiles, work_per_tile, [&] {
    return [&, work = Workspace<Sum>()](std::int64_t index) mutable {
      const std::int64_t m = index / tiles_n * kTileM, n = index % tiles_n * kTileN;
      compute_tile(product, {m, std::min(kTileM, size_m - m), n, std::min(kTileN, size_n - n)},
                   work);
    };
  });
}

template void compute<float>(const MatrixProduct& product);
template void compute<double>(const MatrixProduct& product);

}  // namespace octofold::cpu
