// The configurations from which Hopper's GEMM kernel can be built.
#pragma once

#include "kernels/shared/product_form.h"
#include "kernels/sm90/config/config.h"
#include "kernels/sm90/config/resources.h"
#include "kernels/sm90/config/smem_layout.h"

namespace octofold::config {

// Each returns null, or why no kernel can be built.
struct Sm90GemmChecks : Sm90GemmConfig {
  constexpr const char* gated_invalid_reason() const;
  constexpr const char* dynamic_invalid_reason() const;
  constexpr const char* grouped_invalid_reason() const;
  constexpr const char* arriving_invalid_reason() const;
  constexpr const char* tile_invalid_reason() const;
  constexpr const char* cluster_invalid_reason() const;
  constexpr const char* scales_invalid_reason() const;
  constexpr const char* load_invalid_reason() const;
  constexpr const char* store_invalid_reason() const;
  constexpr const char* order_invalid_reason() const;
  constexpr const char* resources_invalid_reason() const;
};

constexpr const char* Sm90GemmChecks::gated_invalid_reason() const {
  if (swapped || tile_columns != kScaleBlock || row_sub_tiles() != 1) {
    return "a gated product needs tiles of 128 columns, straight operands and one sub-tile of "
           "rows, so that four threads hold a 1x128 unit of gate and up";
  }
  if (split_k != 1) return "a gated product does not use split-K";
  if (load != OperandLoad::kTma || store != OutputStore::kTma)
    return "a gated product loads and stores by TMA";
  return nullptr;
}

constexpr const char* Sm90GemmChecks::dynamic_invalid_reason() const {
  if (gated.exists) return "a gated product cannot cast its A";
  if (dynamic.type != DType::kFloat32 && size_of(dynamic.type) != 2) {
    return "an A that the product casts has to be float32, float16 or bfloat16";
  }
  if (form.a.scales != Granularity::kBlock1x128)
    return "an A that the product casts has 1x128 scales";
  if (!swapped) return "a product that casts its A needs swapped operands";
  if (multicast_blocks() != 1) return "a product that casts its A has no clusters with multicast";
  if (load != OperandLoad::kTma) return "a product that casts its A loads B by TMA";
  if (blocks_per_multiprocessor > kMostCastingBlocks)
    return "so many blocks to a multiprocessor leave the casting threads too few registers";
  if (tile_columns % cast_rows() != 0)
    return "tile_columns has to be a multiple of the rows that a warp casts at a time";
  if (stages < kCastWarps)
    return "a product that casts its A needs at least as many stages as casting warps";
  return nullptr;
}

constexpr const char* Sm90GemmChecks::grouped_invalid_reason() const {
  if (split_k != 1) return "products of groups do not use split-K";
  if (dynamic.exists) return "a product of groups cannot cast its A";
  if (in_slabs(store) && reads_c()) {
    return "a C that is read slab by slab leaves no registers for a walk over groups";
  }
  if (work == Work::kGroupedDepth && load != OperandLoad::kTma) {
    return "a product with groups along K loads by TMA";
  }
  return nullptr;
}

constexpr const char* Sm90GemmChecks::arriving_invalid_reason() const {
  if (swapped) return "rows that arrive need straight operands";
  if (split_k != 1) return "rows that arrive need blocks that stay, which those of split-K do not";
  if (gated.exists || dynamic.exists) return "rows that arrive are of a plain product";
  return nullptr;
}

constexpr const char* Sm90GemmChecks::tile_invalid_reason() const {
  if (consumer_warpgroups < 1 || consumer_warpgroups > 3)
    return "there have to be 1 to 3 consumer warpgroups";
  if (tile_rows < 64 || tile_rows % (64 * consumer_warpgroups) != 0 || tile_rows > 256) {
    return "tile_rows has to be a multiple of 64 for each consumer warpgroup, at most 256";
  }
  const bool is_eight = swapped && tile_columns == 8;
  if (tile_columns < 8 || (tile_columns % 16 != 0 && !is_eight) || tile_columns > 256) {
    return "tile_columns has to be a multiple of 16, at most 256, or 8 where swapped";
  }
  if (stages < 2) return "the ring has to have at least 2 stages";
  return nullptr;
}

constexpr const char* Sm90GemmChecks::cluster_invalid_reason() const {
  if (cluster_rows < 1 || cluster_columns < 1 || multicast_blocks() > 2) {
    return "a cluster has to have 1 or 2 tiles";
  }
  if (split_k < 1 || split_k > 4) return "split-K has to be from 1 to 4";
  if (split_k > 1 && multicast_blocks() > 1) {
    return "a cluster cannot both use split-K and have neighbouring tiles";
  }
  if (!swapped && tile_columns % (16 * split_k) != 0) {
    return "with split-K, tile_columns has to be a multiple of 16 for each block of the cluster";
  }
  if (blocks_per_multiprocessor < 1 || blocks_per_multiprocessor > 4) {
    return "blocks_per_multiprocessor has to be from 1 to 4";
  }
  if (tile_rows % (8 * cluster_columns) != 0 || tile_columns % (8 * cluster_rows) != 0) {
    return "each block of a cluster has to load whole swizzle atoms (8 rows)";
  }
  return nullptr;
}

constexpr const char* Sm90GemmChecks::scales_invalid_reason() const {
  if (column_scales() == Granularity::kBlock128x128 &&
      scales_per_stage(column_scales(), tile_columns) > 2) {
    return "a tile may touch two 128-blocks of columns at most";
  }
  return nullptr;
}

constexpr const char* Sm90GemmChecks::load_invalid_reason() const {
  if (load == OperandLoad::kTma) return nullptr;
  const bool warp_stores = store == OutputStore::kTma || prefetches_c();
  if (cluster_size() != 1 || warp_stores) {
    return "operands that threads copy allow no cluster, and no store of whole tiles by a producer "
           "warp";
  }
  if (consumer_warpgroups > 2) {
    return "operands that threads copy leave registers for at most two consumer warpgroups";
  }
  return nullptr;
}

constexpr const char* Sm90GemmChecks::store_invalid_reason() const {
  if (store == OutputStore::kTma && form.out == DType::kFloat32 && swapped) {
    return "swapped operands with FP32 output cannot be stored by TMA: only 16-bit elements can be "
           "turned on their way to shared memory";
  }
  // TMA stores whole ones, and so do blocks that share a tile.
  const bool whole_slabs = store == OutputStore::kTmaSlabs || split_k > 1;
  if (in_slabs(store) &&
      (swapped || slabs < 1 || (whole_slabs && owned_columns() % slab_columns() != 0))) {
    return "per-warp store slabs need straight operands, at least one slab, and a whole number of "
           "slabs in a block's columns";
  }
  if (in_slabs(store) && consumer_warpgroups == 3 && varies_along_k(row_scales()) &&
      columns().scales == Granularity::kChannel) {
    return "factors of columns, read for each slab, leave three warpgroups too few registers";
  }
  if (adds_in_place && (form.out != DType::kFloat32 || form.c == Addend::kNone || !by_tma(store) ||
                        prefetches_c())) {
    return "adding in place needs an FP32 D that is C, stored by TMA without C-prefetch";
  }
  if (!prefetches_c()) return boxes == 0 ? nullptr : "boxes are for C-prefetch alone";
  if (form.c == Addend::kNone || form.out != DType::kFloat32) {
    return "C-prefetch needs an FP32 C and an FP32 D";
  }
  if (swapped || split_k != 1) return "C-prefetch needs straight operands and no split-K";
  // One is summed or stored while others are on their way.
  if (boxes < 2 || boxes > 24) return "C-prefetch needs 2 to 24 boxes";
  return nullptr;
}

constexpr const char* Sm90GemmChecks::order_invalid_reason() const {
  if (order == ConsumerOrder::kPingPong && consumer_warpgroups < 2) {
    return "ping-pong order needs at least two consumer warpgroups";
  }
  if (order == ConsumerOrder::kAlternating && (sub_tiles() != 1 || !promote() || wait_ahead)) {
    return "alternating order needs one sub-tile and promotion, and excludes wait-ahead";
  }
  if (wait_ahead && !promote()) return "wait-ahead needs promotion, the only thing that it hides";
  if (wait_ahead && order == ConsumerOrder::kPingPong) {
    return "wait-ahead excludes ping-pong order: a warpgroup that waits ahead keeps the others "
           "waiting too long";
  }
  return nullptr;
}

constexpr const char* Sm90GemmChecks::resources_invalid_reason() const {
  if (consumer_registers() < producer_registers()) return "fewer registers than the block needs";
  if (tile_columns / 2 + 26 > registers_at_start()) {
    return "the instruction's accumulators do not fit into the registers that the block starts "
           "with";
  }
  // Addresses, barriers, descriptors. Threads that copy have registers that the others lack.
  const int other_registers = load == OperandLoad::kTma ? 24 : 40;
  if (product_registers() + other_registers > consumer_registers()) {
    return "the products leave no registers";
  }
  if (Sm90SmemLayout(*this).total > shared_memory_of_block(blocks_per_multiprocessor)) {
    return "the stages do not fit into the shared memory of a block";
  }
  return nullptr;
}

constexpr const char* Sm90GemmConfig::invalid_reason() const {
  const Sm90GemmChecks checks{*this};
  const char* reason = product_invalid_reason(form, gated, work);
  if (reason == nullptr && gated.exists) reason = checks.gated_invalid_reason();
  if (reason == nullptr && dynamic.exists) reason = checks.dynamic_invalid_reason();
  if (reason == nullptr && has_groups(work)) reason = checks.grouped_invalid_reason();
  if (reason == nullptr && work == Work::kArrivingRows) reason = checks.arriving_invalid_reason();
  if (reason == nullptr) reason = checks.tile_invalid_reason();
  if (reason == nullptr) reason = checks.cluster_invalid_reason();
  if (reason == nullptr) reason = checks.scales_invalid_reason();
  if (reason == nullptr) reason = checks.load_invalid_reason();
  if (reason == nullptr) reason = checks.store_invalid_reason();
  if (reason == nullptr) reason = checks.order_invalid_reason();
  return reason == nullptr ? checks.resources_invalid_reason() : reason;
}

}  // namespace octofold::config
