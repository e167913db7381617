#include "cpu/matrix_product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>

#include "core/check.h"
#include "core/options.h"
#include "core/scale_layout.h"
#include "cpu/matrices.h"
#include "cpu/parallel.h"
#include "cpu/vector_kernels.h"

namespace octofold::cpu {
namespace {

// The operands held in FP32 at one time, few enough for a core's own cache: a block of kScaleBlock
// of the depth of so many columns, and of so many rows. The sums of as many columns and kMostRows
// are there for as long as b is read, once for them all.
constexpr std::int64_t kMostColumns = 3 * kScaleBlock;
constexpr std::int64_t kRowsAtOnce = 96;
constexpr std::int64_t kMostRows = 1024;

// Parts that are smaller spend more time on operands than on products.
constexpr std::int64_t kFewestColumns = 96;
constexpr std::int64_t kFewestRows = 48;

// A part of out: what one thread computes at a time.
struct Part {
  std::int64_t m, rows;
  std::int64_t n, cols;
};

// The sizes of parts, of which there should be as many for each thread.
Part largest_part(std::int64_t size_m, std::int64_t size_n) {
  const std::int64_t threads = core::options().num_threads;
  const auto pieces = [&](std::int64_t size, std::int64_t most, std::int64_t fewest,
                          std::int64_t multiple) {
    const std::int64_t needed = core::ceil_divide(core::ceil_divide(size, most), multiple);
    const std::int64_t worth = core::ceil_divide(size, fewest);
    return std::max(std::min(needed * multiple, worth), core::ceil_divide(size, most));
  };
  const std::int64_t across = pieces(size_n, kMostColumns, kFewestColumns, threads);
  const std::int64_t down =
      pieces(size_m, kMostRows, kFewestRows, core::ceil_divide(threads, across));
  const std::int64_t columns = core::ceil_divide(size_n, across);
  return {0, core::ceil_divide(size_m, down), 0,
          core::ceil_divide(columns, kMostPanel) * kMostPanel};
}

// Memory from the start of a cache line on, where the loads of vectors do not cross one.
template <typename Value>
auto make_aligned(std::int64_t count) {
  constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kLine); }
  };
  const auto size = static_cast<std::size_t>(count) * sizeof(Value);
  return std::unique_ptr<Value[], Free>(static_cast<Value*>(::operator new(size, kLine)));
}

// Scratch of one thread.
template <typename Sum>
struct Workspace {
  explicit Workspace(const Part& largest)
      : packed(make_aligned<float>(largest.cols * kScaleBlock)),
        sum(make_aligned<Sum>(largest.rows * largest.cols)),
        stride(largest.cols) {
    // Columns up to a whole panel are summed with the others, and are nobody's.
    std::fill_n(b.get(), kMostPanel * kScaleBlock, 0.0f);
  }

  decltype(make_aligned<float>(0)) a = make_aligned<float>(kRowsAtOnce * kScaleBlock);
  decltype(make_aligned<float>(0)) b = make_aligned<float>(kMostPanel * kScaleBlock);
  decltype(make_aligned<float>(0)) packed;
  decltype(make_aligned<Sum>(0)) sum;
  std::int64_t stride;
  float scale_a[kRowsAtOnce];
  float scale_b[kMostColumns] = {};
};

core::ScaleAccess<const float> scale_access(const DotOperand& matrix) {
  return core::scale_access({matrix.data, *matrix.scale, matrix.granularity});
}

// Adds C and the bias in FP32 and rounds once. The sums are in FP32 then, in their own memory if
// they were before.
template <typename Sum>
void store_part(const MatrixProduct& product, const Part& part, Sum* sums, std::int64_t stride) {
  std::array<float, kMostColumns> rounded, addend;
  for (std::int64_t i = 0; i < part.rows; ++i) {
    float* sum = rounded.data();
    if constexpr (std::is_same_v<Sum, float>) {
      sum = sums + i * stride;
    } else {
      std::copy_n(sums + i * stride, part.cols, sum);
    }
    const auto add_row = [&](const TensorView& tensor, std::int64_t offset) {
      load(tensor.data, tensor.dtype, offset + part.n, 1, part.cols, addend.data());
      for (std::int64_t j = 0; j < part.cols; ++j) sum[j] += addend[static_cast<std::size_t>(j)];
    };
    const MutableTensorView& out = product.out;
    if (product.c) add_row(*product.c, (part.m + i) * product.c->strides[0]);
    if (product.bias) add_row(*product.bias, 0);
    store(sum, part.cols, out.data, out.dtype, (part.m + i) * out.strides[0] + part.n,
          Overflow::kSaturate);
  }
}

