// The configuration of Hopper's GEMM kernel: a value that the planner builds, the host compiler
// checks, the JIT prints into the kernel's name and the kernel reads; and where everything lies in
// shared memory.
#pragma once

#include "octofold/gemm_form.h"

#include "kernels/config/arithmetic.h"
#include "kernels/config/dynamic_input.h"
#include "kernels/config/gated_output.h"
#include "kernels/config/sm90_choices.h"
#include "kernels/config/sm90_gemm_params.h"
#include "kernels/config/stage_scales.h"

namespace octofold::config {

// Values of K that one pipeline stage holds: those that share a block scale, and that the tensor
// core sums before promotion.
inline constexpr int kStageDepth = kScaleBlock;

// What the 128-byte swizzle counts from: operands begin at multiples of it.
inline constexpr int kSwizzleAlignment = 1024;

// What a block of threads may have of shared memory on Hopper, where a multiprocessor is to hold so
// many: of its 228 KB the system takes 1 KB for each block. Source: CUDA programming guide,
// "Technical Specifications per Compute Capability".
constexpr int shared_memory_of_block(int blocks) { return 228 * 1024 / blocks - 1024; }
inline constexpr int kSm90SharedMemory = shared_memory_of_block(1);

// Bytes that hold 128 of a row at any address, in units of 16.
inline constexpr int kUnalignedRow = kStageDepth + 16;

// A piece: the rows that a math warp has of a sub-tile, 128 bytes wide.
inline constexpr int kPieceRows = 16;
inline constexpr int kPieceRowBytes = 128;
inline constexpr int kPieceBytes = kPieceRows * kPieceRowBytes;

// A tile's rows and columns are those of the instruction: rows of A and rows of B, or of B and A
// where they are swapped.
struct Sm90GemmConfig {
  GemmForm form{};
  // D's columns are there twice, as gate and up, and what is written are the codes of H.
  GatedOutput gated{};
  // A is read in high precision and cast by a warpgroup of its own.
  DynamicInput dynamic{};
  // The instruction takes 64 rows at least, and 8 columns: B's rows as its rows, where A has few.
  // Whatever stands below counts them as the instruction does; the store alone turns D back.
  bool swapped = false;

  // The output tile of a block of threads. Each math warpgroup owns tile_rows / math_warpgroups of
  // its rows and works on them in sub-tiles of 64, twice where the output is gated.
  int tile_rows = 128;
  int tile_columns = 128;
  int math_warpgroups = 2;
  int stages = 4;
  // Blocks of threads that work on neighbouring tiles and multicast what they share: rows along
  // the columns, columns along the rows.
  int cluster_rows = 1;
  int cluster_columns = 1;
  // Blocks of a cluster that share a tile: each sums a slice of K.
  int cluster_depth = 1;
  // Blocks that a multiprocessor holds at one time.
  int blocks_per_multiprocessor = 1;

  OperandLoad load = OperandLoad::kTma;
  OutputStore store = OutputStore::kTma;
  // Pieces of shared memory that a math warp has, to fill one while others are read.
  int pieces = 2;
  // C is D itself: TMA adds to what is there.
  bool adds_in_place = false;
  MathOrder order = MathOrder::kFree;
  // Wait for the next stage and read its scales while the MMAs of this one run: hides the wait,
  // costs one stage of latency tolerance.
  bool early_wait = false;
  // Rows of cluster tiles that are walked together, for the sake of the L2 cache.
  int raster_rows = 8;

  static constexpr const char* kTypeName = "octofold::config::Sm90GemmConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("gated", gated);
    field("dynamic", dynamic);
    field("swapped", swapped);
    field("tile_rows", tile_rows);
    field("tile_columns", tile_columns);
    field("math_warpgroups", math_warpgroups);
    field("stages", stages);
    field("cluster_rows", cluster_rows);
    field("cluster_columns", cluster_columns);
    field("cluster_depth", cluster_depth);
    field("blocks_per_multiprocessor", blocks_per_multiprocessor);
    field("load", load);
    field("store", store);
    field("pieces", pieces);
    field("adds_in_place", adds_in_place);
    field("order", order);
    field("early_wait", early_wait);
    field("raster_rows", raster_rows);
  }
  friend constexpr bool operator==(const Sm90GemmConfig&, const Sm90GemmConfig&) = default;

  constexpr Operand rows() const { return swapped ? form.b : form.a; }
  constexpr Operand columns() const { return swapped ? form.a : form.b; }
  // Of two-level scales: whether rows, or columns, have factors of their own besides.
  constexpr bool rows_have_factors() const { return form.b_channel_scale && swapped; }
  constexpr bool columns_have_factors() const { return form.b_channel_scale && !swapped; }
  // Whether partial sums of kStageDepth are added in FP32, or the tensor core sums all of K (about
  // 14 significant bits).
  constexpr bool promote() const { return !form.fast_accumulation; }

