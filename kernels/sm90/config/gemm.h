// The configurations from which Hopper's GEMM kernel can be built.
#pragma once

#include "kernels/sm90/config/gemm_config.h"
#include "kernels/sm90/config/resources.h"
#include "kernels/sm90/config/smem_layout.h"

namespace octofold::config {

constexpr const char* Sm90GemmConfig::gated_invalid_reason() const {
  if (!is_gated(gated.activation)) return "the activation has to be one of gate and up";
  if (!is_fp8(form.out)) return "a gated activation is cast to FP8";
  if (form.a.scales != Granularity::kBlock1x128 || form.b.scales != Granularity::kBlock128x128) {
    return "a gated product needs 1x128 scales of A and 128x128 scales of B";
  }
  if (form.c != Addend::kNone || form.bias != Addend::kNone || form.b_channel_scale) {
    return "a gated product takes neither C nor bias nor factors of channels";
  }
  if (swapped || tile_columns != kScaleBlock || row_sub_tiles() != 1) {
    return "a thread has to hold gate and up of the same elements, and four threads a unit of "
           "1x128";
  }
  if (cluster_depth != 1) return "a gated product has no split-K";
  if (load != OperandLoad::kTma || store != OutputStore::kTma) {
    return "a gated product loads and stores by TMA";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::dynamic_invalid_reason() const {
  if (gated.exists) return "a gated product does not cast its A";
  if (dynamic.type != DType::kFloat32 && size_of(dynamic.type) != 2) {
    return "an A that is cast has to be float32, float16 or bfloat16";
  }
  if (form.a.scales != Granularity::kBlock1x128) return "an A that is cast has scales of 1x128";
  if (!swapped)
    return "the rows that are cast are few, so they have to be the instruction's columns";
  if (multicast_blocks() != 1) return "each block casts for itself, without multicast";
  if (load != OperandLoad::kTma) return "the operand that is not cast has to come by TMA";
  if (blocks_per_multiprocessor > kMostCastingBlocks) {
    return "with so many blocks to a multiprocessor the threads that cast have too few registers";
  }
  if (tile_columns % cast_rows() != 0) return "the turns of a stage have to have as many rows each";
  if (stages < kCastWarps) return "a warp's next turn may be one round of the ring away at most";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::grouped_invalid_reason() const {
  if (cluster_depth != 1) return "products of groups have no split-K";
  if (dynamic.exists) return "products of groups do not cast their A";
  if (form.b_channel_scale) return "products of groups take no two-level scales";
  if (store == OutputStore::kTmaPieces && reads_c()) {
    return "a C that is read slab by slab leaves no registers for a walk over groups";
  }
  if (work != Work::kGroupedDepth) return nullptr;
  if (gated.exists || form.bias != Addend::kNone) {
    return "products of groups of K have neither a gated output nor a bias";
  }
  if (load != OperandLoad::kTma) return "groups of K have to come by TMA";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::tile_invalid_reason() const {
  if (math_warpgroups < 1 || math_warpgroups > 3) return "1 to 3 consumer warpgroups";
  if (tile_rows < 64 || tile_rows % (64 * math_warpgroups) != 0 || tile_rows > 256) {
    return "tile_rows has to be a multiple of 64 for each consumer warpgroup, at most 256";
  }
  const bool is_eight = swapped && tile_columns == 8;
  if (tile_columns < 8 || (tile_columns % 16 != 0 && !is_eight) || tile_columns > 256) {
    return "tile_columns has to be a multiple of 16, at most 256, or 8 where swapped";
  }
  if (stages < 2) return "at least 2 stages";
  if (raster_rows < 1) return "raster_rows has to be at least 1";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::cluster_invalid_reason() const {
  if (cluster_rows < 1 || cluster_columns < 1 || multicast_blocks() > 2) {
    return "1 or 2 tiles to a cluster";
  }
  if (cluster_depth < 1 || cluster_depth > 4) return "at most 4 slices of K";
  if (cluster_depth > 1 && multicast_blocks() > 1) {
    return "the blocks of a cluster either share a tile or have neighbouring ones";
  }
  if (!swapped && tile_columns % (16 * cluster_depth) != 0) {
    return "each block of a split K has to finish as many columns, a multiple of 16";
  }
  if (blocks_per_multiprocessor < 1 || blocks_per_multiprocessor > 4) {
    return "1 to 4 blocks to a multiprocessor";
  }
  if (tile_rows % (8 * cluster_columns) != 0 || tile_columns % (8 * cluster_rows) != 0) {
    return "the blocks of a cluster have to load whole swizzle atoms (8 rows) each";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::scales_invalid_reason() const {
  if ((varies_along_k(row_scales()) || varies_along_k(column_scales())) && !promote()) {
    return "scales that vary along K need promotion";
  }
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    return "factors of channels go with scales of 128x128";
  }
  if (column_scales() == Granularity::kBlock128x128 &&
      scales_per_stage(column_scales(), tile_columns) > 2) {
    return "a tile may touch two 128-blocks of columns at most";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::load_invalid_reason() const {
  if (load == OperandLoad::kTma) return nullptr;
  const bool warp_stores = store == OutputStore::kTma || stores_onto_c();
  if (cluster_size() != 1 || warp_stores) {
    return "where threads copy the operands there is no cluster, and no producer warp to store";
  }
  if (math_warpgroups > 2) {
    return "two warpgroups that copy leave registers for two consumer warpgroups";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::store_invalid_reason() const {
  if (store == OutputStore::kTma && form.out == DType::kFloat32 && swapped) {
    return "swapped operands store 16-bit elements by TMA, not FP32";
  }
  if (store == OutputStore::kTmaPieces &&
      (swapped || owned_columns() % piece_columns() != 0 || pieces < 1)) {
    return "slabs hold whole groups of columns, of rows that are D's";
  }
  if (store == OutputStore::kTmaPieces && math_warpgroups == 3 && varies_along_k(row_scales()) &&
      columns().scales == Granularity::kChannel) {
    return "factors of columns, read for each slab, leave three consumer warpgroups too few "
           "registers";
  }
  if (adds_in_place && (form.out != DType::kFloat32 || form.c == Addend::kNone ||
                        store == OutputStore::kDirect || stores_onto_c())) {
    return "TMA adds FP32 to a C that is D";
  }
  if (!stores_onto_c()) return boxes == 0 ? nullptr : "boxes are those of a prefetched C";
  if (form.c == Addend::kNone || form.out != DType::kFloat32) {
    return "a prefetched C has to be FP32, and so has D";
  }
  if (swapped || cluster_depth != 1) {
    return "a prefetched C needs whole tiles, whose rows are D's";
  }
  // One is summed or stored while others are on their way.
  if (boxes < 2 || boxes > 32) return "2 to 32 boxes";
  return nullptr;
}

constexpr const char* Sm90GemmConfig::order_invalid_reason() const {
  if (order == MathOrder::kOrdered && math_warpgroups < 2) {
    return "an ordered hand-over needs at least 2 consumer warpgroups";
  }
  if (order == MathOrder::kAlternating && (sub_tiles() != 1 || !promote() || early_wait)) {
    return "alternating partial sums need promotion, one sub-tile and no early wait";
  }
  if (early_wait && !promote()) return "an early wait hides nothing without promotion";
  if (early_wait && order == MathOrder::kOrdered) {
    return "with an early wait an ordered hand-over keeps the other warpgroups waiting too long";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::resources_invalid_reason() const {
  if (consumer_registers() < producer_registers()) return "fewer registers than the block needs";
  if (tile_columns / 2 + 26 > registers_at_start()) {
    return "the instruction's accumulators exceed the registers that the block starts with";
  }
  // Addresses, barriers, descriptors. Threads that copy have registers that the others lack.
  const int other_registers = load == OperandLoad::kTma ? 24 : 40;
  if (product_registers() + other_registers > consumer_registers()) {
    return "the products leave no registers";
  }
  if (Sm90SmemLayout(*this).total > shared_memory_of_block(blocks_per_multiprocessor)) {
    return "more shared memory than a block has";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::invalid_reason() const {
  if (!is_fp8(form.a.type) || !is_fp8(form.b.type)) return "A and B have to be FP8";
  if (!gated.exists && (is_fp8(form.out) || form.out == DType::kInt32)) {
    return "D has to be float32, float16 or bfloat16";
  }
  const char* reason = gated.exists ? gated_invalid_reason() : nullptr;
  if (reason == nullptr && dynamic.exists) reason = dynamic_invalid_reason();
  if (reason == nullptr && work != Work::kDense) reason = grouped_invalid_reason();
  if (reason == nullptr) reason = tile_invalid_reason();
  if (reason == nullptr) reason = cluster_invalid_reason();
  if (reason == nullptr) reason = scales_invalid_reason();
  if (reason == nullptr) reason = load_invalid_reason();
  if (reason == nullptr) reason = store_invalid_reason();
  if (reason == nullptr) reason = order_invalid_reason();
  return reason == nullptr ? resources_invalid_reason() : reason;
}

}  // namespace octofold::config
