// Products of 16-bit numbers and FP8 weights by wgmma: configurations of their one kernel, the
// layout of its shared memory, and what the host passes.
//
// A tile is one of out[rows, columns], rows being those of x. Columns are the rows of the
// instruction, 64 of them at least, and rows its columns, 8 of them at least.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/stages.h"
#include "kernels/weight_only/config/config.h"

namespace octofold::config {

struct Sm90WeightOnlyConfig {
  DType w = DType::kE4M3;
  DType x = DType::kBFloat16;
  DType out = DType::kBFloat16;
  // These three are as in WeightOnlyConfig.
  bool transposed = false;
  bool w_blocks = false;
  bool depth_factors = false;
  // Scales of blocks change what a tile's sums are in; else products of a block have sums of their
  // own (block_scales.h). The two round differently.
  bool unit_sums = false;
  int tile_columns = 128;
  int tile_rows = 128;
  int warpgroups = 2;    // along the columns of the tile
  int depth_groups = 1;  // of so many warpgroups: they take the stages in turn
  int stages = 4;        // of 128 of the depth
  int split_k = 1;       // blocks of a cluster that share a tile, each with a part of the depth
  int blocks_per_multiprocessor = 1;
  Work work = Work::kDense;   // or groups of rows, as in WeightOnlyConfig
  bool store_vectors = true;  // rows of out are whole units of 16 bytes, at multiples of 16

  static constexpr const char* kHeader = "kernels/weight_only_sm90/kernel.h";
  static constexpr const char* kKernel = "weight_only_sm90_kernel";
  static constexpr const char* kTypeName = "octofold::config::Sm90WeightOnlyConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("w", w);
    field("x", x);
    field("out", out);
    field("transposed", transposed);
    field("w_blocks", w_blocks);
    field("depth_factors", depth_factors);
    field("unit_sums", unit_sums);
    field("tile_columns", tile_columns);
    field("tile_rows", tile_rows);
    field("warpgroups", warpgroups);
    field("depth_groups", depth_groups);
    field("stages", stages);
    field("split_k", split_k);
    field("blocks_per_multiprocessor", blocks_per_multiprocessor);
    field("work", work);
    field("store_vectors", store_vectors);
  }
  friend constexpr bool operator==(const Sm90WeightOnlyConfig&,
                                   const Sm90WeightOnlyConfig&) = default;

  constexpr bool has_groups() const { return work != Work::kDense; }

  // A walk over tiles asks for these (tile_walk.h): a cluster shares one.
  static constexpr int cluster_rows = 1, cluster_columns = 1;
  constexpr int cluster_size() const { return split_k; }
  constexpr int cluster_tile_rows() const { return tile_rows; }
  constexpr int cluster_tile_columns() const { return tile_columns; }
  constexpr int group_threads() const { return 128 * warpgroups; }
  constexpr int consumer_threads() const { return group_threads() * depth_groups; }
  constexpr int threads() const { return consumer_threads() + 128; }
  constexpr int warpgroup_columns() const { return tile_columns / warpgroups; }
  constexpr int sub_tiles() const { return warpgroup_columns() / 64; }
  constexpr SliceShape slices() const { return {split_k, tile_rows, sub_tiles(), group_threads()}; }

  // Registers of a thread when the block starts; what consumers have once producers have given
  // theirs back.
  constexpr int registers_at_start() const {
    return 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8;
  }
  static constexpr int producer_registers() { return 40; }
  constexpr int consumer_registers() const {
    const int consumers = warpgroups * depth_groups;
    const int all = ((consumers + 1) * registers_at_start() - producer_registers()) / consumers;
    return all < 240 ? all / 8 * 8 : 240;
  }
  // Registers of a consumer: sums and, for some products, operands that are read, those that are
  // decoded meanwhile, and their codes.
  constexpr int product_registers() const { return sums() + 12 * products_at_once(); }
  constexpr int sums() const {
    return tile_rows / 2 * (sub_tiles() + (has_partial_sums() ? 1 : 0));
  }
  // True if products of a block have sums of their own; true if there are registers for them.
  constexpr bool has_partial_sums() const { return w_blocks && !unit_sums; }
  constexpr bool fits_partial_sums() const {
    return tile_rows / 2 * (sub_tiles() + 1) + 48 + addresses() <= consumer_registers();
  }
  // Products that are decoded at a time, of the eight of a stage, each 16 of the depth.
  constexpr int products_at_once() const {
    return sums() + 48 + other_registers() <= consumer_registers() ? 4 : 2;
  }
  // Addresses and what is being decoded, of a second sub-tile too: with fewer, tiles of 256 columns
  // spill. A tile of groups is kept, not worked out anew.
  constexpr int addresses() const { return 24 + 20 * (sub_tiles() - 1) + (has_groups() ? 8 : 0); }
  constexpr int other_registers() const {
    const int scales = unit_sums ? 6 * sub_tiles() : 0;
    return addresses() + (depth_factors ? 16 : 0) + scales;
  }