  constexpr int piece_columns() const { return kPieceRowBytes / size_of(form.out); }
  // Whether threads read C.
  constexpr bool reads_c() const { return form.c != Addend::kNone && !adds_in_place; }

  constexpr int cluster_size() const { return cluster_rows * cluster_columns * cluster_depth; }
  constexpr int cluster_tile_rows() const { return cluster_rows * tile_rows; }
  constexpr int cluster_tile_columns() const { return cluster_columns * tile_columns; }
  constexpr int warpgroup_rows() const { return tile_rows / math_warpgroups; }
  // Those of a math warpgroup: one below the other; then the same for the ups.
  constexpr int row_sub_tiles() const { return warpgroup_rows() / 64; }
  constexpr int sub_tiles() const { return row_sub_tiles() * (gated.exists ? 2 : 1); }
  // Rows of the columns' operand that a stage holds, and scales of theirs.
  constexpr int operand_columns() const { return tile_columns * (gated.exists ? 2 : 1); }
  constexpr int column_scales_per_stage() const {
    return scales_per_stage(columns().scales, tile_columns) * (gated.exists ? 2 : 1);
  }
  constexpr int math_threads() const { return 128 * math_warpgroups; }
  // One warpgroup more loads, reads scales and stores; two where threads copy the operands, or one
  // of them casts.
  constexpr int load_warpgroups() const {
    return load == OperandLoad::kTma && !dynamic.exists ? 1 : 2;
  }
  constexpr int threads() const { return math_threads() + 128 * load_warpgroups(); }
  // Registers of a thread after setmaxnreg: of a math warpgroup, and of the loading one. Together
  // they have what the block starts with: a multiprocessor's 65 536 divided evenly, rounded down to
  // a multiple of 8 for each thread (3 warpgroups: 168). More is not an error but a kernel that
  // never begins. Threads that copy operands themselves need more.
  constexpr int load_registers() const {
    if (dynamic.exists) return 32;
    return load == OperandLoad::kTma ? 40 : 56;
  }
  // Of the second loading warpgroup.
  constexpr int second_load_registers() const {
    return dynamic.exists ? cast_registers(blocks_per_multiprocessor, tile_columns)
                          : load_registers();
  }
  constexpr int math_registers() const {
    const int all = (math_warpgroups + load_warpgroups()) * registers_at_start();
    const int loading = load_registers() + (load_warpgroups() > 1 ? second_load_registers() : 0);
    const int fair = (all - loading) / math_warpgroups / 8 * 8;
    return fair < 232 ? fair : 232;
  }
  constexpr int registers_at_start() const {
    return 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8;
  }

  // Registers of a math thread that the products fill: the sums, the partial sums of one sub-tile,
  // the scales of its columns and their products with its rows' ones.
  constexpr int product_registers() const {
    const int partial_sums = !promote() ? 0 : order == MathOrder::kAlternating ? 2 : 1;
    const int scales = columns().scales == Granularity::kBlock1x128 ? tile_columns / 2 : 0;
    return tile_columns / 2 * (sub_tiles() + partial_sums) + scales;
  }

  // Where A is cast, a warp does so with some rows of a stage at a time: a lane has eight vectors
  // of them, or as many as it has registers for. Turns of a stage, each of one warp's:
  constexpr int cast_rows() const {
    const int vectors = (second_load_registers() < 80 ? 4 : 8) / (dynamic.vectors ? 1 : 2);
    const int most = dynamic.rows_at_once() * vectors;
    return tile_columns < most ? tile_columns : most;
  }
  // Of a warp's turns so many are on their way at one time; turns of a stage.
  constexpr int casts_ahead() const { return second_load_registers() < 120 ? 1 : 2; }
  constexpr int cast_turns() const { return dynamic.exists ? tile_columns / cast_rows() : 0; }

  // Of the blocks that share a tile each finishes and stores some of its columns, by eights: block
  // i those from i times this on.
  constexpr int owned_columns() const {
    return round_up(ceil_divide(tile_columns, cluster_depth), 8);
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const;

 private:
  constexpr const char* gated_invalid_reason() const;
  constexpr const char* dynamic_invalid_reason() const;
};

// Where everything lies in a block's shared memory. Offsets in bytes.
struct Sm90SmemLayout {
  int output = 0;         // what the block stores of D: boxes, one after another
  int rows = 0;           // [stages][tile_rows][128], 128-byte swizzle
  int columns = 0;        // [stages][operand_columns][128], likewise; ups behind gates
  int row_scales = 0;     // [stages][…]
  int column_scales = 0;  // [stages][…]
  int unaligned = 0;      // [2][rows and columns][kUnalignedRow]: copied, not yet shifted
  int slices = 0;         // [block][sums / 4][thread][4]: of the others that share the tile
  int barriers = 0;
  int total = 0;

