// A block's stages, one after another, tile by tile, for producers that are several stages ahead.
#pragma once

#include "kernels/sm90/pipeline.h"

namespace octofold::sm90 {

// By at most one round of the ring.
template <int kStages>
__device__ void advance_by(RingPosition<kStages>& position, int count) {
  position.stage += count;
  if (position.stage >= kStages) {
    position.stage -= kStages;
    position.parity ^= 1;
  }
}

template <config::Sm90GemmConfig kConfig>
class StageWalk {
 public:
  __device__ explicit StageWalk(const config::Sm90GemmParams& params)
      : walk_(walk_of<kConfig>(params)) {
    if (has_stage()) begin_tile();
  }

  __device__ bool has_stage() const { return walk_.has_tile(); }
  __device__ const config::TileWalk<kConfig>& tiles() const { return walk_; }
  __device__ const config::Tile& tile() const { return tile_; }
  __device__ int k() const { return k_; }

  __device__ void advance() {
    k_ += config::kStageDepth;
    if (k_ < tile_.k_end) return;
    walk_.advance();
    if (has_stage()) begin_tile();
  }

  // Goes so many stages on. Every tile has stages.
  __device__ void advance_by(int stages) {
    k_ += stages * config::kStageDepth;
    while (k_ >= tile_.k_end && has_stage()) {
      const int depth = config::round_up(tile_.k_end - tile_.k_begin, config::kStageDepth);
      const int beyond = k_ - tile_.k_begin - depth;
      walk_.advance();
      if (!has_stage()) return;
      begin_tile();
      k_ += beyond;
    }
  }

 private:
  __device__ void begin_tile() {
    tile_ = walk_.tile();
    k_ = tile_.k_begin;
  }

  config::TileWalk<kConfig> walk_;
  config::Tile tile_{};
  int k_ = 0;
};

}  // namespace octofold::sm90
