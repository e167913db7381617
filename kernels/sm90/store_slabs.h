// Store: each consumer warp stores its own rows, in slabs of 16 rows × 128 bytes of shared memory.
// For tiles that would take too much of it as a whole, and for a D that TMA cannot address.
//
// `Slabs` is how a slab leaves: sent by TMA (SentSlabs, here), some under way while the next one is
// filled, or copied by the warp (CopiedSlabs).
//
//   prefetch(params)                       one thread, when the kernel starts
//   await()                                a warp, before it fills a slab
//   leave(params, slab, tile, row, column) a warp; where in D the slab belongs
//   finish()                               when all have left
//
// Slabs are used in turn on over the ends of tiles: beginning with the first one at each tile, a
// tile with an odd number of slabs filled one twice running while TMA still read it. C prefetched
// into L2 lost or changed nothing (docs/notes/gemm-sm90.md).
#pragma once

#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig, typename Boxes>
struct SentSlabs {
  static __device__ void prefetch(const Sm90GemmParams& params) {
    ptx::prefetch_tensor_map(&params.out_map);
  }
  static __device__ void await() {
    if (threadIdx.x % 32 == 0) ptx::tma_store_wait_read<kConfig.slabs - 1>();
    __syncwarp();
  }
  static __device__ void leave(const Sm90GemmParams& params, unsigned slab, const Tile& tile,
                               int row, int column) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    Boxes::send(params, slab, column, row, tile.row_end);
    ptx::tma_store_commit();
  }
  // Shared memory has to last until all of it is read.
  static __device__ void finish() { ptx::tma_store_wait_read<0>(); }
};

template <Sm90GemmConfig kConfig, typename Slabs>
class StoreSlabs : public StoreDefaults<kConfig> {
 public:
  __device__ explicit StoreSlabs(const SharedMemory<kConfig>& smem)
      : slabs_(smem.output() + static_cast<int>(threadIdx.x) / 32 * kConfig.slabs * kSlabBytes) {}

  static __device__ void prefetch(const Sm90GemmParams& params) { Slabs::prefetch(params); }

  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int rank,
                        const Accumulators<kConfig>& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first_row = tile.row + first_row_of_thread<kConfig>();
    const RowFactors<kConfig> row_factors(params, tile, first_row);
#pragma unroll
    for (int begin = 0; begin < kConfig.tile_columns; begin += kColumns) {
      if (!owns<kConfig>(begin, rank)) continue;
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int row = first_row + kConfig.sub_tile_stride() * sub_tile;
        if (row - lane / 4 >= tile.row_end) break;
        Slabs::await();
        const unsigned slab = slabs_ + next_ * kSlabBytes;
        const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
#pragma unroll
        for (int column = 0; column < kColumns; column += 16) {
          if (begin + column >= kConfig.tile_columns) break;
          // The factors of a whole tile's columns take registers that slabs lack.
          const ColumnFactors<kConfig, 16> column_factors(params, tile, begin + column);
          const ColumnTerms<kConfig> left(params, tile, column_factors, 0, begin + column);
          const ColumnTerms<kConfig> right(params, tile, column_factors, 8, begin + column);
          const float* pairs = &sums[sub_tile][(begin + column) / 2];
          BoxOf<kConfig.form.out, config::kSlabRowBytes>::write(
              slab, column, upper.finish(left, pairs[0], pairs[1]),
              lower.finish(left, pairs[2], pairs[3]), upper.finish(right, pairs[4], pairs[5]),
              lower.finish(right, pairs[6], pairs[7]));
        }
        Slabs::leave(params, slab, tile, row - lane / 4, tile.column + begin);
        next_ = next_ + 1 == kConfig.slabs ? 0 : next_ + 1;
      }
    }
  }

  __device__ void finish() const { Slabs::finish(); }

 private:
  static constexpr int kSlabBytes = config::kSlabBytes;
  static constexpr int kColumns = kConfig.slab_columns();

  unsigned slabs_;  // of the warp
  int next_ = 0;
};

// Slabs that a consumer warp itself copies to D: rows of any length, at any address, where TMA
// takes multiples of 16 bytes alone. A lane has a word of each row, so that a row leaves as 128
// bytes next to each other: stored straight from registers, eight rows get 16 bytes each at a time.

template <Sm90GemmConfig kConfig>
struct CopiedSlabs {
  // The warp copies a slab once all its lanes have filled it; they fill it again two slabs later,
  // when all have copied it.
  static_assert(kConfig.slabs == 2);

  static __device__ void prefetch(const Sm90GemmParams&) {}
  static __device__ void await() {}
  static __device__ void finish() {}

  static __device__ void leave(const Sm90GemmParams& params, unsigned slab, const Tile& tile,
                               int row, int column) {
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int rows = min(tile.row_end - row, config::kSlabRows);
    // The last slab of a tile may be narrower.
    const int end = min(tile.column_end, tile.column + kConfig.tile_columns);
    const int columns = min(end - column, kConfig.slab_columns());
    if (columns <= 0) return;
    long long index = index_of<kConfig>(row, column, params.out_stride);
#pragma unroll
    for (int i = 0; i < config::kSlabRows; ++i, index += params.out_stride) {
      if (i >= rows) break;
      const unsigned word = ptx::load_shared_word(slab + i * config::kSlabRowBytes +
                                                  16 * (lane / 4 ^ i % 8) + 4 * (lane % 4));
      store_words(params.out, index, columns, lane, word);
    }
  }

 private:
  // A row of so many elements of D, from the one at `index` on: a word of each lane.
  static __device__ void store_words(void* out, long long index, int columns, int lane,
                                     unsigned word) {
    if constexpr (kConfig.form.out == DType::kFloat32) {
      if (lane < columns) static_cast<unsigned*>(out)[index + lane] = word;
    } else {
      auto* row = static_cast<unsigned short*>(out) + index;
      // Behind an odd element a word is the second one of the lane before, and the lane's first.
      const int odd = reinterpret_cast<unsigned long long>(row) / 2 % 2;
      const unsigned before = __shfl_up_sync(0xFFFFFFFF, word, 1);
      const int first = 2 * lane - odd;
      if (first >= 0 && first + 1 < columns) {
        *reinterpret_cast<unsigned*>(row + first) = odd ? word << 16 | before >> 16 : word;
      }
      const int last = columns - 1;
      if (odd && lane == 0) row[0] = static_cast<unsigned short>(word);
      if (last % 2 == odd && lane == last / 2) {
        row[last] = static_cast<unsigned short>(odd ? word >> 16 : word);
      }
    }
  }
};

// ---- D straight from registers, each thread pairs of columns. It takes any row stride, any
// alignment and any type.

template <Sm90GemmConfig kConfig>
struct StoreDirectly : StoreDefaults<kConfig> {
  __device__ explicit StoreDirectly(const SharedMemory<kConfig>&) {}

  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int rank,
                        const Accumulators<kConfig>& sums) const {
    store_pairs<kConfig, kConfig.tile_columns>(
        params, tile, tile.row + first_row_of_thread<kConfig>(), 0,
        [&](int first) { return owns<kConfig>(first, rank); },
        [&](int sub_tile, int place) { return sums[sub_tile][place]; });
  }
};

}  // namespace octofold::sm90
