// The tiles that a block has: those of TileWalk, or of groups of rows.
#pragma once

#include "kernels/shared/tile_walk.h"
#include "kernels/weight_only/walk.h"
#include "kernels/weight_only_sm90/shared_memory.h"

namespace octofold::weight_only_sm90 {

using config::Tile;

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
