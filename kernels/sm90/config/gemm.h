// What configurations of Hopper's GEMM kernel can be built.
#pragma once

#include "kernels/sm90/config/gemm_config.h"
#include "kernels/sm90/config/smem_layout.h"

namespace octofold::config {

constexpr const char* Sm90GemmConfig::gated_invalid_reason() const {
  if (!is_gated(gated.activation)) return "an activation of gate and up";
  if (!is_fp8(form.out)) return "what a gated activation gives is cast to FP8";
  if (form.a.scales != Granularity::kBlock1x128 || form.b.scales != Granularity::kBlock128x128) {
    return "gate and up are products of 1x128 and 128x128 scales";
  }
  if (form.c != Addend::kNone || form.bias != Addend::kNone || form.b_channel_scale) {
    return "gate and up are just products";
  }
  if (swapped || tile_columns != kScaleBlock || row_sub_tiles() != 1) {
    return "a thread holds gate and up of the same elements, four of them a unit of 1x128";
  }
  if (cluster_depth != 1) return "gate and up are not shared";
  if (load != OperandLoad::kTma || store != OutputStore::kTma) return "all moves by TMA";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::dynamic_invalid_reason() const {
  if (gated.exists) return "no gated product casts its A";
  if (dynamic.type != DType::kFloat32 && size_of(dynamic.type) != 2) {
    return "what is cast has to be float32, float16 or bfloat16";
  }
  if (form.a.scales != Granularity::kBlock1x128) return "a warp finds scales of 1x128";
  if (!swapped) return "the rows that are cast are few, and the instruction's columns";
  if (cluster_columns * cluster_rows != 1) return "each block casts for itself";
  if (load != OperandLoad::kTma) return "what is not cast comes by TMA";
  if (blocks_per_multiprocessor > kMostCastingBlocks) return "threads that cast need registers";
  if (tile_columns % cast_rows() != 0) return "turns of as many rows each";
  if (stages < kCastWarps) return "a warp's next turn is one round of the ring away at most";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::grouped_invalid_reason() const {
  if (cluster_depth != 1) return "groups are not summed in slices of K";
  if (dynamic.exists) return "nothing is cast on its way to a product of groups";
  if (form.b_channel_scale) return "no group has two-level scales";
  if (store == OutputStore::kTmaPieces && reads_c()) {
    return "a C that is read piece by piece leaves no registers for a walk over groups";
  }
  if (work != Work::kGroupedDepth) return nullptr;
  if (gated.exists || form.bias != Addend::kNone) return "a sum over a group's K is all there is";
  if (load != OperandLoad::kTma) return "groups of K begin where TMA can address them";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::store_invalid_reason() const {
  if (store == OutputStore::kTma && form.out == DType::kFloat32 && swapped) {
    return "16-bit elements alone are turned on their way to shared memory";
  }
  if (store == OutputStore::kTmaPieces &&
      (swapped || owned_columns() % piece_columns() != 0 || pieces < 1)) {
    return "pieces are of whole groups of columns, and of rows that are D's";
  }
  if (store == OutputStore::kTmaPieces && math_warpgroups == 3 && varies_along_k(row_scales()) &&
      columns().scales == Granularity::kChannel) {
    return "factors of columns, read for each piece, leave three warpgroups too few registers";
  }
  if (adds_in_place && (form.out != DType::kFloat32 || form.c == Addend::kNone ||
                        store == OutputStore::kDirect || stores_onto_c())) {
    return "TMA adds FP32 to a C that is D";
  }
  if (!stores_onto_c()) return boxes == 0 ? nullptr : "boxes are there for C to come to";
  if (form.c == Addend::kNone || form.out != DType::kFloat32) {
    return "an FP32 C comes to where an FP32 D leaves from";
  }
  if (swapped || cluster_depth != 1) return "C comes to whole tiles, whose rows are D's";
  // One is summed or stored while others are on their way.
  if (boxes < 2 || boxes > 32) return "2 to 32 boxes";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::invalid_reason() const {
  if (!is_fp8(form.a.type) || !is_fp8(form.b.type)) return "A and B have to be FP8";
  if (gated.exists) {
    if (const char* reason = gated_invalid_reason()) return reason;
  } else if (is_fp8(form.out) || form.out == DType::kInt32) {
    return "D has to be float32, float16 or bfloat16";
  }
  if (dynamic.exists) {
    if (const char* reason = dynamic_invalid_reason()) return reason;
  }
  if (work != Work::kDense) {
    if (const char* reason = grouped_invalid_reason()) return reason;
  }
  if (math_warpgroups < 1 || math_warpgroups > 3) return "1 to 3 math warpgroups";
  if (tile_rows < 64 || tile_rows % (64 * math_warpgroups) != 0 || tile_rows > 256) {
    return "tile_rows has to be a multiple of 64 for each math warpgroup, at most 256";
  }
  const bool is_eight = swapped && tile_columns == 8;
  if (tile_columns < 8 || (tile_columns % 16 != 0 && !is_eight) || tile_columns > 256) {
    return "tile_columns has to be a multiple of 16, at most 256, or 8 where swapped";
  }
  if (stages < 2) return "at least 2 stages";
  if (cluster_rows < 1 || cluster_columns < 1 || cluster_rows * cluster_columns > 2) {
    return "1 or 2 tiles to a cluster";
  }
  if (cluster_depth < 1 || cluster_depth > 4) return "at most 4 slices of K";
  if (cluster_depth > 1 && cluster_rows * cluster_columns > 1) {
    return "a cluster shares a tile or has neighbouring ones";
  }
  if (!swapped && tile_columns % (16 * cluster_depth) != 0) {
    return "each block of a cluster finishes as many columns, a multiple of 16";
  }
  if (blocks_per_multiprocessor < 1 || blocks_per_multiprocessor > 4) {
    return "1 to 4 blocks to a multiprocessor";
  }
  if (tile_rows % (8 * cluster_columns) != 0 || tile_columns % (8 * cluster_rows) != 0) {
    return "the blocks of a cluster each load whole swizzle atoms (8 rows)";
  }
  if (raster_rows < 1) return "raster_rows has to be at least 1";
  if ((varies_along_k(row_scales()) || varies_along_k(column_scales())) && !promote()) {
    return "scales that vary along K need promotion";
  }
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    return "factors of channels stand beside scales of 128x128";
  }
  if (column_scales() == Granularity::kBlock128x128 &&
      scales_per_stage(column_scales(), tile_columns) > 2) {
    return "a tile may touch two 128-blocks of columns at most";
  }
  const bool warp_stores = store == OutputStore::kTma || stores_onto_c();
  if (load != OperandLoad::kTma && (cluster_size() != 1 || warp_stores)) {
    return "threads that load neither share with others nor leave a warp to store";
  }
  if (load != OperandLoad::kTma && math_warpgroups > 2) {
    return "two warpgroups that copy leave registers for two that multiply";
  }
  if (const char* reason = store_invalid_reason()) return reason;
  if (order == MathOrder::kOrdered && math_warpgroups < 2) return "an order is one of several";
  if (order == MathOrder::kAlternating && (sub_tiles() != 1 || !promote() || early_wait)) {
    return "partial sums taken in turn are those of one sub-tile, and wait for no stage early";
  }
  if (early_wait && !promote()) return "nothing is hidden by an early wait without promotion";
  if (early_wait && order == MathOrder::kOrdered) {
    return "a warpgroup that waits for the next stage early keeps the others waiting too long";
  }
  if (consumer_registers() < producer_registers()) return "fewer registers than the block needs";
  if (tile_columns / 2 + 26 > registers_at_start()) {
    return "the instruction's sums do not fit into the registers that the block starts with";
  }
  // Addresses, barriers, descriptors. What the copying threads are given, the others lack.
  const int other_registers = load == OperandLoad::kTma ? 24 : 40;
  if (product_registers() + other_registers > consumer_registers()) {
    return "the products leave no registers";
  }
  if (Sm90SmemLayout(*this).total > shared_memory_of_block(blocks_per_multiprocessor)) {
    return "more shared memory than a block has";
  }
  return nullptr;
}

}  // namespace octofold::config
