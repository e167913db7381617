// Store: the tile of D through shared memory as a whole. The consumers write it there and go on
// with the next tile, while one producer thread sends it out by TMA.
//
// A Store is how D leaves: so (here), with swapped operands (store_boxes.h), as the codes of a
// gated activation (gated.h), by each consumer warp for itself or straight from registers
// (store_slabs.h), or added to a C that TMA brings (store_prefetched_c.h).
//
//   Store(smem)                             each consumer warp
//   store(params, tile, rank, accumulators) a tile; `rank`: the block's in a split K
//   finish()                                when all tiles are stored
//   send(params, smem, rank)                one producer thread, all tiles
//   prefetch(params)                        one thread, when the kernel starts
// D leaves so where four stages of the ring remain beside it, else in slabs.
#pragma once

#include "kernels/epilogue/finish.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/consumer.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
struct StoreDefaults {
  __device__ void finish() const {}
  static __device__ void send(const Sm90GemmParams&, const SharedMemory<kConfig>&, int) {}
  static __device__ void prefetch(const Sm90GemmParams&) {}
};

// True if this block stores the eight columns of the tile that begin with this one: in a split K
// each stores some.
template <Sm90GemmConfig kConfig>
__device__ bool owns(int column, int rank) {
  return column / kConfig.owned_columns() == rank;
}

// ---- Boxes that TMA stores: rows of 128, 64 or 32 bytes under the swizzle of that width, so that
// neither threads nor the copy engine meet a bank conflict.

// A lane writes its part of sixteen columns of its warp's 16 rows: pairs of the upper and the lower
// eight rows, in the left and the right eight columns. `rows`: where the first of the 16 rows lies
// in the box; `first`: the place of the columns in it. FP32: store_boxes.h.
template <DType kOut, int kRowBytes>
struct BoxOf {
  static_assert(size_of(kOut) == 2);

  static __device__ void write(unsigned rows, int first, float2 upper_left, float2 lower_left,
                               float2 upper_right, float2 lower_right) {
    ptx::store_matrices(place(rows, first), pack_pair<kOut>(upper_left.x, upper_left.y),
                        pack_pair<kOut>(lower_left.x, lower_left.y),
                        pack_pair<kOut>(upper_right.x, upper_right.y),
                        pack_pair<kOut>(lower_right.x, lower_right.y));
  }

  // stmatrix: lane l addresses row l % 16 of the left or (l ≥ 16) of the right eight columns.
  static __device__ unsigned place(unsigned rows, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane % 16, swizzle = row * kRowBytes / 128 % (kRowBytes / 16);
    const int chunk = first / 8 + lane / 16;
    return rows + row * kRowBytes + 16 * (chunk ^ swizzle);
  }
};

// To D, or added to it. `at`: column, then row, as the tensor map counts them.
template <bool kAdds, typename... At>
__device__ void send_to(const config::TensorMap& map, unsigned box, At... at) {
  if constexpr (kAdds) {
    ptx::tma_add(&map, box, at...);
  } else {
    ptx::tma_store(&map, box, at...);
  }
}

// How boxes leave whose rows TMA itself cuts off where D ends; groups: groups.h. One thread.
template <Sm90GemmConfig kConfig>
struct TileBoxes {
  static __device__ void send(const Sm90GemmParams& params, unsigned box, int column, int row,
                              int row_end) {
    send_to<kConfig.adds_in_place>(params.out_map, box, column, row);
  }
};

// ---- The whole tile

// `Write`: what stands in the tile, and where it belongs. write(params, smem, tile, rank,
// accumulators); kRows, kColumns: the part of D that the block stores; origin(tile, rank): where.
template <Sm90GemmConfig kConfig, typename Write, typename Boxes>
class StoreTile : public StoreDefaults<kConfig> {
 public:
  __device__ explicit StoreTile(const SharedMemory<kConfig>& smem) : smem_(smem) {}

