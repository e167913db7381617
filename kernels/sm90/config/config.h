// The configuration of Hopper's GEMM kernel: a value that the planner builds, the host compiler
// checks, the JIT prints into the kernel's name and the kernel reads. kernels/sm90/policies.h
// chooses the kernel's code by it.
#pragma once

#include "octofold/gemm_form.h"

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/product_form.h"
#include "kernels/shared/stages.h"
#include "kernels/shared/work.h"
#include "kernels/sm90/config/choices.h"
#include "kernels/sm90/config/dynamic_input.h"
#include "kernels/sm90/config/params.h"

namespace octofold::config {

// Values of K that one stage of the ring holds: they share a block scale, and the tensor core sums
// them before promotion.
inline constexpr int kStageDepth = kScaleBlock;

// The 128-byte swizzle counts from multiples of this: operands begin there.
inline constexpr int kSwizzleAlignment = 1024;

// Rows of the instruction.
inline constexpr int kSubTileRows = 64;
// How many sub-tiles hold so many rows, perhaps none.
constexpr int sub_tiles_of(int rows) { return rows > 0 ? ceil_divide(rows, kSubTileRows) : 0; }

// A tile's rows and columns are those of the instruction: rows of A and rows of B, or of B and A
// where they are swapped.
struct Sm90GemmConfig {
  GemmForm form{};
  // The product has gates and ups side by side, and D holds the codes of their activation.
  GatedOutput gated{};
  // A is read in high precision and cast by a warpgroup of its own.
  DynamicInput dynamic{};
  // One product, or those of groups.
  Work work = Work::kDense;
  // The instruction takes 64 rows at least, and 8 columns: B's rows as its rows, where A has few.
  // All that stands below counts as the instruction does; the store alone turns D back.
  bool swapped = false;

  // The output tile of a block of threads, in sub-tiles of 64 rows, which the consumer warpgroups
  // own in turn: so they have equally much of a tile that is not full. Twice where the output is
  // gated.
  int tile_rows = 128;
  int tile_columns = 128;
  int consumer_warpgroups = 2;
  int stages = 4;
  // Blocks of threads that work on neighbouring tiles and multicast what they share: rows along
  // the columns, columns along the rows.
  int cluster_rows = 1;
  int cluster_columns = 1;
  // Split-K: blocks of a cluster that share a tile, each with a slice of K.
  int split_k = 1;
  // Blocks that a multiprocessor holds at one time.
  int blocks_per_multiprocessor = 1;

  OperandLoad load = OperandLoad::kTma;
  OutputStore store = OutputStore::kTma;
  // Slabs of shared memory that a consumer warp has, to fill one while others are read.
  int slabs = 2;
  // With a prefetched C: boxes that shared memory has room for, each as high as the tile.
  int boxes = 0;
  // C is D itself: TMA adds to what is there.
  bool adds_in_place = false;
  ConsumerOrder order = ConsumerOrder::kFree;
  // Waits for the next stage and its scales while the products of this one run (consumer.h).
  bool wait_ahead = false;

  static constexpr const char* kHeader = "kernels/sm90/kernel.h";
  static constexpr const char* kKernel = "gemm_kernel";
  static constexpr const char* kTypeName = "octofold::config::Sm90GemmConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("gated", gated);
    field("dynamic", dynamic);
    if (work != Work::kDense) field("work", work);
    field("swapped", swapped);
    field("tile_rows", tile_rows);
    field("tile_columns", tile_columns);
    field("consumer_warpgroups", consumer_warpgroups);
    field("stages", stages);
    field("cluster_rows", cluster_rows);
    field("cluster_columns", cluster_columns);
    field("split_k", split_k);
    field("blocks_per_multiprocessor", blocks_per_multiprocessor);
    field("load", load);
    field("store", store);
    field("slabs", slabs);
    if (prefetches_c()) field("boxes", boxes);
    field("adds_in_place", adds_in_place);
    field("order", order);
    field("wait_ahead", wait_ahead);
  }
  friend constexpr bool operator==(const Sm90GemmConfig&, const Sm90GemmConfig&) = default;

  constexpr Operand rows() const { return swapped ? form.b : form.a; }
  constexpr Operand columns() const { return swapped ? form.a : form.b; }
  // How rows share scales in a stage. Where A's rows are in groups, a tile begins anywhere in a
  // block of 128x128: each row brings the scale of its block then.
  constexpr Granularity row_scales() const { return swapped ? form.b.scales : a_scales(); }
  constexpr Granularity column_scales() const { return swapped ? a_scales() : form.b.scales; }
  // True if partial sums of kStageDepth are added in FP32, false if the tensor core sums all of K
  // (about 14 significant bits).
  constexpr bool promote() const { return !form.fast_accumulation; }