template <typename Sum>
void compute_part(const MatrixProduct& product, const Part& part, Workspace<Sum>& work) {
  const VectorKernels& kernels = vector_kernels();
  const std::int64_t size_k = product.a.depth();
  if (size_k == 0) {
    std::fill_n(work.sum.get(), part.rows * work.stride, Sum{0});
    return store_part(product, part, work.sum.get(), work.stride);
  }
  for (std::int64_t k = 0; k < size_k; k += kScaleBlock) {
    const std::int64_t depth = std::min<std::int64_t>(kScaleBlock, size_k - k);
    for (std::int64_t col = 0; col < part.cols; col += kMostPanel) {
      const std::int64_t cols = std::min(kMostPanel, part.cols - col);
      product.b.load_block(part.n + col, cols, k, depth, work.b.get(), work.scale_b + col);
      kernels.pack(work.b.get(), kMostPanel, work.packed.get() + col * kScaleBlock);
    }
    for (std::int64_t row = 0; row < part.rows; row += kRowsAtOnce) {
      const std::int64_t rows = std::min(kRowsAtOnce, part.rows - row);
      Sum* const sums = work.sum.get() + row * work.stride;
      product.a.load_block(part.m + row, rows, k, depth, work.a.get(), work.scale_a);
      const BlockProduct<Sum> block{.rows = rows,
                                    .columns = part.cols,
                                    .depth = depth,
                                    .a = work.a.get(),
                                    .b = work.packed.get(),
                                    .scale_a = work.scale_a,
                                    .scale_b = work.scale_b,
                                    .sum = sums,
                                    .is_first = k == 0,
                                    .stride = work.stride};
      if constexpr (std::is_same_v<Sum, float>) {
        kernels.add_block(block);
      } else {
        kernels.add_block_in_double(block);
      }
      if (k + depth < size_k) continue;  // the last sums are still in the cache
      store_part(product, {part.m + row, rows, part.n, part.cols}, sums, work.stride);
    }
  }
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
  const std::int64_t size = size_of(data.dtype);
  const auto* const bytes = static_cast<const std::byte*>(data.data) + k * size;
  for (std::int64_t i = 0; i < count; ++i) {
    // The rows to come, of which a processor does not see that they are next.
    constexpr std::int64_t kAhead = 6, kLine = 64;
    if (i + kAhead < count) {
      const std::byte* const ahead = bytes + (first + i + kAhead) * data.strides[0] * size;
      for (std::int64_t at = 0; at < depth * size; at += kLine) __builtin_prefetch(ahead + at);
    }
    load(data.data, data.dtype, (first + i) * data.strides[0] + k, 1, depth,
         values + i * kScaleBlock);
  }
  std::fill_n(scales, count, 1.0f);
  if (!matrix_.scale) return;
  const core::UnitSize unit = core::unit_size(matrix_.granularity, data.shape[0], data.shape[1]);
  const core::ScaleAccess<const float> scale = scale_access(matrix_);
  const std::int64_t column = k / unit.cols;
  for (std::int64_t i = 0; i < count; ++i) scales[i] = scale((first + i) / unit.rows, column);
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
  std::array<float, kRowsAtOnce> row;  // blocks have no more vectors
  for (std::int64_t i = 0; i < depth; ++i) {
    load(data.data, data.dtype, (k + i) * data.strides[0] + first, 1, count, row.data());
    for (std::int64_t begin = 0, end; begin < count; begin = end) {
      const std::int64_t in_block = (first + begin) % kScaleBlock;
      end = std::min<std::int64_t>(begin + kScaleBlock - in_block, count);
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
  if (size_m == 0 || size_n == 0) return;
  const std::int64_t size_k = product.a.depth();
  const Part largest = largest_part(size_m, size_n);
  const std::int64_t across = core::ceil_divide(size_n, largest.cols);
  const std::int64_t parts = core::ceil_divide(size_m, largest.rows) * across;
  const std::int64_t work_per_part =  // multiplications cost a small part of a converted element
      largest.rows * largest.cols * (1 + size_k / 16) + (largest.rows + largest.cols) * size_k;
  parallel_for(parts, work_per_part, [&] {
    return [&, work = Workspace<Sum>(largest)](std::int64_t index) mutable {
      const std::int64_t m = index / across * largest.rows, n = index % across * largest.cols;
      compute_part(product,
                   {m, std::min(largest.rows, size_m - m), n, std::min(largest.cols, size_n - n)},
                   work);
    };
  });
}

template void compute<float>(const MatrixProduct& product);
template void compute<double>(const MatrixProduct& product);

void await_shard(std::string_view operation, const core::Arrivals& arrivals, std::int64_t shard) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  // atomic_ref takes no const; this only reads.
  const std::atomic_ref flag(const_cast<std::int32_t&>(arrivals.flags[shard]));
  const Clock::time_point begin = Clock::now();
  while (flag.load(std::memory_order_acquire) == 0) {
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (waited.count() > arrivals.most_seconds) {
      core::fail(ErrorCode::kUnavailable,
                 "{}: argument 'arrivals': expected the flag of shard {} of {} to be set within {} "
                 "s, got 0 all the time",
                 operation, shard, arrivals.shards, arrivals.most_seconds);
    }
    std::this_thread::sleep_for(50us);
  }
}

}  // namespace octofold::cpu
