// The block's shared memory, as addresses, with what its barriers mean, and the tiles that a block
// has: those of TileWalk, or of groups of rows.
#pragma once

#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/warp_arrival.h"
#include "kernels/shared/stages.h"
#include "kernels/shared/tile_walk.h"
#include "kernels/weight_only/walk.h"
#include "kernels/weight_only_sm90/config/config.h"

namespace octofold::weight_only_sm90 {

using config::Sm90WeightOnlyConfig;
using config::Sm90WeightOnlyParams;
using config::Tile;

template <Sm90WeightOnlyConfig kConfig>
struct SharedMemory {
  unsigned base;

  // Codes: rows of 128 along the depth. Transposed, for each 128 columns 128 rows of them.
  __device__ unsigned w(int stage) const { return base + stage * kConfig.stage_bytes(); }
  // Rows of x, 64 of the depth in each half.
  __device__ unsigned x(int stage, int half) const {
    return w(stage) + kConfig.w_bytes() + half * kConfig.x_half_bytes();
  }
  __device__ unsigned scales(int stage) const { return x(stage, 2); }
  // The address of eight rows of out of a warpgroup, in one of two places.
  __device__ unsigned output(int warpgroup, int place) const {
    return base + kConfig.output_at() + (2 * warpgroup + place) * 8 * kConfig.stored_row_bytes();
  }
  // In place of the ring.
  __device__ unsigned group_sums(int group) const {
    return base + (group - 1) * kConfig.group_sums_bytes();
  }
  __device__ unsigned slices() const { return base; }

  // All of a stage has arrived.
  __device__ unsigned full(int stage) const { return base + kConfig.barriers_at() + 8 * stage; }
  // All warps that multiply what it holds are done with it.
  __device__ unsigned empty(int stage) const { return full(kConfig.stages + stage); }
  // The sums of the other blocks that share the tile have arrived.
  __device__ unsigned slices_full() const { return full(2 * kConfig.stages); }

  // The first warp. `producers`: arrivals that make a stage full.
  __device__ void init_barriers(unsigned producers) const {
    const int stage = static_cast<int>(threadIdx.x);
    if (stage < kConfig.stages) {
      ptx::mbarrier_init(full(stage), producers);
      ptx::mbarrier_init(empty(stage), kConfig.group_threads() / 32 * ptx::kArrivalsOfWarp);
    }
    if (stage == 0) ptx::mbarrier_init(slices_full(), 1);
    ptx::fence_mbarrier_init();
  }
};

template <Sm90WeightOnlyConfig kConfig, bool kHasGroups = kConfig.has_groups()>
class Walk : public config::TileWalk<kConfig> {
 public:
  __device__ explicit Walk(const Sm90WeightOnlyParams& params)
      : config::TileWalk<kConfig>(params.work, static_cast<int>(blockIdx.x),
                                  static_cast<int>(gridDim.x)) {}
};

// Walks over groups of rows, whose numbers are in device memory: all lanes of a warp together.
template <Sm90WeightOnlyConfig kConfig>
class Walk<kConfig, true> {
 public:
  __device__ explicit Walk(const Sm90WeightOnlyParams& params)
      : params_(params), index_(blockIdx.x) {
    find();
  }

  __device__ bool has_tile() const { return group_ >= 0; }
  __device__ Tile tile() const {
    return {.group = group_,
            .operand_row = row_,
            .operand_column = column_,
            .row = row_,
            .column = column_,
            .row_end = row_end_,
            .column_end = params_.work.columns,
            .k_begin = 0,
            .k_end = params_.work.depth};
  }
  __device__ void advance() {
    index_ += gridDim.x;
    find();
  }

 private:
  struct Sizes {
    int rows, columns;
    const config::WeightOnlyGroups& groups;
  };

  // In 32 bits, as TMA counts.
  __device__ void find() {
    config::WeightOnlyTile tile{};
    const Sizes sizes{params_.work.rows, params_.work.columns, params_.groups};
    const bool exists = weight_only::find_group_tile<kConfig>(sizes, index_, tile);
    row_ = static_cast<int>(tile.row);
    column_ = static_cast<int>(tile.column);
    row_end_ = static_cast<int>(tile.row_end);
    group_ = exists ? tile.group : -1;
  }

  const Sm90WeightOnlyParams& params_;
  unsigned index_;
  int row_ = 0, column_ = 0, row_end_ = 0, group_ = -1;
};

}  // namespace octofold::weight_only_sm90
