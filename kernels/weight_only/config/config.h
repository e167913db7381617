// Products of numbers and FP8 weights: configurations of their one kernel, the layout of its shared
// memory, and what the host passes. gemm_weight_only, grouped_gemm_weight_only and their gradients
// are all of them.
//
// A block of threads makes a tile of out[rows, columns], rows being those of x, from all of the
// depth, the dimension that is summed. It takes the depth in steps, of which each of `warps_depth`
// groups of warps has 128; tiles of a group's sums are added up at the end.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/work.h"

namespace octofold::config {

struct WeightOnlyConfig {
  DType w = DType::kE4M3;
  DType x = DType::kBFloat16;
  DType out = DType::kBFloat16;
  // The columns of W are those of out, its rows the depth: the gradient.
  bool transposed = false;
  bool w_blocks = false;  // scales of W multiply sums of 128
  bool x_blocks = false;  // likewise of an FP8 x
  // Each number along the depth has a factor, which weights are multiplied by before they are
  // rounded to x's type: scales of rows, where W is transposed.
  bool depth_factors = false;
  int tile_columns = 16;
  int tile_rows = 8;  // of fewer than 8, 1, 2 or 4
  int warps_columns = 1;
  int warps_rows = 1;
  int warps_depth = 8;
  int stages = 3;
  bool vectors = true;        // x and W can be copied in units of 16 bytes
  bool store_vectors = true;  // four columns of out can be stored at a time
  bool split = false;  // sums of parts of the depth go to memory, and another kernel adds them
  // While products go on, operands of the next ones are decoded: the kernel for many rows.
  bool ahead = false;
  Work work = Work::kDense;  // or groups of rows, each with a W of its own
  bool gathered = false;     // rows of groups are read where they lie

  constexpr const char* header() const {
    return ahead ? "kernels/weight_only/many_rows.h" : "kernels/weight_only/kernel.h";
  }
  constexpr const char* kernel() const {
    return ahead ? "weight_only_many_rows_kernel" : "weight_only_kernel";
  }
  static constexpr const char* kTypeName = "octofold::config::WeightOnlyConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("w", w);
    field("x", x);
    field("out", out);
    field("transposed", transposed);
    field("w_blocks", w_blocks);
    field("x_blocks", x_blocks);
    field("depth_factors", depth_factors);
    field("tile_columns", tile_columns);
    field("tile_rows", tile_rows);
    field("warps_columns", warps_columns);
    field("warps_rows", warps_rows);
    field("warps_depth", warps_depth);
    field("stages", stages);
    field("vectors", vectors);
    field("store_vectors", store_vectors);
    field("split", split);
    field("ahead", ahead);
    field("work", work);
    field("gathered", gathered);
  }
  friend constexpr bool operator==(const WeightOnlyConfig&, const WeightOnlyConfig&) = default;

  constexpr int threads() const { return 32 * warps_columns * warps_rows * warps_depth; }
  // The type that tensor cores multiply; FP8 numbers become float16. They take no float32.
  constexpr DType factor_type() const { return is_fp8(x) ? DType::kFloat16 : x; }
  constexpr bool on_tensor_cores() const { return x != DType::kFloat32; }
  constexpr bool has_blocks() const { return w_blocks || x_blocks; }
  constexpr bool has_groups() const { return work != Work::kDense; }

  // Configures the kernel that adds what blocks have left: only what tells results apart.
  constexpr WeightOnlyConfig of_combination() const {
    WeightOnlyConfig config{.w = w,
                            .x = x,
                            .out = out,
                            .transposed = transposed,
                            .w_blocks = w_blocks,
                            .x_blocks = x_blocks,
                            .depth_factors = depth_factors,
                            .store_vectors = store_vectors,
                            .split = true};
    if (transposed) config.tile_columns = 32;
    return config;
  }

  // A warp multiplies so many times 16 columns by so many times 8 rows.
  constexpr int column_tiles() const { return tile_columns / (16 * warps_columns); }
  constexpr int row_tiles() const { return (tile_rows < 8 ? 8 : tile_rows) / (8 * warps_rows); }

  // Halves of 128 along the depth, of two, that are written out: one if there are many sums, as
  // those of both are more than registers hold.
  constexpr int halves_at_once() const {
    if (!on_tensor_cores()) return tile_rows >= 16 ? 1 : 2;
    if (depth_factors) return 1;
    return column_tiles() * row_tiles() * (has_blocks() ? 2 : 1) >= 32 ? 1 : 2;
  }

