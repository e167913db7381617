// The configurations of the cast kernels: values that the planner builds, the host compiler checks,
// the JIT prints into a kernel's name and the kernel reads.
#pragma once

#include "kernels/config/cast_rule.h"
#include "kernels/config/element.h"

namespace octofold::config {

// Elements that share a scale along a blocked dimension, and the columns of a cast's tile.
inline constexpr int kUnitLength = 128;

// What shares a scale: octofold::Granularity, as kernels know it.
enum class ScaleUnit { kTensor, kChannel, kBlock1x128, kBlock128x128 };

// The cast of x, that of its transpose, or both from one read of x.
enum class CastDirection { kRows, kTransposed, kBoth };

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

struct CastConfig {
  CastStep step = CastStep::kTiles;
  Element in = Element::kBFloat16;
  Element out = Element::kE4M3;
  ScaleUnit unit = ScaleUnit::kBlock1x128;
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

  friend constexpr bool operator==(const CastConfig&, const CastConfig&) = default;

  constexpr bool has_rows() const { return direction != CastDirection::kTransposed; }
  constexpr bool has_transposed() const { return direction != CastDirection::kRows; }
  // Elements of a 16-byte load; as many codes are one store.
  constexpr int vector() const { return 16 / size_of(in); }
  constexpr int lanes() const { return kUnitLength / vector(); }
  constexpr int groups() const { return tile_rows / rows_per_thread; }
  // Of a tile whose rows, or columns, have scales of their own.
  constexpr int column_units() const { return has_transposed() ? kUnitLength : 0; }
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
                        (unit == ScaleUnit::kTensor || unit == ScaleUnit::kBlock128x128);
    if (step == CastStep::kWideRows || !vector_loads || !vector_stores) return 1;
    if (step == CastStep::kRows) return (reread ? 512 : 1024) / threads();
    if (in == Element::kFloat32) return 1024 / threads();
    return (in == Element::kFloat16 && shares ? 512 : 768) / threads();
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (is_fp8(in)) return "x has to be float32, float16 or bfloat16";
    if (!is_fp8(out)) return "codes have to be FP8";
    const bool blocks = unit == ScaleUnit::kBlock1x128 || unit == ScaleUnit::kBlock128x128;
    if (blocks != (step == CastStep::kTiles))
      return "one step is for block scales, and they for it";
    if (step == CastStep::kRows || step == CastStep::kWideRows) {
      if (unit != ScaleUnit::kChannel || has_transposed())
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
    const bool square = has_transposed() || unit == ScaleUnit::kBlock128x128;
    if (square && tile_rows != kUnitLength) return "units of 128 rows need a tile of 128 rows";
    if (has_transposed() && rows_per_thread != 8) return "transposed codes are stored 8 at a time";
    if (threads() < units()) return "a thread for each scale";
    return nullptr;
  }
};

// Element-wise: conversion between dtypes, and dequantization where there are scales.
struct ConvertConfig {
  Element in = Element::kE4M3;
  Element out = Element::kBFloat16;
  bool scaled = false;
  ScaleUnit unit = ScaleUnit::kTensor;  // where scaled
  bool saturate = true;
  bool vectors = true;  // whether rows can be accessed in whole vectors, as above

  // Threads along a row, rows of threads, and rows that each thread works on.
  int threads_x = 256;
  int threads_y = 1;
  int rows_per_thread = 4;

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
