// D = sums + C where nobody waits for C: while a tile is multiplied TMA brings its C to shared
// memory, box by box; the math warps add their sums to what lies there, and TMA stores it from the
// same place.
#pragma once

#include "kernels/epilogue/finish.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/config/gemm.h"
#include "kernels/sm90/math.h"
#include "kernels/sm90/pipeline.h"
#include "kernels/sm90/shared_memory.h"
#include "kernels/sm90/store.h"
#include "kernels/sm90/walk.h"

namespace octofold::sm90 {

// What a thread has of sixteen columns of its warp's 16 rows, as write_to_box() takes it.
struct BoxPairs {
  float2 upper_left, lower_left, upper_right, lower_right;
};

template <int kRowBytes>
__device__ BoxPairs read_from_box(unsigned rows, int first) {
  const unsigned left = pair_in_box<kRowBytes>(rows, first, 0);
  const unsigned right = pair_in_box<kRowBytes>(rows, first, 1);
  return {ptx::load_shared_pair(left), ptx::load_shared_pair(left + 8 * kRowBytes),
          ptx::load_shared_pair(right), ptx::load_shared_pair(right + 8 * kRowBytes)};
}

// Rounded by itself, as TMA adds, and threads that read C: the same bits.
__device__ inline float2 add_pair(float2 sums, float2 c) {
  return {__fadd_rn(sums.x, c.x), __fadd_rn(sums.y, c.y)};
}

// The math warps' side: box after box of the block's tiles, in which C lies.
template <Sm90GemmConfig kConfig>
class BoxSums {
 public:
  __device__ explicit BoxSums(const SharedMemory<kConfig>& smem) : smem_(smem) {}

  __device__ void add(const Sm90GemmParams& params, const Tile& tile, const Sums<kConfig>& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_thread = first_row_of_thread<kConfig>();
    const ColumnFactors<kConfig> column_factors(params, tile);
    const RowFactors<kConfig> row_factors(params, tile, tile.row + row_of_thread);
#pragma unroll
    for (int j = 0; j < kConfig.tile_columns / 8; j += 2) {
      const int column = 8 * j % kColumns;  // in the box
      if (column == 0) ptx::mbarrier_wait(smem_.box_full(box_.stage), box_.parity);
      // As in stage_rows().
      if constexpr (!kSumsAreFinal<kConfig>) __syncwarp();
      const ColumnTerms<kConfig> left(params, tile, column_factors, 8 * j);
      const ColumnTerms<kConfig> right(params, tile, column_factors, 8 * (j + 1));
      const unsigned rows_of_warp = smem_.box(box_.stage) + (row_of_thread - lane / 4) * kRowBytes;
#pragma unroll
      for (int sub_tile = 0; sub_tile < kConfig.sub_tiles(); ++sub_tile) {
        const int row = tile.row + row_of_thread + 64 * sub_tile;
        const unsigned rows = rows_of_warp + 64 * sub_tile * kRowBytes;
        const RowTerms<kConfig> upper(params, tile, row, row_factors.at(sub_tile, 0));
        const RowTerms<kConfig> lower(params, tile, row + 8, row_factors.at(sub_tile, 1));
        const float* pairs = &sums[sub_tile][4 * j];
        const BoxPairs c = read_from_box<kRowBytes>(rows, column);
        write_to_box<kOut, kRowBytes>(
            rows, column, add_pair(upper.finish(left, pairs[0], pairs[1]), c.upper_left),
            add_pair(lower.finish(left, pairs[2], pairs[3]), c.lower_left),
            add_pair(upper.finish(right, pairs[4], pairs[5]), c.upper_right),
            add_pair(lower.finish(right, pairs[6], pairs[7]), c.lower_right));
      }
      if (column + 16 == kColumns) pass_on(lane);
    }
  }

 private:
  static constexpr DType kOut = kConfig.form.out;
  static constexpr int kColumns = kConfig.box_columns();
  static constexpr int kRowBytes = kColumns * size_of(kOut);

  __device__ void pass_on(int lane) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem_.box_summed(box_.stage));
    box_.advance();
  }

  const SharedMemory<kConfig>& smem_;
  RingPosition<kConfig.boxes> box_;
};

// Box after box of a block's tiles, and where it is in shared memory.
template <Sm90GemmConfig kConfig>
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

  // One thread: C of this box. Of a box without columns of D's TMA would read what is not C's.
  __device__ void bring(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) const {
    constexpr auto kLayout = SharedMemory<kConfig>::kLayout;
    const unsigned box = smem.box(place_.stage), full = smem.box_full(place_.stage);
    const Tile tile = walk_.tile();
    const int column = tile.column + column_;
    if (column >= tile.column_end) return ptx::mbarrier_arrive(full);
    if constexpr (kConfig.stores_groups()) {  // send_box() says how it is addressed
      const int existing = min(tile.row_end - tile.row, kLayout.output_box_rows);
      if (existing <= 0) return ptx::mbarrier_arrive(full);
      ptx::mbarrier_arrive_expect_bytes(full, kLayout.output_box_bytes);
      ptx::tma_load(box, &params.c_map, full, column, kLayout.output_box_rows - existing,
                    tile.row + existing);
    } else {
      ptx::mbarrier_arrive_expect_bytes(full, kLayout.output_box_bytes);
      ptx::tma_load(box, &params.c_map, full, column, tile.row);
    }
  }

  // One thread: D of this box, when it is summed.
  __device__ void send(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) const {
    const Tile tile = walk_.tile();
    ptx::mbarrier_wait(smem.box_summed(place_.stage), place_.parity);
    send_box<kConfig>(params, smem.box(place_.stage), tile.column + column_, tile.row,
                      tile.row_end);
    ptx::tma_store_commit();
  }

 private:
  config::TileWalk<kConfig> walk_;
  RingPosition<kConfig.boxes> place_;
  int column_ = 0;  // of the box in the tile
};

// One thread of the loading warpgroup. A box of C comes to the place of the one that was stored
// last but one, which has been read by then; the others are on their way, or wait for their sums.
template <Sm90GemmConfig kConfig>
__device__ void move_boxes(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
  BoxWalk<kConfig> coming(params), leaving(params);
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

}  // namespace octofold::sm90