  // Shared memory: of each stage, for each group of warps, W and then x; behind them float32
  // factors of the depth, or scales for each group's sums, of columns and of rows.
  constexpr int group_depth() const { return ahead ? kScaleBlock / 2 : kScaleBlock; }
  constexpr int step_depth() const { return group_depth() * warps_depth; }
  constexpr int w_bytes() const { return group_depth() * tile_columns; }
  constexpr int x_row_bytes() const { return group_depth() * size_of(x); }
  constexpr int group_bytes() const { return w_bytes() + tile_rows * x_row_bytes(); }
  constexpr int factors() const { return depth_factors ? step_depth() : 0; }
  constexpr int column_scales() const { return w_blocks ? warps_depth * tile_columns : 0; }
  constexpr int row_scales() const { return x_blocks ? warps_depth * tile_rows : 0; }
  constexpr int stage_bytes() const {
    const int floats = factors() + column_scales() + row_scales();
    return warps_depth * group_bytes() + round_up(4 * floats, 16);
  }
  // Afterwards each group's sums, float32 [tile_rows, tile_columns], rows of which begin in
  // different banks.
  constexpr int sum_stride() const { return tile_columns + 4; }
  constexpr int sum_bytes() const { return 4 * warps_depth * tile_rows * sum_stride(); }
  // Behind both, where operands are decoded ahead: what the sums of each column are in.
  constexpr int units_offset() const {
    return stages * stage_bytes() > sum_bytes() ? stages * stage_bytes() : sum_bytes();
  }
  constexpr int units() const { return ahead ? tile_columns : 0; }
  // Behind these, int32 [tile_rows]: which row of x each is that is gathered.
  constexpr int places_offset() const { return units_offset() + 4 * units(); }
  constexpr int places() const { return gathered ? tile_rows : 0; }
  constexpr int shared_bytes() const { return places_offset() + 4 * places(); }

  constexpr const char* invalid_reason() const {
    if (!is_fp8(w)) return "w has to be FP8";
    if (size_of(x) == 0 || x == DType::kInt32) return "x has to be a floating-point type";
    if (size_of(out) < 2 || out == DType::kInt32)
      return "out has to be float32, float16 or bfloat16";
    if (warps_columns < 1 || warps_rows < 1 || warps_depth < 1)
      return "a block has to have at least one warp along rows, columns and depth";
    if (threads() > 512) return "a block has to have at most 512 threads";
    if (stages < 2) return "the ring has to have at least 2 stages";
    if (tile_columns != 16 * warps_columns * column_tiles()) {
      return "tile_columns has to be 16 for each of a warp's column tiles";
    }
    if (transposed && !ahead && kScaleBlock % tile_columns != 0)
      return "transposed: tile_columns has to divide 128";
    if (tile_rows < 8 ? tile_rows != 1 && tile_rows != 2 && tile_rows != 4
                      : tile_rows != 8 * warps_rows * row_tiles()) {
      return "tile_rows has to be 8 for each of a warp's row tiles, or 1, 2 or 4";
    }
    if (!on_tensor_cores() && (warps_rows != 1 || column_tiles() != 1 || tile_rows > 16)) {
      return "float32 x: a warp has to have 16 columns and at most 16 rows";
    }
    if (has_groups() && (!groups_rows(work) || size_of(x) != 2 || split))
      return "groups have to be of rows of 16-bit numbers, whose blocks share no depth";
    if (gathered && work != Work::kGroupedRows) return "only rows of groups can be gathered";
    if (ahead) return invalid_reason_ahead();
    if (4 * column_tiles() * row_tiles() > (has_blocks() || depth_factors ? 64 : 96)) {
      return "the accumulators leave too few registers for partial sums";
    }
    if (transposed && (column_tiles() != 2 || !on_tensor_cores() || is_fp8(x))) {
      return "transposed: a warp has to have 32 columns, and x 16-bit numbers";
    }
    if (depth_factors && (!transposed || w_blocks))
      return "factors along the depth need a transposed W without block scales";
    if (x_blocks && !is_fp8(x)) return "only an FP8 x can have scales";
    return nullptr;
  }

