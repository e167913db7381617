// The configuration of the FP8 GEMM by products of warps, for GPUs 8.9 and 12.x: a value that the
// planner builds, the host compiler checks, the JIT prints into the kernel's name and the kernel
// reads.
#pragma once

#include "octofold/gemm_form.h"

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/gemm_params.h"
#include "kernels/shared/product_form.h"
#include "kernels/shared/stages.h"
#include "kernels/shared/work.h"

namespace octofold::config {

// Values of K of a stage: those that share a block scale, and that the tensor core sums before
// promotion.
inline constexpr int kMmaDepth = kScaleBlock;

// Bytes of shared memory that a block of threads may have. Source: CUDA programming guide,
// "Technical Specifications per Compute Capability", 8.9 and 12.x: 100 KB a multiprocessor, of
// which the system takes 1 KB for each block.
constexpr int mma_shared_memory(int blocks) { return 100 * 1024 / blocks / 1024 * 1024 - 1024; }

// A tile's rows are A's, its columns B's rows.
struct MmaGemmConfig {
  GemmForm form{};
  // The product has gates and ups side by side, and D holds the codes of their activation.
  GatedOutput gated{};
  // One product, or those of groups.
  Work work = Work::kDense;
  // The tile of D of a block of threads, cut into as many equal parts as there are warps.
  int tile_rows = 128;
  int tile_columns = 128;
  int row_warps = 2;
  int column_warps = 4;
  int stages = 3;
  // Blocks that a multiprocessor holds at one time.
  int blocks_per_multiprocessor = 1;
  // Bytes of A and B that a thread copies at a time: 16, 4 or 1. Their addresses and strides are
  // multiples of as many; of 4, so is K.
  int load_bytes = 16;

  static constexpr const char* kHeader = "kernels/mma/kernel.h";
  static constexpr const char* kKernel = "mma_gemm_kernel";
  static constexpr const char* kTypeName = "octofold::config::MmaGemmConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("gated", gated);
    if (work != Work::kDense) field("work", work);
    field("tile_rows", tile_rows);
    field("tile_columns", tile_columns);
    field("row_warps", row_warps);
    field("column_warps", column_warps);
    field("stages", stages);
    field("blocks_per_multiprocessor", blocks_per_multiprocessor);
    field("load_bytes", load_bytes);
  }
  friend constexpr bool operator==(const MmaGemmConfig&, const MmaGemmConfig&) = default;

  // A walk over tiles asks for these (tile_walk.h): each block computes tiles by itself.
  static constexpr int cluster_rows = 1, cluster_columns = 1, split_k = 1;
  constexpr int cluster_size() const { return 1; }
  constexpr int cluster_tile_rows() const { return tile_rows; }
  constexpr int cluster_tile_columns() const { return tile_columns; }
  // Warps without rows leave their tensor core to those above them, where these have the same one:
  // a multiprocessor has four, which warps get in turn.
  constexpr int row_unit() const { return column_warps % 4 == 0 ? warp_rows() : tile_rows; }

  // An epilogue asks for these (GemmConfiguration). A sub-tile is the instruction's 16 rows.
  static constexpr int sub_tile_stride() { return 16; }
  static constexpr bool swapped = false;
  constexpr Operand rows() const { return form.a; }
  constexpr Operand columns() const { return form.b; }
  constexpr bool reads_c() const { return form.c != Addend::kNone; }
  constexpr int sub_tiles() const { return warp_rows() / sub_tile_stride(); }

  constexpr int threads() const { return 32 * row_warps * column_warps; }
  constexpr int warp_rows() const { return tile_rows / row_warps; }
  constexpr int warp_columns() const { return tile_columns / column_warps; }
  // B's rows that make a tile's columns: those of the gates, then in a gated product as many of the
  // ups. A warp multiplies its columns of either.
  constexpr int parts() const { return gated.exists ? 2 : 1; }
  constexpr int operand_columns() const { return parts() * tile_columns; }
  constexpr int eights() const { return parts() * warp_columns() / 8; }
  // True if partial sums of kMmaDepth are added in FP32, false if the tensor core sums all of K.
  constexpr bool promote() const { return !form.fast_accumulation; }