  // Shared memory. Of a stage: W, x as two tiles of 64 of the depth, and scales: of columns, or for
  // each 128 columns as many factors along the depth.
  constexpr int w_bytes() const { return tile_columns * kScaleBlock; }
  constexpr int x_half_bytes() const { return tile_rows * 128; }
  constexpr int scales() const { return depth_factors || w_blocks ? tile_columns : 0; }
  constexpr int stage_bytes() const {
    return round_up(w_bytes() + 2 * x_half_bytes() + 4 * scales(), 1024);
  }
  // Rows of out on their way to memory: eight, in one of two places, of each warpgroup's columns,
  // so far apart that lanes which write different rows find different banks.
  constexpr int stored_row_bytes() const { return warpgroup_columns() * size_of(out) + 16; }
  constexpr int output_bytes() const { return warpgroups * 2 * 8 * stored_row_bytes(); }
  // Once the ring is not needed any longer it holds the sums of the groups but the first, and then
  // those that the other blocks of the cluster send.
  constexpr int group_sums_bytes() const { return 4 * tile_columns * tile_rows; }
  constexpr int ring_bytes() const {
    const int of_groups = (depth_groups - 1) * group_sums_bytes();
    const int of_blocks = (split_k - 1) * slices().bytes();
    const int others = of_groups > of_blocks ? of_groups : of_blocks;
    return stages * stage_bytes() > others ? stages * stage_bytes() : others;
  }
  constexpr int output_at() const { return ring_bytes(); }
  // full and empty of each stage, and full of the slices.
  constexpr int barriers_at() const { return output_at() + output_bytes(); }
  // The ring begins at a multiple of 1024, which the launch does not.
  constexpr int shared_bytes() const { return barriers_at() + (2 * stages + 1) * 8 + 1024; }

  constexpr const char* invalid_reason() const {
    if (!is_fp8(w)) return "w has to be FP8";
    if (x != DType::kFloat16 && x != DType::kBFloat16) return "x has to be float16 or bfloat16";
    if (out != x && out != DType::kFloat32) return "out has to be float32 or of x's type";
    if (warpgroups < 1 || depth_groups < 1 || warpgroups * depth_groups > 4)
      return "there have to be 1 to 4 warpgroups";
    if (tile_columns % (64 * warpgroups) != 0 || tile_columns > 256) {
      return "tile_columns has to be a multiple of 64 for each warpgroup, at most 256";
    }
    if (transposed && tile_columns % kScaleBlock != 0) {
      return "transposed: tile_columns has to be a multiple of 128";
    }
    if (tile_rows < 8 || tile_rows > 256 || tile_rows % 8 != 0) {
      return "tile_rows has to be a multiple of 8, at most 256";
    }
    if (depth_factors && (!transposed || w_blocks)) {
      return "factors along the depth need a transposed W without block scales";
    }
    if (unit_sums && !w_blocks) return "only scales of blocks change what sums are in";
    if (has_partial_sums() && !fits_partial_sums())
      return "partial sums leave too few registers: unit_sums needs none";
    // A group has places of its own in the ring: it may not be one round ahead of what fills them.
    // It waits for its next stage before it has read the one that it is at.
    if (stages % depth_groups != 0 || stages < 2 * depth_groups) {
      return "the ring has to have two stages or more for each group, as many for all";
    }
    if (has_groups() && (!groups_rows(work) || split_k > 1 || depth_groups > 1))
      return "groups have to be of rows, whose blocks have whole tiles one after another";
    if (split_k < 1 || split_k > 8) return "split_k has to be from 1 to 8";
    if (product_registers() + other_registers() > consumer_registers())
      return "sums leave too few registers";
    // ptxas (C7602): one instruction has no more registers than a thread at the start.
    if (tile_rows / 2 + 32 > registers_at_start()) return "a sub-tile has too many sums";
    return nullptr;
  }
};

struct Sm90WeightOnlyParams {
  TensorMap w_map;  // uint8, box [tile_columns, 128]; transposed [128, 128]; 128-byte swizzle
  TensorMap x_map;  // 16-bit, box [tile_rows, 64], likewise
  void* out;
  long long out_stride;  // elements
  const void* bias;      // null: there is none
  bool bias_is_float32;  // else of out's type
  WeightOnlyScale w_scale;
  WorkParams work;  // rows are as in WeightOnlyParams
  WeightOnlyGroups groups{};
};

}  // namespace octofold::config
