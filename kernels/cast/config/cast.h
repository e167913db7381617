// The configurations of the cast kernels: values that the planner builds, the host compiler checks,
// the JIT prints into a kernel's name and the kernel reads. A cast is one kernel wherever what
// shares a scale fits into a block of threads or a cluster: TileCastConfig for block scales,
// RowCastConfig and WideRowCastConfig for scales of rows. Else it is four, with the amax of each
// unit gathered in the scale tensor itself: ScaleStepConfig before and after two tile casts, of
// which the first falls away where the amax is given.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/config/column_reductions.h"
#include "kernels/cast/config/source.h"
#include "kernels/shared/cast_rule.h"

namespace octofold::config {

// A CastFormat says what a cast computes, whichever kernels do it.
struct CastFormat {
  DType in = DType::kBFloat16;  // of the values that are cast
  DType out = DType::kE4M3;
  Granularity granularity = Granularity::kBlock1x128;
  CastRule rule = kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;

  static constexpr const char* kTypeName = "octofold::config::CastFormat";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("out", out);
    field("granularity", granularity);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
  }
  friend constexpr bool operator==(const CastFormat&, const CastFormat&) = default;

  // Elements of a 16-byte load; as many codes are one store.
  constexpr int vector() const { return 16 / size_of(in); }
  // True if each row of what is written, and so each column of what is transposed, has scales of
  // its own.
  constexpr bool scales_lines() const { return scales_rows(granularity); }
  constexpr bool scales_blocks() const { return varies_along_k(granularity); }
  constexpr const char* invalid_reason() const {
    if (in != DType::kFloat32 && in != DType::kFloat16 && in != DType::kBFloat16) {
      return "the input has to be float32, float16 or bfloat16";
    }
    if (!is_fp8(out)) return "codes have to be FP8";
    return nullptr;
  }
};

// The part of a cast that a kernel does.
enum class CastPhase {
  kWhole,        // all: scales from the amax that it finds, and codes
  kWholeRows,    // all of rows; codes of the transpose, whose scale tensor holds the amax
  kAmax,         // raises what the scale tensor holds to the bits of the largest magnitude
  kEncode,       // codes; the scale tensor holds the largest magnitude
  kEncodeGiven,  // codes; it holds the scale
};

constexpr const char* word(CastPhase phase) {
  switch (phase) {
    case CastPhase::kWhole: return "";
    case CastPhase::kWholeRows: return "transposed codes only";
    case CastPhase::kAmax: return "amax only";
    case CastPhase::kEncode: return "codes only";
    case CastPhase::kEncodeGiven: return "codes, scales given";
  }
  return "?";
}

// The most tiles of a cluster, each to a block: every GPU with clusters runs as many.
inline constexpr int kMostClusterTiles = 8;

// A tile of x to a block of threads.
struct TileCastConfig {
  CastFormat format{};
  CastSource source{};
  CastPhase phase = CastPhase::kWhole;
  // Beside rows of 1x128: whether the transpose has scales of 128x128.
  bool transposed_squares = false;
  // True if the largest magnitudes that scale tensors hold were given: values may lie beyond them,
  // and those of both targets of a tensor need not be the same.
  bool amax_given = false;
  // The targets that are written: the cast of x, that of its transpose, or both from one read of x.
  bool to_rows = true;
  bool to_transposed = false;

  // True if rows of x, and those of the codes, can be accessed in whole vectors: address, row
  // stride and length are multiples of one (of rows of the transpose, address and stride). Else
  // they are accessed element by element.
  bool vector_loads = true;
  bool vector_stores = true;
  // True if rows of the transpose end within a vector, whose codes are then stored one by one.
  bool ragged = false;

  // Rows of a tile (it has 128 columns), and those of a thread, consecutive, which holds one vector
  // of each. `group_m` tiles come below each other before the next column of tiles.
  int tile_rows = 128;
  int rows_per_thread = 8;
  int group_m = 1;

  // Reductions of columns that are worked out on the way.
  ColumnReductions columns{};

  // True if the transpose has its columns in the layout of group_bounds.h, and a tile the rows of
  // one of its slots.
  bool grouped = false;
  // True if the rows are those of several matrices: tiles, and what is written, begin anew with
  // each matrix.
  bool stacked = false;
  // True if matrices that no rows are multiplied by are left alone.
  bool skips_unused = false;
  // Blocks of a cluster: more than one have all tiles below each other, and each column has one
  // scale for all of its rows, which they find together.
  int cluster_tiles = 1;