  // Bytes of one stage.
  int rows_bytes = 0, columns_bytes = 0, row_scales_bytes = 0, column_scales_bytes = 0;
  // D is stored in boxes of so many of its rows and columns, with the swizzle of their width in
  // bytes.
  int output_box_rows = 0, output_box_columns = 0;
  int slice_bytes = 0;      // what a block sends another one
  int unaligned_bytes = 0;  // of one of two buffers

  constexpr explicit Sm90SmemLayout(const Sm90GemmConfig& config) {
    rows_bytes = config.tile_rows * kStageDepth;
    columns_bytes = config.operand_columns() * kStageDepth;
    // Two neighbours are read at once, as 8 bytes.
    row_scales_bytes = round_up(4 * scales_per_stage(config.rows().scales, config.tile_rows), 16);
    const int column_scale_count = config.columns().scales == Granularity::kBlock1x128
                                       ? ColumnScaleOrder(config.tile_columns).count()
                                       : config.column_scales_per_stage();
    column_scales_bytes = round_up(4 * column_scale_count, 16);
    int end = 0;
    if (config.store == OutputStore::kTma) {
      const int owned = config.owned_columns();
      output_box_columns = 128 / size_of(config.form.out);
      if (config.swapped) {  // D's rows are columns here, and its columns rows
        output_box_rows = owned * config.cluster_depth == config.tile_columns ? owned : 8;
      } else {
        output_box_rows = config.tile_rows;
        while (owned % output_box_columns != 0) output_box_columns /= 2;
      }
      end = round_up(config.tile_rows * owned * size_of(config.form.out), kSwizzleAlignment);
    } else if (config.store == OutputStore::kTmaPieces) {
      output_box_rows = kPieceRows;
      output_box_columns = config.piece_columns();
      end = config.math_threads() / 32 * config.pieces * kPieceBytes;
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
    slice_bytes = config.owned_columns() / 2 * 4 * config.sub_tiles() * config.math_threads();
    barriers = slices + (config.cluster_depth - 1) * slice_bytes;
    // full and empty of each stage; full and empty of the tile of D; full of the slices
    total = barriers + (2 * config.stages + 3) * 8;
  }
};

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
  if ((varies_along_k(rows().scales) || varies_along_k(columns().scales)) && !promote()) {
    return "scales that vary along K need promotion";
  }
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    return "factors of channels stand beside scales of 128x128";
  }
  if (columns().scales == Granularity::kBlock128x128 &&
      scales_per_stage(columns().scales, tile_columns) > 2) {
    return "a tile may touch two 128-blocks of columns at most";
  }
  if (load != OperandLoad::kTma && (cluster_size() != 1 || store == OutputStore::kTma)) {
    return "threads that load neither share with others nor leave a warp to store";
  }
  if (load != OperandLoad::kTma && math_warpgroups > 2) {
    return "two warpgroups that copy leave registers for two that multiply";
  }
  if (store == OutputStore::kTma && form.out == DType::kFloat32 && swapped) {
    return "16-bit elements alone are turned on their way to shared memory";
  }
  if (store == OutputStore::kTmaPieces &&
      (swapped || owned_columns() % piece_columns() != 0 || pieces < 1)) {
    return "pieces are of whole groups of columns, and of rows that are D's";
  }
  if (adds_in_place &&
      (form.out != DType::kFloat32 || form.c == Addend::kNone || store == OutputStore::kDirect)) {
    return "TMA adds FP32 to a C that is D";
  }
  if (order == MathOrder::kOrdered && math_warpgroups < 2) return "an order is one of several";
  if (order == MathOrder::kAlternating && (sub_tiles() != 1 || !promote() || early_wait)) {
    return "partial sums taken in turn are those of one sub-tile, and wait for no stage early";
  }
  if (early_wait && !promote()) return "nothing is hidden by an early wait without promotion";
  if (early_wait && order == MathOrder::kOrdered) {
    return "a warpgroup that waits for the next stage early keeps the others waiting too long";
  }
  if (math_registers() < load_registers()) return "fewer registers than the block needs";
  if (tile_columns / 2 + 26 > registers_at_start()) {
    return "the instruction's sums do not fit into the registers that the block starts with";
  }
  // Addresses, barriers, descriptors. What the copying threads are given, the others lack.
  const int other_registers = load == OperandLoad::kTma ? 24 : 40;
  if (product_registers() + other_registers > math_registers()) {
    return "the products leave no registers";
  }
  if (Sm90SmemLayout(*this).total > shared_memory_of_block(blocks_per_multiprocessor)) {
    return "more shared memory than a block has";
  }
  return nullptr;
}

}  // namespace octofold::config
