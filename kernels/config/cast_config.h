// The configurations of the cast kernels: values that the planner builds, the host compiler checks,
// the JIT prints into a kernel's name and the kernel reads.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/cast_rule.h"

namespace octofold::config {

// What a cast computes, whichever kernel does it.
struct CastFormat {
  DType in = DType::kBFloat16;
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
};

// The cast of x, that of its transpose, or both from one read of x.
enum class CastDirection { kRows, kTransposed, kBoth };

constexpr const char* word(CastDirection direction) {
  switch (direction) {
    case CastDirection::kRows: return "";
    case CastDirection::kTransposed: return "transposed";
    case CastDirection::kBoth: return "both ways";
  }
  return "?";
}

// Casts are kernels of one step, wherever what shares a scale fits into a block of threads, or four
// of them, with the amax of each unit gathered in the scale tensor itself.
enum class CastStep {
  kTiles,     // all at once, a tile each: block scales
  kRows,      // all at once, whole rows each: a scale per row
  kWideRows,  // the same of rows that no block can hold: by clusters
  kClear,     // of four, the 1st: scale = 0
  kAmax,      // 2nd: scale = bits of the largest magnitude
  kEncode,    // 3rd: codes, from x and what scale holds
  kFinish,    // 4th: the scale itself takes its place
};

constexpr const char* word(CastStep step) {
  switch (step) {
    case CastStep::kTiles: return "tiles";
    case CastStep::kRows: return "whole rows";
    case CastStep::kWideRows: return "wide rows";
    case CastStep::kClear: return "clearing of scales";
    case CastStep::kAmax: return "amax only";
    case CastStep::kEncode: return "codes only";
    case CastStep::kFinish: return "scales only";
  }
  return "?";
}

struct CastConfig {
  CastStep step = CastStep::kTiles;
  DType in = DType::kBFloat16;
  DType out = DType::kE4M3;
  Granularity unit = Granularity::kBlock1x128;
  CastDirection direction = CastDirection::kRows;
  CastRule rule = kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;

  // Whether rows of x, and those of the codes, can be accessed in whole vectors: address, row
  // stride and length are multiples of one. Else element by element.
  bool vector_loads = true;
  bool vector_stores = true;

  // Of a tile (it has 128 columns), and what a thread holds of it: one vector in each of so many
  // consecutive rows. Tiles come so many below each other before the next column of tiles.
  int tile_rows = 128;
  int rows_per_thread = 8;
  int raster_rows = 1;

  // kRows: threads that share a row, vectors that each holds of it, and whether these are too few
  // for the row, which then is read twice (the second time mostly from cache).
  int threads_per_row = 256;
  int vectors_per_thread = 4;
  bool reread = false;

  // kWideRows: blocks that share a row (a cluster), and the shared memory for the part of each.
  int blocks_per_row = 1;
  int part_bytes = 0;

  static constexpr const char* kTypeName = "octofold::config::CastConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("step", step);
    field("in", in);
    field("out", out);
    field("unit", unit);
    field("direction", direction);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
    field("tile_rows", tile_rows);
    field("rows_per_thread", rows_per_thread);
    field("raster_rows", raster_rows);
    field("threads_per_row", threads_per_row);
    field("vectors_per_thread", vectors_per_thread);
    field("reread", reread);
    field("blocks_per_row", blocks_per_row);
    field("part_bytes", part_bytes);
  }
  friend constexpr bool operator==(const CastConfig&, const CastConfig&) = default;

  constexpr bool has_rows() const { return direction != CastDirection::kTransposed; }
  constexpr bool has_transposed() const { return direction != CastDirection::kRows; }
  // Elements of a 16-byte load; as many codes are one store.
  constexpr int vector() const { return 16 / size_of(in); }
  constexpr int lanes() const { return kScaleBlock / vector(); }
  constexpr int groups() const { return tile_rows / rows_per_thread; }
  // Of a tile whose rows, or columns, have scales of their own.
  constexpr int column_units() const { return has_transposed() ? kScaleBlock : 0; }
  constexpr int units() const { return column_units() + (has_rows() ? tile_rows : 0); }
  constexpr int rows_per_block() const { return threads_per_row < 256 ? 256 / threads_per_row : 1; }
  constexpr int threads() const {
    switch (step) {
      case CastStep::kClear:
      case CastStep::kFinish: return 256;
      case CastStep::kRows: return rows_per_block() * threads_per_row;
      case CastStep::kWideRows: return 256;
      default: return groups() * lanes();
    }
  }

  // Whether blocks go on until all is done, so that no more of them are launched than run at one
  // time.
  constexpr bool is_persistent() const { return step == CastStep::kWideRows; }
  // kWideRows: while a part is cast, the next one arrives.
  static constexpr int kStages = 2;
  constexpr int shared_bytes() const { return kStages * part_bytes; }