  static constexpr const char* kHeader = "kernels/cast/tiles.h";
  static constexpr const char* kKernel = "tile_cast_kernel";
  static constexpr const char* kTypeName = "octofold::config::TileCastConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("format", format);
    field("source", source);
    field("phase", phase);
    if (transposed_squares) field("transposed_squares", transposed_squares);
    if (amax_given) field("amax_given", amax_given);
    field("to_rows", to_rows);
    field("to_transposed", to_transposed);
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
    if (ragged) field("ragged", ragged);
    field("tile_rows", tile_rows);
    field("rows_per_thread", rows_per_thread);
    field("group_m", group_m);
    field("columns", columns);
    if (grouped) field("grouped", grouped);
    if (stacked) field("stacked", stacked);
    if (skips_unused) field("skips_unused", skips_unused);
    if (cluster_tiles > 1) field("cluster_tiles", cluster_tiles);
  }
  friend constexpr bool operator==(const TileCastConfig&, const TileCastConfig&) = default;

  constexpr int lanes() const { return kScaleBlock / format.vector(); }
  constexpr int groups() const { return tile_rows / rows_per_thread; }
  constexpr int threads() const { return groups() * lanes(); }
  // Columns of the tile that have scales of their own; in units(), rows too.
  constexpr int column_units() const {
    return to_transposed && !transposed_squares ? kScaleBlock : 0;
  }
  constexpr int units() const { return column_units() + (to_rows ? tile_rows : 0); }

  constexpr bool is_clustered() const { return cluster_tiles > 1; }
  constexpr bool works_out() const { return source.works_out(); }
  // True if what values are worked out from comes by way of shared memory: all of a thread's is
  // then under way at once, for which there are no registers.
  constexpr bool is_staged() const { return works_out() && vector_loads; }
  constexpr int pieces() const { return source.pieces(); }
  constexpr int shared_bytes() const {
    if (is_clustered()) return cluster_tiles * kScaleBlock * 4;  // ClusterMagnitudes
    if (!is_staged()) return 0;
    return rows_per_thread * threads() * source.slot_bytes_before(pieces(), format.vector());
  }

  // Blocks of threads that a multiprocessor (of 65 536 registers) is to hold, to have enough loads
  // under way: the compiler spends no more registers than that allows. Float16 takes one
  // instruction and register more, given scales of a tile are two, divisions and column sums of
  // FP32 are long, values that are worked out take what they are made from, factors of rows wait
  // beside these, and element-wise accesses take what they take.
  constexpr int resident_blocks() const {
    if (!vector_loads || !vector_stores) return 1;
    if (ragged) return 512 / threads();
    const bool shares_scale = to_rows && to_transposed && !format.scales_lines();
    const bool multiplies = (source.factors || source.transposed_factors) && rows_per_thread == 8;
    if (format.in == DType::kFloat32) {
      const bool divides = shares_scale && format.rule.arithmetic == CastArithmetic::kDivideInType;
      return (works_out() || divides || multiplies || columns.any() ? 512 : 1024) / threads();
    }
    const bool takes_more =
        format.in == DType::kFloat16 || phase == CastPhase::kEncodeGiven || amax_given;
    const bool fills_two = (takes_more && (shares_scale || multiplies)) ||
                           (works_out() && (to_transposed || source.both_halves));
    return (fills_two ? 512 : 768) / threads();
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (const char* reason = format.invalid_reason()) return reason;
    if (!to_rows && !to_transposed) return "a cast has to write rows, the transpose, or both";
    if (phase == CastPhase::kWhole && !format.scales_blocks())
      return "only units within a tile (1x128, 128x128) can be cast by one kernel of tiles";
    if (phase == CastPhase::kWholeRows &&
        (format.granularity != Granularity::kBlock1x128 || !to_rows || !to_transposed)) {
      return "phase kWholeRows needs 1x128 scales and both targets";
    }
    if (ragged && (!vector_stores || !to_transposed || grouped))
      return "rows end within a vector only of a transpose that is stored in vectors, not in "
             "groups";
    if (transposed_squares &&
        (phase != CastPhase::kWhole || format.granularity != Granularity::kBlock1x128 || !to_rows ||
         !to_transposed)) {
      return "squares of the transpose need 1x128 rows beside them, and a kernel that holds the "
             "whole tile";
    }
    if (amax_given && phase != CastPhase::kEncode && phase != CastPhase::kWholeRows)
      return "largest magnitudes can only be given where scale tensors hold them";
    if (rows_per_thread < 1 || rows_per_thread > lanes() || tile_rows % rows_per_thread != 0 ||
        (rows_per_thread & (rows_per_thread - 1)) != 0) {
      return "rows_per_thread has to be a power of two that divides tile_rows";
    }
    if (group_m < 1) return "group_m has to be positive";
    if (threads() % 32 != 0 || threads() > 1024)
      return "a block has to consist of whole warps, at most 1024 threads";
    const bool square = to_transposed || format.granularity == Granularity::kBlock128x128;
    if (square && tile_rows != kScaleBlock) return "units of 128 rows need a tile of 128 rows";
    if (to_transposed && rows_per_thread != 8)
      return "transposed codes are stored 8 at a time, so rows_per_thread has to be 8";
    if (threads() < units()) return "a tile must not have more scales than threads";
    if (grouped && !to_transposed) return "groups need a transposed target";
    if (grouped && columns.any())
      return "columns are reduced over all rows, so there must be no groups";
    if (grouped && to_rows && !format.scales_lines() && format.scales_blocks()) {
      return "128x128 squares of rows could hold rows of two groups";
    }
    if (stacked && tile_rows != kScaleBlock) return "a stack of matrices needs tiles of 128 rows";
    if (stacked && (grouped || columns.any() || source.kind != SourceKind::kPlain)) {
      return "a stack of matrices needs a plain source, and no groups or column reductions";
    }
    if (skips_unused && !stacked) return "only a stack has matrices that are not used";
    if (cluster_tiles < 1 || cluster_tiles > kMostClusterTiles)
      return "no cluster has so many tiles";
    if (is_clustered() &&
        (phase != CastPhase::kWhole || format.granularity != Granularity::kBlock1x128 ||
         transposed_squares || !to_rows || !to_transposed || grouped || stacked ||
         source.kind != SourceKind::kPlain)) {
      return "a cluster casts a plain matrix both ways, with 1x128 scales of rows";
    }
    if (columns.any() && tile_rows != kReducedRows)
      return "column reductions need tiles of 128 rows";
    if (source.transposed_factors &&
        (source.kind != SourceKind::kGathered || source.factors || transposed_squares ||
         columns.any() || (phase != CastPhase::kWhole && phase != CastPhase::kWholeRows) ||
         !format.scales_lines() || !to_rows || !to_transposed)) {
      return "factors of the transpose alone need gathered rows with 1x128 scales, and a transpose "
             "beside them";
    }
    if (source.scaled && !(source.has_activation() && is_fp8(source.codes))) {
      return "only an activation's input may have scales, and it has to be FP8 then";
    }
    if (source.both_halves &&
        (!source.casts_halves() || !vector_loads || size_of(format.in) != 2)) {
      return "both halves of a gradient need 16-bit elements, read in vectors";
    }
    if (shared_bytes() > 227 * 1024) return "the pieces of a tile do not fit into shared memory";
    return nullptr;
  }
};

