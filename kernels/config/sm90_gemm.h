// The configuration of Hopper's GEMM kernel: a value that the planner builds, the host compiler
// checks, the JIT prints into the kernel's name and the kernel reads; where everything lies in
// shared memory; and what the host passes to the kernel.
#pragma once

#include "octofold/gemm_form.h"

#include "kernels/config/arithmetic.h"
#include "kernels/config/work.h"

namespace octofold::config {

// Values of K that one pipeline stage holds: those that share a block scale, and that the tensor
// core sums before promotion.
inline constexpr int kStageDepth = kScaleBlock;

// What the 128-byte swizzle counts from: operands begin at multiples of it.
inline constexpr int kSwizzleAlignment = 1024;

// What a block of threads may have of shared memory on Hopper. Source: CUDA programming guide,
// "Technical Specifications per Compute Capability".
inline constexpr int kSm90SharedMemory = 227 * 1024;

// How the operands reach shared memory. Threads copy what TMA cannot address: rows whose bytes or
// address are not multiples of 16.
enum class OperandLoad : unsigned char { kTma, kThreads };

constexpr const char* word(OperandLoad load) {
  return load == OperandLoad::kTma ? "by TMA" : "by threads (slower)";
}

// How D reaches global memory: through shared memory and TMA, or straight from registers, which
// any row stride and FP32 allow.
enum class OutputStore : unsigned char { kTma, kDirect };

constexpr const char* word(OutputStore store) {
  return store == OutputStore::kTma ? "by TMA" : "direct";
}

// What the math warpgroups do about each other.
enum class MathOrder : unsigned char {
  kFree,     // each issues its MMAs when its operands are there
  kOrdered,  // one after another: one promotes while the next one's MMAs run
};

constexpr const char* word(MathOrder order) {
  return order == MathOrder::kFree ? "free" : "ordered";
}

// A tile's rows and columns are those of the instruction: rows of A and rows of B.
struct Sm90GemmConfig {
  GemmForm form{};

  // The output tile of a block of threads. Each math warpgroup owns tile_rows / math_warpgroups of
  // its rows and works on them in sub-tiles of 64.
  int tile_rows = 128;
  int tile_columns = 128;
  int math_warpgroups = 2;
  int stages = 4;
  // Blocks of threads that work on neighbouring tiles and multicast what they share: rows along
  // the columns, columns along the rows.
  int cluster_rows = 1;
  int cluster_columns = 1;

  OperandLoad load = OperandLoad::kTma;
  OutputStore store = OutputStore::kTma;
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
    field("tile_rows", tile_rows);
    field("tile_columns", tile_columns);
    field("math_warpgroups", math_warpgroups);
    field("stages", stages);
    field("cluster_rows", cluster_rows);
    field("cluster_columns", cluster_columns);
    field("load", load);
    field("store", store);
    field("order", order);
    field("early_wait", early_wait);
    field("raster_rows", raster_rows);
  }
  friend constexpr bool operator==(const Sm90GemmConfig&, const Sm90GemmConfig&) = default;

  constexpr Operand rows() const { return form.a; }
  constexpr Operand columns() const { return form.b; }
  // Whether partial sums of kStageDepth are added in FP32, or the tensor core sums all of K (about
  // 14 significant bits).
  constexpr bool promote() const { return !form.fast_accumulation; }

  constexpr int cluster_size() const { return cluster_rows * cluster_columns; }
  constexpr int cluster_tile_rows() const { return cluster_rows * tile_rows; }
  constexpr int cluster_tile_columns() const { return cluster_columns * tile_columns; }
  constexpr int sub_tiles() const { return tile_rows / (64 * math_warpgroups); }
  constexpr int math_threads() const { return 128 * math_warpgroups; }
  // One warpgroup more loads, reads scales and stores.
  constexpr int threads() const { return math_threads() + 128; }
  // Registers of a thread after setmaxnreg: of a math warpgroup, and of the loading one. Together
  // they may have what the block starts with: 65 536 divided evenly, rounded down to a multiple of
  // 8 for each thread (3 warpgroups: 168). More is not an error but a kernel that never begins.
  // Threads that copy operands themselves need more.
  constexpr int math_registers() const { return load == OperandLoad::kTma ? 232 : 224; }
  constexpr int load_registers() const { return load == OperandLoad::kTma ? 40 : 56; }
  constexpr int registers_at_start() const { return 65536 / threads() / 8 * 8; }