  // Blocks of threads that a multiprocessor (of 65 536 registers) is to hold, to have enough loads
  // under way: the compiler spends no more registers than that allows. Float16 takes one
  // instruction and register more, and element-wise accesses take what they take.
  constexpr int resident_blocks() const {
    const bool shares = direction == CastDirection::kBoth &&
                        (unit == Granularity::kTensor || unit == Granularity::kBlock128x128);
    if (step == CastStep::kWideRows || !vector_loads || !vector_stores) return 1;
    if (step == CastStep::kRows) return (reread ? 512 : 1024) / threads();
    if (in == DType::kFloat32) return 1024 / threads();
    return (in == DType::kFloat16 && shares ? 512 : 768) / threads();
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (is_fp8(in)) return "x has to be float32, float16 or bfloat16";
    if (!is_fp8(out)) return "codes have to be FP8";
    const bool blocks = unit == Granularity::kBlock1x128 || unit == Granularity::kBlock128x128;
    if (blocks != (step == CastStep::kTiles))
      return "one step is for block scales, and they for it";
    if (step == CastStep::kRows || step == CastStep::kWideRows) {
      if (unit != Granularity::kChannel || has_transposed())
        return "whole rows share a scale per row";
    }
    if (step == CastStep::kWideRows) {
      if (!vector_loads) return "wide rows are copied in units of 16 bytes";
      if (blocks_per_row != 2 && blocks_per_row != 4 && blocks_per_row != 8)
        return "clusters of 2, 4 or 8 blocks";
      if (part_bytes <= 0 || part_bytes % 16 != 0) return "parts of whole units of 16 bytes";
      return nullptr;
    }
    if (step == CastStep::kRows) {
      if (threads_per_row < 32 || threads_per_row > 512 ||
          (threads_per_row & (threads_per_row - 1)) != 0) {
        return "threads_per_row has to be a power of two from 32 to 512: more have few registers";
      }
      if (vectors_per_thread < 1 || vectors_per_thread > 8) return "1 to 8 vectors per thread";
      return nullptr;
    }
    if (step == CastStep::kClear || step == CastStep::kFinish) return nullptr;
    if (rows_per_thread < 1 || rows_per_thread > lanes() || tile_rows % rows_per_thread != 0 ||
        (rows_per_thread & (rows_per_thread - 1)) != 0) {
      return "rows_per_thread has to be a power of two that divides tile_rows";
    }
    if (raster_rows < 1) return "raster_rows has to be positive";
    if (threads() % 32 != 0 || threads() > 1024) return "whole warps, at most 1024 threads";
    const bool square = has_transposed() || unit == Granularity::kBlock128x128;
    if (square && tile_rows != kScaleBlock) return "units of 128 rows need a tile of 128 rows";
    if (has_transposed() && rows_per_thread != 8) return "transposed codes are stored 8 at a time";
    if (threads() < units()) return "a thread for each scale";
    return nullptr;
  }
};

// DType-wise: conversion between dtypes, and dequantization where there are scales.
struct ConvertConfig {
  DType in = DType::kE4M3;
  DType out = DType::kBFloat16;
  bool scaled = false;
  Granularity unit = Granularity::kTensor;  // where scaled
  bool saturate = true;
  bool vectors = true;  // whether rows can be accessed in whole vectors, as above

  // Threads along a row, rows of threads, and rows that each thread works on.
  int threads_x = 256;
  int threads_y = 1;
  int rows_per_thread = 4;

  static constexpr const char* kTypeName = "octofold::config::ConvertConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("in", in);
    field("out", out);
    field("scaled", scaled);
    field("unit", unit);
    field("saturate", saturate);
    field("vectors", vectors);
    field("threads_x", threads_x);
    field("threads_y", threads_y);
    field("rows_per_thread", rows_per_thread);
  }
  friend constexpr bool operator==(const ConvertConfig&, const ConvertConfig&) = default;

  // Elements of a thread in a row: 16 bytes of the wider type.
  constexpr int vector() const {
    return 16 / (size_of(in) > size_of(out) ? size_of(in) : size_of(out));
  }
  constexpr int threads() const { return threads_x * threads_y; }
  constexpr int tile_rows() const { return threads_y * rows_per_thread; }
  constexpr int tile_cols() const { return threads_x * vector(); }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (scaled && (!is_fp8(in) || is_fp8(out))) return "scales take FP8 to a wider type";
    if (threads_x < 1 || threads_y < 1 || threads() % 32 != 0 || threads() > 1024) {
      return "whole warps, at most 1024 threads";
    }
    if (rows_per_thread < 1 || rows_per_thread > 8) return "1 to 8 rows per thread";
    return nullptr;
  }
};

}  // namespace octofold::config
