// Slabs that a consumer warp itself copies to D: rows of any length, at any address, where TMA
// takes multiples of 16 bytes alone. A lane has a word of each row, so that a row leaves as 128
// bytes next to each other: stored straight from registers, eight rows get 16 bytes each at a time.
#pragma once

#include "kernels/sm90/store_slabs.h"

namespace octofold::sm90 {

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

}  // namespace octofold::sm90
