// The tiles that a block has.
#pragma once

#include "kernels/weight_only/group_tiles.h"
#include "kernels/weight_only_sm90/shared_memory.h"

namespace octofold::weight_only_sm90 {

using Position = config::WeightOnlyTile;

// The tiles of this block, and of each the steps of 128 along the depth that it sums.
template <Sm90WeightOnlyConfig kConfig, bool kHasGroups = kConfig.has_groups()>
class Walk;

// This walk computes what follows from the sizes anew: consumers have no registers for it.
template <Sm90WeightOnlyConfig kConfig>
class Walk<kConfig, false> {
 public:
  __device__ explicit Walk(const Sm90WeightOnlyParams& params)
      : params_(params), tile_(static_cast<int>(blockIdx.x) / kConfig.split_k) {}

  // The block's among those that share a tile.
  static __device__ int rank() { return static_cast<int>(blockIdx.x) % kConfig.split_k; }

  __device__ bool has_tile() const {
    return tile_ < config::ceil_divide(params_.rows, kConfig.tile_rows) *
                       config::ceil_divide(params_.columns, kConfig.tile_columns);
  }
  __device__ Position tile() const {
    return config::weight_only_tile<long long>(kConfig, params_.rows, params_.columns, tile_);
  }
  __device__ void advance() { tile_ += static_cast<int>(gridDim.x) / kConfig.split_k; }

  __device__ int begin() const { return steps() * rank() / kConfig.split_k; }
  __device__ int end() const { return steps() * (rank() + 1) / kConfig.split_k; }

 private:
  __device__ int steps() const { return config::ceil_divide(params_.depth, kScaleBlock); }

  const Sm90WeightOnlyParams& params_;
  int tile_;
};

// Walks over groups of rows, whose numbers are in device memory: all lanes of a warp together.
template <Sm90WeightOnlyConfig kConfig>
class Walk<kConfig, true> {
 public:
  __device__ explicit Walk(const Sm90WeightOnlyParams& params)
      : params_(params), index_(blockIdx.x) {
    find();
  }

  static __device__ int rank() { return 0; }
  __device__ bool has_tile() const { return group_ >= 0; }
  __device__ Position tile() const {
    return {.row = row_, .column = column_, .row_end = row_end_, .group = group_};
  }
  __device__ void advance() {
    index_ += gridDim.x;
    find();
  }

  static __device__ int begin() { return 0; }
  __device__ int end() const { return config::ceil_divide(params_.depth, kScaleBlock); }

 private:
  // In 32 bits, as TMA counts.
  __device__ void find() {
    Position tile{};
    const bool exists = weight_only::find_group_tile<kConfig>(params_, index_, tile);
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
