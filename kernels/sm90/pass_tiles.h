// Tiles of groups pass from the producer, which finds them, to the consumers.
//
// To find the next tile among groups takes time: sizes are read one after another, and places
// divided. A producer, which is stages ahead, has it; consumers, at their tensor cores, have not,
// and lost 0.2 to 0.4 µs a tile (docs/notes/experts.md, "Who walks over groups"). So the thread
// that loads operands writes each tile to shared memory before the tile's first stage.
#pragma once

#include "kernels/sm90/pipeline.h"

namespace octofold::sm90 {

// The address of a tile that is passed.
template <Sm90GemmConfig kConfig>
__device__ unsigned passed_tile(const SharedMemory<kConfig>& smem, int place) {
  return smem.base + SharedMemory<kConfig>::kLayout.tiles + place * config::kPassedTileBytes;
}

// The producer's side: one thread.
template <Sm90GemmConfig kConfig>
class TileSender<kConfig, true> {
 public:
  __device__ explicit TileSender(const SharedMemory<kConfig>& smem) : smem_(smem) {}

  __device__ void send(const Tile& tile, bool more) {
    ptx::mbarrier_wait(smem_.place_done(kConfig.boxes + place_.stage), place_.parity ^ 1);
    const unsigned target = passed_tile(smem_, place_.stage);
    const int end = kConfig.swapped ? tile.column_end : tile.row_end;
    store(target, tile.group, tile.operand_row, tile.operand_column, end);
    store(target + 16, tile.row, tile.column, more, 0);
    ptx::mbarrier_arrive(smem_.place_full(kConfig.boxes + place_.stage));
    place_.advance();
  }

 private:
  static __device__ void store(unsigned target, int first, int second, int third, int fourth) {
    const unsigned words[] = {static_cast<unsigned>(first), static_cast<unsigned>(second),
                              static_cast<unsigned>(third), static_cast<unsigned>(fourth)};
    ptx::store_shared_words(target, words);
  }

  const SharedMemory<kConfig>& smem_;
  RingPosition<config::kPassedTiles> place_;
};

// The consumers' tiles where they walk themselves.
template <Sm90GemmConfig kConfig>
struct WalkedTiles : config::TileWalk<kConfig> {
  __device__ WalkedTiles(const Sm90GemmParams& params, const SharedMemory<kConfig>&)
      : config::TileWalk<kConfig>(walk_of<kConfig>(params)) {}
};

// The consumers' side, in place of a walk: tile() once, before advance().
template <Sm90GemmConfig kConfig>
class PassedTiles {
 public:
  __device__ PassedTiles(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem)
      : work_(params.work), smem_(smem), has_tile_(walk_of<kConfig>(params).has_tile()) {}

  __device__ bool has_tile() const { return has_tile_; }
  __device__ bool has_stages() const { return has_tile_ && work_.depth > 0; }

  __device__ Tile tile() {
    ptx::mbarrier_wait(smem_.place_full(kConfig.boxes + place_.stage), place_.parity);
    const unsigned source = passed_tile(smem_, place_.stage);
    unsigned of_operands[4], of_output[4];
    ptx::load_shared_words(source, of_operands);
    ptx::load_shared_words(source + 16, of_output);
    more_ = of_output[2] != 0;
    const int end = static_cast<int>(of_operands[3]);
    return {.group = static_cast<int>(of_operands[0]),
            .operand_row = static_cast<int>(of_operands[1]),
            .operand_column = static_cast<int>(of_operands[2]),
            .row = static_cast<int>(of_output[0]),
            .column = static_cast<int>(of_output[1]),
            .row_end = kConfig.swapped ? work_.rows : end,
            .column_end = kConfig.swapped ? end : work_.columns,
            .k_begin = 0,
            .k_end = work_.depth};
  }

  __device__ void advance() {
    ptx::mbarrier_arrive_for_warp(smem_.place_done(kConfig.boxes + place_.stage));
    place_.advance();
    has_tile_ = more_;
  }

 private:
  const config::WorkParams& work_;
  const SharedMemory<kConfig>& smem_;
  RingPosition<config::kPassedTiles> place_;
  bool has_tile_;
  bool more_ = false;  // behind the tile
};

}  // namespace octofold::sm90