// Whole rows, each with one scale, to groups of threads.
struct RowCastConfig {
  CastFormat format{.granularity = Granularity::kChannel};
  CastSource source{};
  bool vector_loads = true;
  bool vector_stores = true;

  // Threads that share a row, vectors that each holds of it, and whether these are too few for the
  // row, which then is read twice (the second time mostly from cache).
  int threads_per_row = 256;
  int vectors_per_thread = 4;
  bool reread = false;
  // True if matrices that no rows are multiplied by are left alone, as in TileCastConfig.
  bool skips_unused = false;

  static constexpr const char* kHeader = "kernels/cast/rows.h";
  static constexpr const char* kKernel = "row_cast_kernel";
  static constexpr const char* kTypeName = "octofold::config::RowCastConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("format", format);
    field("source", source);
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
    field("threads_per_row", threads_per_row);
    field("vectors_per_thread", vectors_per_thread);
    field("reread", reread);
    if (skips_unused) field("skips_unused", skips_unused);
  }
  friend constexpr bool operator==(const RowCastConfig&, const RowCastConfig&) = default;

  constexpr int rows_per_block() const { return threads_per_row < 256 ? 256 / threads_per_row : 1; }
  constexpr int threads() const { return rows_per_block() * threads_per_row; }
  // Blocks of threads that a multiprocessor is to hold, as in TileCastConfig.
  constexpr int resident_blocks() const {
    if (!vector_loads || !vector_stores) return 1;
    return (reread ? 512 : source.kind != SourceKind::kPlain ? 768 : 1024) / threads();
  }

  constexpr const char* invalid_reason() const {
    if (const char* reason = format.invalid_reason()) return reason;
    if (format.granularity != Granularity::kChannel)
      return "kernels of whole rows need channel scales";
    if (threads_per_row < 32 || threads_per_row > 512 ||
        (threads_per_row & (threads_per_row - 1)) != 0) {
      return "threads_per_row has to be a power of two from 32 to 512 (more threads leave too few "
             "registers)";
    }
    if (vectors_per_thread < 1 || vectors_per_thread > 8)
      return "vectors_per_thread has to be from 1 to 8";
    return nullptr;
  }
};

