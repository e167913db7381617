// The parameters of Hopper's GEMM kernel, as the host passes them.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/gemm_params.h"
#include "kernels/shared/stages.h"

namespace octofold::config {

// One struct, by value. With OperandLoad::kTma the operands' maps are used, and with
// OutputStore::kTma that of D; otherwise the pointers.
struct Sm90GemmParams : GemmParams {
  TensorMap
      rows_map{};  // uint8 [rows, k], box [tile_rows / cluster_columns, 128], 128-byte swizzle
  TensorMap last_rows_map{};  // box [last_rows, 128], likewise; in groups as many as hold the rows
  // uint8 [columns, k], box [tile_columns / cluster_rows, 128], likewise; not of what is cast
  TensorMap columns_map{};
  // Box of Sm90SmemLayout, swizzle of its width. Where D's rows are in groups it has three
  // dimensions, of which the outer two both count rows (kernels/sm90/groups.h).
  TensorMap out_map{};
  TensorMap c_map{};  // the same of C, with OutputStore::kTmaPrefetchedC

  int last_rows{};  // 0: last_rows_map is not used
};

// Rows that are loaded for the last tile of rows: whole swizzle atoms that hold its rows, as TMA
// takes its time over rows that do not exist (54 µs for 1 row against 34 for 64 at N, K = 7168,
// 16384 on an H200). What a stage holds in the other rows does not matter, as their sums are not
// stored. 0: as many as for all other tiles.
constexpr int last_rows(int tile_rows, int cluster_columns, int rows) {
  const int existing = round_up(rows % tile_rows, 8);
  return cluster_columns == 1 && existing < tile_rows ? existing : 0;
}

}  // namespace octofold::config