  // Registers of a math thread that the products fill: the sums, the partial sums of one sub-tile,
  // the scales of its columns and their products with its rows' ones.
  constexpr int product_registers() const {
    const int scales = columns().scales == Granularity::kBlock1x128 ? tile_columns / 2 : 0;
    return tile_columns / 2 * (sub_tiles() + (promote() ? 1 : 0)) + scales;
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const;
};

constexpr int common_divisor(int left, int right) {
  while (right != 0) {
    const int rest = left % right;
    left = right;
    right = rest;
  }
  return left;
}

// Rows of an operand that share a scale of a stage; 0 where stages hold none.
constexpr int rows_per_scale(Granularity scales) {
  switch (scales) {
    case Granularity::kTensor:
    case Granularity::kChannel: return 0;  // they wait for the finished sum
    case Granularity::kBlock1x128: return 1;
    case Granularity::kBlock128x128: return kScaleBlock;
  }
  return 0;
}

// Scales of an operand that a stage of a tile with `extent` of its rows holds: those that it can
// touch, as tiles begin at multiples of `extent`.
constexpr int scales_per_stage(Granularity scales, int extent) {
  const int rows = rows_per_scale(scales);
  if (rows == 0) return 0;
  return ceil_divide(rows - common_divisor(extent, rows) + extent, rows);
}

// Where everything lies in a block's shared memory. Offsets in bytes.
struct Sm90SmemLayout {
  int output = 0;         // the tile of D, as boxes of output_box_columns columns
  int rows = 0;           // [stages][tile_rows][128], 128-byte swizzle
  int columns = 0;        // [stages][tile_columns][128], likewise
  int row_scales = 0;     // [stages][…]
  int column_scales = 0;  // [stages][…]
  int barriers = 0;
  int total = 0;

  // Bytes of one stage.
  int rows_bytes = 0, columns_bytes = 0, row_scales_bytes = 0, column_scales_bytes = 0;
  // D is stored in boxes of this many columns, each with the swizzle of its width in bytes.
  int output_box_columns = 0;