// Rows that no block can hold, each with one scale, to clusters that go through them. They are
// copied as they lie in memory: x itself is all that they can be read from, in vectors.
struct WideRowCastConfig {
  CastFormat format{.granularity = Granularity::kChannel};
  bool vector_stores = true;
  // Blocks that share a row (a cluster), and the shared memory for the part of each.
  int blocks_per_row = 2;
  int part_bytes = 36 * 1024;

  static constexpr const char* kHeader = "kernels/cast/wide_rows.h";
  static constexpr const char* kKernel = "wide_row_cast_kernel";
  static constexpr const char* kTypeName = "octofold::config::WideRowCastConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("format", format);
    field("vector_stores", vector_stores);
    field("blocks_per_row", blocks_per_row);
    field("part_bytes", part_bytes);
  }
  friend constexpr bool operator==(const WideRowCastConfig&, const WideRowCastConfig&) = default;

  static constexpr int kStages = 2;  // while a part is cast, the next one arrives
  constexpr int threads() const { return 256; }
  constexpr int shared_bytes() const { return kStages * part_bytes; }

  constexpr const char* invalid_reason() const {
    if (const char* reason = format.invalid_reason()) return reason;
    if (format.granularity != Granularity::kChannel)
      return "kernels of whole rows need channel scales";
    if (blocks_per_row != 2 && blocks_per_row != 4 && blocks_per_row != 8)
      return "blocks_per_row has to be 2, 4 or 8";
    if (part_bytes <= 0 || part_bytes % 16 != 0)
      return "part_bytes has to be a positive multiple of 16";
    return nullptr;
  }
};

enum class ScaleStep {
  kClear,   // scale = 0, before the largest magnitudes are gathered there
  kFinish,  // the scale takes the place of the largest magnitude
  kTake,    // scale = the largest magnitude that is given
};

constexpr const char* word(ScaleStep step) {
  switch (step) {
    case ScaleStep::kClear: return "clear";
    case ScaleStep::kFinish: return "finish";
    case ScaleStep::kTake: return "take";
  }
  return "?";
}

// The scales of a tensor, or of lines of it, a thread each.
struct ScaleStepConfig {
  CastFormat format{.granularity = Granularity::kTensor};
  ScaleStep step = ScaleStep::kClear;
  bool to_rows = true;
  bool to_transposed = false;
  // True if only the rows of groups are written, and only those that are gathered from somewhere.
  bool grouped = false;
  bool gathered = false;
  // True if each of several matrices has a tensor's scale, or columns, of its own.
  bool stacked = false;
  bool skips_unused = false;  // as in TileCastConfig

  static constexpr const char* kHeader = "kernels/cast/scale_steps.h";
  static constexpr const char* kKernel = "scale_step_kernel";
  static constexpr const char* kTypeName = "octofold::config::ScaleStepConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("format", format);
    field("step", step);
    field("to_rows", to_rows);
    field("to_transposed", to_transposed);
    if (grouped) field("grouped", grouped);
    if (gathered) field("gathered", gathered);
    if (stacked) field("stacked", stacked);
    if (skips_unused) field("skips_unused", skips_unused);
  }
  friend constexpr bool operator==(const ScaleStepConfig&, const ScaleStepConfig&) = default;

  constexpr int threads() const { return 256; }

  constexpr const char* invalid_reason() const {
    if (const char* reason = format.invalid_reason()) return reason;
    if (format.scales_blocks())
      return "block scales need no step of their own: the kernel of tiles finishes them";
    if (!to_rows && !to_transposed) return "a cast has to write rows, the transpose, or both";
    if (skips_unused && !stacked) return "only a stack has matrices that are not used";
    return nullptr;
  }
};

}  // namespace octofold::config