 private:
  constexpr const char* invalid_reason_ahead() const {
    if (size_of(x) != 2) return "ahead: x has to be 16-bit numbers";
    if (depth_factors) return "ahead: weights have no factors of their own";
    if (stages < 3) return "ahead: the ring has to have at least 3 stages";
    if (warps_depth != 1 || split) return "ahead: warps and blocks share no depth";
    if (4 * column_tiles() * row_tiles() > 128)
      return "ahead: the accumulators leave too few registers for operands";
    if (transposed && (column_tiles() % 2 != 0 || tile_columns % kScaleBlock != 0))
      return "ahead, transposed: warps have to have 32 columns or 64, tiles whole blocks of 128";
    return nullptr;
  }
};

// Scales of one operand: of column (or row) i of out and step k along the depth, at
// (i >> shift) · stride + k · depth_stride.
struct WeightOnlyScale {
  const float* data;  // null: there is none
  long long stride;
  long long depth_stride;  // from block to block of 128, or of depth_factors from one to the next
  int shift;               // 7 where 128 share one, else 0
};

// Rows in groups, whose W lie one below another, as do their scales.
struct WeightOnlyGroups {
  const int* numbers;  // offsets [count + 1], or counts [count] of `rows` places each
  int count;
  long long w_stride;      // bytes from group to group
  long long scale_stride;  // elements
  // Gathered rows: row i is row sources[i] / slots of x, if sources[i] is below `places`, and
  // factors[sources[i]] multiplies its sums.
  const int* sources{};
  Divisor slots{};
  unsigned places{};
  const float* factors{};  // null: there are none
};

struct WeightOnlyParams {
  const unsigned char* w;  // by rows, as it lies in memory
  long long w_stride;      // bytes
  const void* x;
  long long x_stride;  // bytes
  void* out;
  long long out_stride;  // elements
  const void* bias;      // null: there is none
  bool bias_is_float32;  // else of out's type
  WeightOnlyScale w_scale;
  WeightOnlyScale x_scale;
  long long rows;  // of all groups; of kMaskedRows those that each has room for
  long long columns;
  long long depth;
  float* partials = nullptr;  // [splits, rows, columns], of `split`
  int splits = 1;
  WeightOnlyGroups groups{};
};

// At most so many neighbouring blocks have tiles that share columns, whose weights they read at
// about the same time.
inline constexpr int kNeighbourRows = 16;

struct WeightOnlyTile {
  long long row;
  long long column;
  long long row_end;  // of the group's rows, perhaps beyond the tile
  int group;
};

// Int: what counts blocks; a GPU divides 32 bits sooner than 64.
template <typename Int, typename Config>
constexpr WeightOnlyTile weight_only_tile(const Config& config, Int rows, Int columns, Int block) {
  const Int row_tiles = ceil_divide(rows, static_cast<Int>(config.tile_rows));
  const Int column_tiles = ceil_divide(columns, static_cast<Int>(config.tile_columns));
  const Int first = block / (kNeighbourRows * column_tiles) * kNeighbourRows;
  const Int left = row_tiles - first;
  const Int neighbours = left < kNeighbourRows ? left : kNeighbourRows;
  const Int inside = block - first * column_tiles;
  const Int row_tile = first + inside % neighbours, column_tile = inside / neighbours;
  return {.row = static_cast<long long>(row_tile) * config.tile_rows,
          .column = static_cast<long long>(column_tile) * config.tile_columns,
          .row_end = rows,
          .group = 0};
}

// How many blocks may share the depth of a product with FP8 weights, and what they leave in the
// workspace: a matter of the sizes alone, so that one workspace is for all GPUs.

// More than a few rows want tiles of many columns, so that x is not read again and again; then
// there are too few tiles for a GPU. Of many rows there are enough.
constexpr long long weight_only_splits(long long rows, long long columns, long long depth) {
  constexpr long long kMostNumbers = 1 << 22, kLeastDepth = 512;
  if (rows <= 16 || columns <= 0 || rows > kMostNumbers / columns) return 1;
  long long splits = 4;
  while (splits > 1 && (splits * kLeastDepth > depth || splits * rows * columns > kMostNumbers)) {
    splits /= 2;
  }
  return splits;
}

// FP32 numbers: of each split its sums.
constexpr long long weight_only_workspace_elements(long long rows, long long columns,
                                                   long long depth) {
  const long long splits = weight_only_splits(rows, columns, depth);
  return splits == 1 ? 0 : splits * rows * columns;
}

}  // namespace octofold::config
