// Store: D = accumulators + C with C prefetched (C and D in FP32, in place or not). While a tile is
// multiplied, TMA brings its C to shared memory, box by box; the consumers add their accumulators
// to what lies there, and TMA stores it from the same place.
//
// Nobody waits for C or needs its addresses, and nothing is added in memory, where L2 adds at 2.45
// TB/s (read and written) and a copy moves 4.28: 32 groups of K of 256 take 2289 µs in place of
// 3066 (DeepGEMM 3107). It leaves room for tiles of 128×160 and smaller ones, so that deep K is
// better off with larger tiles that add in memory (docs/kernels/gemm-sm90.md, "FP32, and
// sums in place").
#pragma once

#include "kernels/sm90/store_boxes.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

// Rounded by itself, as TMA adds, and threads that read C: the same bits.
__device__ inline float2 add_pair(float2 sums, float2 c) {
  return {__fadd_rn(sums.x, c.x), __fadd_rn(sums.y, c.y)};
}

// The address of a box in shared memory.
template <Sm90GemmConfig kConfig>
__device__ unsigned box_at(const SharedMemory<kConfig>& smem, int place) {
  return smem.output() + place * smem.kLayout.output_box_bytes;
}

// Boxes of C where TMA itself cuts off the rows behind C's last; groups: groups.h.
template <Sm90GemmConfig kConfig>
struct BoxesWithC : TileBoxes<kConfig> {
  // One thread: brings C's box, and counts its bytes at `full`.
  static __device__ void fetch_c(const Sm90GemmParams& params, unsigned box, unsigned full,
                                 int column, const Tile& tile) {
    ptx::mbarrier_arrive_expect_bytes(full, SharedMemory<kConfig>::kLayout.output_box_bytes);
    ptx::tma_load(box, &params.c_map, full, column, tile.row);
  }
};

// Box after box of a block's tiles, and where it is in shared memory.
template <Sm90GemmConfig kConfig, typename Boxes>
class BoxWalk {
 public:
  __device__ explicit BoxWalk(const Sm90GemmParams& params) : walk_(walk_of<kConfig>(params)) {}

  __device__ bool has_box() const { return walk_.has_tile(); }
  __device__ void advance() {
    place_.advance();
    column_ += kConfig.box_columns();
    if (column_ < kConfig.tile_columns) return;
    column_ = 0;
    walk_.advance();
  }

  // One thread: brings C's part of this box. Where a box has no column of D, TMA would read what is
  // not C's.
  __device__ void bring(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) const {
    const unsigned box = box_at(smem, place_.stage), full = smem.place_full(place_.stage);
    const Tile tile = walk_.tile();
    const int column = tile.column + column_;
    if (column >= tile.column_end) return ptx::mbarrier_arrive(full);
    Boxes::fetch_c(params, box, full, column, tile);
  }

  // One thread: stores this box when it is summed.
  __device__ void send(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) const {
    const Tile tile = walk_.tile();
    ptx::mbarrier_wait(smem.place_done(place_.stage), place_.parity);
    Boxes::send(params, box_at(smem, place_.stage), tile.column + column_, tile.row, tile.row_end);
    ptx::tma_store_commit();
  }

 private:
  config::TileWalk<kConfig> walk_;
  RingPosition<kConfig.boxes> place_;
  int column_ = 0;  // of the box in the tile
};

template <Sm90GemmConfig kConfig, typename Boxes>
class StorePrefetchedC : public StoreDefaults<kConfig> {
 public:
  __device__ explicit StorePrefetchedC(const SharedMemory<kConfig>& smem) : smem_(smem) {}

  static __device__ void prefetch(const Sm90GemmParams& params) {
    ptx::prefetch_tensor_map(&params.out_map);
    ptx::prefetch_tensor_map(&params.c_map);
  }

  // Box after box of the tile, in which C lies.
  __device__ void store(const Sm90GemmParams& params, const Tile& tile, int,
                        const Accumulators<kConfig>& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_thread = first_row_of_thread<kConfig>();
    const ColumnFactors<kConfig> column_factors(params, tile);
    const RowFactors<kConfig> row_factors(params, tile, tile.row + row_of_thread);
#pragma unroll
    for (int j = 0; j < kConfig.tile_columns / 8; j += 2) {
      const int column = 8 * j % kColumns;  // in the box
      if (column == 0) ptx::mbarrier_wait(smem_.place_full(box_.stage), box_.parity);
      hold_back_loads<kConfig>();
      const ColumnTerms<kConfig> left(params, tile, column_factors, 8 * j);
      const ColumnTerms<kConfig> right(params, tile, column_factors, 8 * (j + 1));
      const unsigned rows_of_warp =
          box_at(smem_, box_.stage) + (row_of_thread - lane / 4) * kRowBytes;
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int below = kConfig.sub_tile_stride() * sub_tile;
        const int row = tile.row + row_of_thread + below;
        const unsigned rows = rows_of_warp + below * kRowBytes;
        const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
        const float* pairs = &sums[sub_tile][4 * j];
        const auto c = Box::read(rows, column);
        Box::write(rows, column, add_pair(upper.finish(left, pairs[0], pairs[1]), c.upper_left),
                   add_pair(lower.finish(left, pairs[2], pairs[3]), c.lower_left),
                   add_pair(upper.finish(right, pairs[4], pairs[5]), c.upper_right),
                   add_pair(lower.finish(right, pairs[6], pairs[7]), c.lower_right));
      }
      if (column + 16 == kColumns) pass_on();
    }
  }

  // A box of C comes to the place of the one that was stored last but one, which has been read by
  // then; the others are on their way, or wait for their accumulators.
  static __device__ void send(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                              int) {
    BoxWalk<kConfig, Boxes> coming(params), leaving(params);
    const auto bring_next = [&] {
      if (!coming.has_box()) return;
      coming.bring(params, smem);
      coming.advance();
    };
    for (int i = 0; i < kConfig.boxes - 1; ++i) bring_next();
    for (; leaving.has_box(); leaving.advance()) {
      leaving.send(params, smem);
      ptx::tma_store_wait_read<1>();
      bring_next();
    }
    ptx::tma_store_wait_read<0>();
  }

 private:
  static constexpr int kColumns = kConfig.box_columns();
  static constexpr int kRowBytes = kColumns * size_of(kConfig.form.out);
  using Box = BoxOf<kConfig.form.out, kRowBytes>;

  __device__ void pass_on() {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive_for_warp(smem_.place_done(box_.stage));
    box_.advance();
  }

  const SharedMemory<kConfig>& smem_;
  RingPosition<kConfig.boxes> box_;
};

}  // namespace octofold::sm90