  static __device__ void prefetch(const Sm90GemmParams& params) {
    ptx::prefetch_tensor_map(&params.out_map);
  }

  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int rank,
                        const Accumulators<kConfig>& sums) {
    ptx::mbarrier_wait(smem_.output_empty(), parity_);
    parity_ ^= 1;
    Write::write(params, smem_, tile, rank, sums);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive_for_warp(smem_.output_full());
  }

  static __device__ void send(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                              int rank) {
    constexpr int kBoxRows = SharedMemory<kConfig>::kLayout.output_box_rows;
    constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
    constexpr int kBoxBytes = kBoxRows * kBoxColumns * size_of(kConfig.form.out);
    constexpr int kOwned = kConfig.owned_columns();
    unsigned parity = 0;
    for (auto walk = walk_of<kConfig>(params); walk.has_tile(); walk.advance(), parity ^= 1) {
      const Tile tile = walk.tile();
      ptx::mbarrier_wait(smem.output_full(), parity);
      const auto [row, column, row_end] = Write::origin(tile, rank);
      unsigned source = smem.output();
      for (int j = 0; j < Write::kColumns; j += kBoxColumns) {
        for (int i = 0; i < Write::kRows; i += kBoxRows, source += kBoxBytes) {
          // The last of the blocks that share a tile may own less, or nothing.
          if (kOwned * kConfig.split_k != kConfig.tile_columns &&
              rank * kOwned + i >= kConfig.tile_columns) {
            continue;
          }
          Boxes::send(params, source, column + j, row + i, row_end);
        }
      }
      ptx::tma_store_commit();
      ptx::tma_store_wait_read<0>();
      ptx::mbarrier_arrive(smem.output_empty());
    }
  }

 private:
  const SharedMemory<kConfig>& smem_;
  unsigned parity_ = 1;
};

// The beginning of a block's part of a tile in D, and the end of D's rows, or of the group's.
struct Origin {
  int row;
  int column;
  int row_end;
};

// D's rows are the instruction's.
template <Sm90GemmConfig kConfig>
struct WriteRows {
  static constexpr int kRows = kConfig.tile_rows, kColumns = kConfig.owned_columns();

  static __device__ Origin origin(const Tile& tile, int rank) {
    return {tile.row, tile.column + rank * kColumns, tile.row_end};
  }

  static __device__ void write(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               const Tile& tile, int rank, const Accumulators<kConfig>& sums) {
    constexpr int kBoxColumns = SharedMemory<kConfig>::kLayout.output_box_columns;
    constexpr int kRowBytes = kBoxColumns * size_of(kConfig.form.out);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_thread = first_row_of_thread<kConfig>();
    const int first_row = tile.row + row_of_thread;
    const ColumnFactors<kConfig> column_factors(params, tile);
    const RowFactors<kConfig> row_factors(params, tile, first_row);
    const unsigned rows_of_warp = smem.output() + (row_of_thread - lane / 4) * kRowBytes;
#pragma unroll
    for (int j = 0; j < kConfig.tile_columns / 8; j += 2) {
      if (!owns<kConfig>(8 * j, rank)) continue;
      hold_back_loads<kConfig>();
      const ColumnTerms<kConfig> left(params, tile, column_factors, 8 * j);
      const ColumnTerms<kConfig> right(params, tile, column_factors, 8 * (j + 1));
      const int owned = 8 * j % kConfig.owned_columns();
      const unsigned box = rows_of_warp + owned / kBoxColumns * kConfig.tile_rows * kRowBytes;
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int row = first_row + kConfig.sub_tile_stride() * sub_tile;
        const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
        const float* pairs = &sums[sub_tile][4 * j];
        BoxOf<kConfig.form.out, kRowBytes>::write(
            box + kConfig.sub_tile_stride() * sub_tile * kRowBytes, owned % kBoxColumns,
            upper.finish(left, pairs[0], pairs[1]), lower.finish(left, pairs[2], pairs[3]),
            upper.finish(right, pairs[4], pairs[5]), lower.finish(right, pairs[6], pairs[7]));
      }
    }
  }
};

}  // namespace octofold::sm90
