// The layout of the shared memory of Hopper's GEMM kernel, for host and device.
#pragma once

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/stages.h"
#include "kernels/sm90/config/config.h"

namespace octofold::config {

// Tiles that the producer may be ahead of the consumers, where it passes them, and bytes of each.
inline constexpr int kPassedTiles = 8, kPassedTileBytes = 32;

// The layout of a block's shared memory. Offsets in bytes.
struct Sm90SmemLayout {
  int output = 0;         // what the block stores of D: boxes, one after another
  int rows = 0;           // [stages][tile_rows][128], 128-byte swizzle
  int columns = 0;        // [stages][operand_columns][128], likewise; ups behind gates
  int row_scales = 0;     // [stages][…]
  int column_scales = 0;  // [stages][…]
  int unaligned = 0;      // [2][rows and columns][kUnalignedRow]: copied, not yet shifted
  int slices = 0;         // [block][sums / 4][thread][4]: of the others that share the tile
  int tiles = 0;          // [kPassedTiles][kPassedTileBytes]: pass_tiles.h
  int barriers = 0;
  int total = 0;

  // Bytes of one stage.
  int rows_bytes = 0, columns_bytes = 0, row_scales_bytes = 0, column_scales_bytes = 0;
  // D is stored in boxes of so many of its rows and columns, with the swizzle of their width in
  // bytes; of those that C comes to, each one's bytes.
  int output_box_rows = 0, output_box_columns = 0, output_box_bytes = 0;
  int unaligned_bytes = 0;  // of one of two buffers
  int places = 0;           // boxes that C comes to, and tiles that are passed

  constexpr explicit Sm90SmemLayout(const Sm90GemmConfig& config) {
    rows_bytes = config.tile_rows * kStageDepth;
    columns_bytes = config.operand_columns() * kStageDepth;
    // Two neighbours are read at once, as 8 bytes.
    row_scales_bytes = round_up(4 * scales_per_stage(config.row_scales(), config.tile_rows), 16);
    const int column_scale_count = config.column_scales() == Granularity::kBlock1x128
                                       ? ColumnScaleOrder(config.tile_columns).count()
                                       : config.column_scales_per_stage();
    column_scales_bytes = round_up(4 * column_scale_count, 16);
    int end = 0;
    if (config.store == OutputStore::kTma) {
      const int owned = config.owned_columns();
      if (config.swapped) {  // D's rows are columns here, and its columns rows
        output_box_rows = owned * config.split_k == config.tile_columns ? owned : 8;
        output_box_columns = 128 / size_of(config.form.out);
      } else {
        output_box_rows = config.tile_rows;
        output_box_columns = config.box_columns();
      }
      end = round_up(config.tile_rows * owned * size_of(config.form.out), kSwizzleAlignment);
    } else if (config.prefetches_c()) {
      output_box_rows = config.tile_rows;
      output_box_columns = config.box_columns();
      output_box_bytes = output_box_rows * output_box_columns * size_of(config.form.out);
      end = config.boxes * output_box_bytes;
    } else if (in_slabs(config.store)) {
      output_box_rows = kSlabRows;
      output_box_columns = config.slab_columns();
      end = config.consumer_threads() / 32 * config.slabs * kSlabBytes;
    }
    rows = end;
    columns = rows + config.stages * rows_bytes;
    row_scales = columns + config.stages * columns_bytes;
    column_scales = row_scales + config.stages * row_scales_bytes;
    unaligned = round_up(column_scales + config.stages * column_scales_bytes, 16);
    slices = unaligned;
    if (config.load == OperandLoad::kThreads) {
      unaligned_bytes = (config.tile_rows + config.tile_columns) * kUnalignedRow;
      slices += 2 * unaligned_bytes;
    }
    tiles = slices + (config.split_k - 1) * config.slices().bytes();
    const int passed = config.passes_tiles() ? kPassedTiles : 0;
    places = config.boxes + passed;
    barriers = tiles + passed * kPassedTileBytes;
    // full and empty of each stage; full and empty of the tile of D; full of the slices; full and
    // done of each box that C comes to, and of each tile that is passed
    total = barriers + (2 * config.stages + 3 + 2 * places) * 8;
  }
};

}  // namespace octofold::config