  constexpr int slab_columns() const { return kSlabRowBytes / size_of(form.out); }
  // True if just those sub-tiles of a tile are loaded and multiplied that have rows of its group.
  constexpr bool loads_sub_tiles() const {
    return groups_rows(work) && !swapped && tile_rows / cluster_columns % kSubTileRows == 0;
  }
  // A cluster's tile takes the less time the fewer of these its rows are.
  constexpr int row_unit() const { return loads_sub_tiles() ? kSubTileRows : cluster_tile_rows(); }
  // True if consumers are told their tiles (pass_tiles.h), false if they find them.
  constexpr bool passes_tiles() const { return groups_rows(work) && load == OperandLoad::kTma; }
  // True if D's rows are in groups, which TMA stores no further than they go.
  constexpr bool stores_groups() const { return has_groups(work) && by_tma(store); }
  // C is added by TMA, in memory (adds_in_place), by threads to where TMA has prefetched it, or by
  // threads, which read it themselves.
  constexpr bool prefetches_c() const { return store == OutputStore::kTmaPrefetchedC; }
  constexpr bool reads_c() const {
    return form.c != Addend::kNone && !adds_in_place && !prefetches_c();
  }

  // Blocks that multicast a stage to each other.
  constexpr int multicast_blocks() const { return cluster_rows * cluster_columns; }
  constexpr int cluster_size() const { return multicast_blocks() * split_k; }
  constexpr int cluster_tile_rows() const { return cluster_rows * tile_rows; }
  constexpr int cluster_tile_columns() const { return cluster_columns * tile_columns; }
  // Sub-tiles of a consumer warpgroup, so many rows apart; then the same for the ups.
  constexpr int sub_tile_stride() const { return kSubTileRows * consumer_warpgroups; }
  constexpr int row_sub_tiles() const { return tile_rows / sub_tile_stride(); }
  constexpr int sub_tiles() const { return row_sub_tiles() * (gated.exists ? 2 : 1); }
  // Rows of the columns' operand that a stage holds, and scales of theirs.
  constexpr int operand_columns() const { return tile_columns * (gated.exists ? 2 : 1); }
  // Columns of a tile that share a scale of a stage, wherever the tile begins: a strip of 128x128.
  constexpr int column_share() const {
    return common_divisor(tile_columns, rows_per_scale(column_scales()));
  }
  constexpr int column_scales_per_stage() const {
    return rows_per_scale(column_scales()) > 0 ? operand_columns() / column_share() : 0;
  }
  constexpr int consumer_threads() const { return 128 * consumer_warpgroups; }
  // One producer warpgroup loads, copies scales and stores; there are two where threads copy the
  // operands, or one of them casts.
  constexpr int producer_warpgroups() const {
    return load == OperandLoad::kTma && !dynamic.exists ? 1 : 2;
  }
  // Producer warps that copy operands where TMA cannot: all but the two that copy scales.
  constexpr int copy_warps() const { return 4 * producer_warpgroups() - 2; }
  constexpr int threads() const { return consumer_threads() + 128 * producer_warpgroups(); }
  // resources.h: registers of a thread, and turns of the warps that cast.
  constexpr int registers_at_start() const;
  constexpr int producer_registers() const;
  constexpr int second_producer_registers() const;
  constexpr int consumer_registers() const;
  constexpr int product_registers() const;
  constexpr int cast_rows() const;
  constexpr int casts_ahead() const;
  constexpr int cast_turns() const;

  // Each block that shares a tile finishes and stores some of its columns.
  constexpr SliceShape slices() const {
    return {split_k, tile_columns, sub_tiles(), consumer_threads()};
  }
  constexpr int owned_columns() const { return slices().owned_columns(); }

  // Columns of the boxes in which a tile leaves: 128 bytes wide, or less where these do not divide
  // its columns.
  constexpr int box_columns() const {
    int columns = 128 / size_of(form.out);
    while (owned_columns() % columns != 0) columns /= 2;
    return columns;
  }
  constexpr int boxes_of_tile() const { return tile_columns / box_columns(); }

  // checks.h: null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const;

 private:
  constexpr Granularity a_scales() const {
    const bool is_square = form.a.scales == Granularity::kBlock128x128;
    return is_square && groups_rows(work) ? Granularity::kBlock1x128 : form.a.scales;
  }
};

}  // namespace octofold::config