  // A stage in shared memory: rows of A, rows of B, 128 bytes each; then, where scales vary along
  // K, that of each row, and of each column.
  constexpr int scales_offset() const { return (tile_rows + operand_columns()) * kMmaDepth; }
  constexpr int row_scales() const { return varies_along_k(form.a.scales) ? tile_rows : 0; }
  constexpr int column_scales() const {
    return varies_along_k(form.b.scales) ? operand_columns() : 0;
  }
  constexpr int stage_bytes() const {
    return round_up(scales_offset() + 4 * (row_scales() + column_scales()), 128);
  }
  // Behind the ring of a gated product: what warps side by side tell each other of their rows, a
  // word of each warp for two rows (kernels/mma/gated.h).
  constexpr int exchange_offset() const { return stages * stage_bytes(); }
  constexpr int exchange_bytes() const {
    return gated.exists ? tile_rows / 2 * column_warps * 4 : 0;
  }
  constexpr int shared_bytes() const { return exchange_offset() + exchange_bytes(); }

  // Registers of a thread that the products fill: sums, partial sums, operands of one step of K,
  // and scales.
  constexpr int product_registers() const {
    const int sums = 4 * sub_tiles() * eights();
    const int scales =
        (row_scales() > 0 ? 2 * sub_tiles() : 0) + (column_scales() > 0 ? 2 * eights() : 0);
    return sums * (promote() ? 2 : 1) + 4 * sub_tiles() + 2 * eights() + scales;
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (const char* reason = product_invalid_reason(form, gated, work)) return reason;
    if (work == Work::kArrivingRows) return "no block waits for rows that arrive";
    if (gated.exists && tile_columns != kScaleBlock) {
      return "a gated product needs tiles of 128 columns, so that a block has whole 1x128 units";
    }
    if (gated.exists && column_warps != 4) {
      return "a gated product needs 4 warps along the columns: fewer lack registers, and these "
             "tell "
             "each other the magnitudes of a row in one load";
    }
    if (row_warps < 1 || column_warps < 1 || row_warps * column_warps > 16) {
      return "a block has to have 1 to 16 warps";
    }
    if (tile_rows < 16 || tile_rows % (16 * row_warps) != 0) {
      return "tile_rows has to be a multiple of 16 for each warp along the rows";
    }
    if (tile_columns < 16 || tile_columns % (16 * column_warps) != 0) {
      return "tile_columns has to be a multiple of 16 for each warp along the columns";
    }
    if (tile_rows * 8 % threads() != 0 || tile_columns * 8 % threads() != 0) {
      return "all threads have to copy the same number of 16-byte units";
    }
    if (threads() % 64 != 0)
      return "the number of threads has to be a multiple of 64, so that a thread's units lie in "
             "the same place of the swizzle";
    if (load_bytes != 16 && load_bytes != 4 && load_bytes != 1)
      return "load_bytes has to be 16, 4 or 1";
    if (stages < 2 || stages > 8) return "the ring has to have 2 to 8 stages";
    if (blocks_per_multiprocessor < 1) return "blocks_per_multiprocessor has to be at least 1";
    // 60 for addresses and what is copied.
    if (product_registers() + 60 > registers())
      return "the accumulators leave too few registers for operands and addresses";
    if (shared_bytes() > mma_shared_memory(blocks_per_multiprocessor)) {
      return "the stages do not fit into the shared memory of a block";
    }
    return nullptr;
  }

  constexpr int registers() const {
    const int fair = 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8;
    return fair < 255 ? fair : 255;
  }
};

static_assert(GemmConfiguration<MmaGemmConfig>);

}  // namespace octofold::config