  constexpr explicit Sm90SmemLayout(const Sm90GemmConfig& config) {
    rows_bytes = config.tile_rows * kStageDepth;
    columns_bytes = config.tile_columns * kStageDepth;
    // Two neighbours are read at once, as 8 bytes.
    row_scales_bytes = round_up(4 * scales_per_stage(config.rows().scales, config.tile_rows), 16);
    column_scales_bytes =
        round_up(4 * scales_per_stage(config.columns().scales, config.tile_columns), 16);
    int end = 0;
    if (config.store == OutputStore::kTma) {
      output_box_columns = 128 / size_of(config.form.out);
      while (config.tile_columns % output_box_columns != 0) output_box_columns /= 2;
      end = round_up(config.tile_rows * config.tile_columns * size_of(config.form.out),
                     kSwizzleAlignment);
    }
    rows = end;
    columns = rows + config.stages * rows_bytes;
    row_scales = columns + config.stages * columns_bytes;
    column_scales = row_scales + config.stages * row_scales_bytes;
    barriers = round_up(column_scales + config.stages * column_scales_bytes, 8);
    // full and empty of each stage; full and empty of the tile of D
    total = barriers + (2 * config.stages + 2) * 8;
  }
};

constexpr const char* Sm90GemmConfig::invalid_reason() const {
  if (!is_fp8(form.a.type) || !is_fp8(form.b.type)) return "A and B have to be FP8";
  if (is_fp8(form.out) || form.out == DType::kInt32) {
    return "D has to be float32, float16 or bfloat16";
  }
  if (math_warpgroups < 1 || math_warpgroups > 2) return "1 or 2 math warpgroups";
  if (tile_rows < 64 || tile_rows % (64 * math_warpgroups) != 0 || tile_rows > 256) {
    return "tile_rows has to be a multiple of 64 for each math warpgroup, at most 256";
  }
  if (tile_columns < 16 || tile_columns % 16 != 0 || tile_columns > 256) {
    return "tile_columns has to be a multiple of 16, at most 256";
  }
  if (stages < 2) return "at least 2 stages";
  if (cluster_rows < 1 || cluster_columns < 1 || cluster_size() > 2) return "clusters of 1 or 2";
  if (tile_rows % (8 * cluster_columns) != 0 || tile_columns % (8 * cluster_rows) != 0) {
    return "the blocks of a cluster each load whole swizzle atoms (8 rows)";
  }
  if (raster_rows < 1) return "raster_rows has to be at least 1";
  if ((varies_along_k(rows().scales) || varies_along_k(columns().scales)) && !promote()) {
    return "scales that vary along K need promotion";
  }
  if (columns().scales == Granularity::kBlock128x128 &&
      scales_per_stage(columns().scales, tile_columns) > 2) {
    return "a tile may touch two 128-blocks of columns at most";
  }
  if (load == OperandLoad::kThreads && (cluster_size() != 1 || store != OutputStore::kDirect)) {
    return "threads that load neither multicast nor leave a warp to store";
  }
  if (store == OutputStore::kTma && form.out == DType::kFloat32) {
    return "a tile of FP32 leaves too little shared memory for the pipeline";
  }
  if (order == MathOrder::kOrdered && math_warpgroups != 2) return "an order is one of two";
  if (early_wait && !promote()) return "nothing is hidden by an early wait without promotion";
  if (early_wait && order == MathOrder::kOrdered) {
    return "a warpgroup that waits for the next stage early keeps the others waiting too long";
  }
  if (math_warpgroups * math_registers() + load_registers() >
      (math_warpgroups + 1) * registers_at_start()) {
    return "more registers than the block starts with";
  }
  // Addresses, barriers, descriptors. What the copying threads are given, the others lack.
  const int other_registers = load == OperandLoad::kTma ? 24 : 40;
  if (product_registers() + other_registers > math_registers()) {
    return "the products leave no registers";
  }
  if (Sm90SmemLayout(*this).total > kSm90SharedMemory) return "more shared memory than a block has";
  return nullptr;
}

// A CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// Scale of unit (row, k) at [row * row_stride + k * k_stride]. The units are those of the
// granularity: a tensor has one, a channel one k.
struct ScaleParams {
  const float* data;
  long long row_stride;
  long long k_stride;
};

// A matrix of codes [rows, k]. Strides count elements.
struct OperandParams {
  const unsigned char* data;
  long long stride;
  ScaleParams scale;
};

// What the host passes to the kernel: one struct, by value. With OperandLoad::kTma the operands'
// maps are used, with OutputStore::kTma that of D; the pointers otherwise.
struct Sm90GemmParams {
  TensorMap rows_map{};     // uint8 [rows, k], box [rows_box, 128], 128-byte swizzle
  TensorMap columns_map{};  // uint8 [columns, k], box [tile_columns / cluster_rows, 128], likewise
  TensorMap out_map{};  // box [tile_rows, Sm90SmemLayout::output_box_columns], swizzle of its width

  OperandParams rows;
  OperandParams columns;
  void* out;  // [rows, columns]
  long long out_stride;
  const void* c{};  // likewise
  long long c_stride{};
  const void* bias{};  // [columns]

  WorkParams work;
  int rows_box{};
};

// Rows that one block loads for a stage. Where all of the operand is shorter than a tile, whole
// swizzle atoms that hold it will do: TMA takes its time over rows that are not there (54 µs
// against 34 for 1 row and for 64 at N, K = 7168, 16384 on an H200). What a stage holds in the
// other rows is of no account: their sums are not stored.
constexpr int rows_box(int tile_rows, int cluster_columns, int rows) {
  const int needed = round_up(rows, 8);
  return cluster_columns == 1 && needed < tile_rows ? needed : tile_rows / cluster_columns;
}

}  // namespace octofold::config
