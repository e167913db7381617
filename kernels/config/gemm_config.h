// The configuration of a GEMM kernel: a value that the planner builds, the host compiler checks,
// the JIT prints into the kernel's name and the kernel reads.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/arithmetic.h"

namespace octofold::config {

// What the 128-byte swizzle counts from: operands begin at multiples of it.
inline constexpr int kSwizzleAlignment = 1024;

// What a block of threads may have of shared memory on Hopper. Source: CUDA programming guide,
// "Technical Specifications per Compute Capability".
inline constexpr int kSharedMemoryLimit = 227 * 1024;

enum class GemmScaling {
  kTensor,        // one scale for A, one for B: applied to the finished sum
  kChannel,       // one per row of A, one per row of B: likewise
  kBlock,         // A 1×128, B 128×128: applied to each partial sum
  kBlockByBlock,  // A 1×128, B 1×128: likewise
};

constexpr const char* word(GemmScaling scaling) {
  switch (scaling) {
    case GemmScaling::kTensor: return "tensor";
    case GemmScaling::kChannel: return "channel";
    case GemmScaling::kBlock: return "1x128 and 128x128";
    case GemmScaling::kBlockByBlock: return "1x128";
  }
  return "?";
}

constexpr bool has_block_scales(GemmScaling scaling) {
  return scaling == GemmScaling::kBlock || scaling == GemmScaling::kBlockByBlock;
}

// Type of C or of the bias.
enum class Addend { kNone, kOutputType, kFloat32 };

constexpr const char* word(Addend addend) {
  switch (addend) {
    case Addend::kNone: return "";
    case Addend::kOutputType: return "of out's type";
    case Addend::kFloat32: return "float32";
  }
  return "?";
}

// How A and B reach shared memory. Threads copy what TMA cannot address: rows whose bytes or
// address are not multiples of 16.
enum class OperandLoad { kTma, kThreads };

constexpr const char* word(OperandLoad load) {
  return load == OperandLoad::kTma ? "by TMA" : "by threads (slower)";
}

// How D reaches global memory: through shared memory and TMA, or straight from registers, which
// any row stride and FP32 allow.
enum class OutputStore { kTma, kDirect };

constexpr const char* word(OutputStore store) {
  return store == OutputStore::kTma ? "by TMA" : "direct";
}

// What the math warpgroups do about each other.
enum class MathOrder {
  kFree,       // each issues its MMAs when its operands are there
  kTakeTurns,  // round robin: one promotes while another's MMAs run
};

constexpr const char* word(MathOrder order) {
  return order == MathOrder::kFree ? "free" : "ordered";
}

struct GemmConfig {
  DType a = DType::kE4M3;
  DType b = DType::kE4M3;
  DType out = DType::kBFloat16;
  GemmScaling scaling = GemmScaling::kBlock;
  Addend c = Addend::kNone;
  Addend bias = Addend::kNone;
  // false: the tensor core sums all of K (about 14 significant bits).
  bool promote = true;

  // The output tile of a block of threads; each math warpgroup owns tile_m / math_warpgroups rows
  // and works on them 64 at a time ("waves").
  int tile_m = 128;
  int tile_n = 128;
  int math_warpgroups = 2;
  int stages = 4;
  // Blocks of threads that work on neighbouring tiles and multicast what they share: A along N,
  // B along M.
  int cluster_m = 1;
  int cluster_n = 1;

  OperandLoad load = OperandLoad::kTma;
  OutputStore store = OutputStore::kTma;
  MathOrder order = MathOrder::kFree;
  // Wait for the next stage and read its scales while the MMAs of this one run: hides the wait,
  // costs one stage of latency tolerance.
  bool early_wait = false;
  // Rows of cluster tiles that are walked together, for the sake of the L2 cache.
  int raster_rows = 8;

  static constexpr const char* kTypeName = "octofold::config::GemmConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("a", a);
    field("b", b);
    field("out", out);
    field("scaling", scaling);
    field("c", c);
    field("bias", bias);
    field("promote", promote);
    field("tile_m", tile_m);
    field("tile_n", tile_n);
    field("math_warpgroups", math_warpgroups);
    field("stages", stages);
    field("cluster_m", cluster_m);
    field("cluster_n", cluster_n);
    field("load", load);
    field("store", store);
    field("order", order);
    field("early_wait", early_wait);
    field("raster_rows", raster_rows);
  }
  friend constexpr bool operator==(const GemmConfig&, const GemmConfig&) = default;

  constexpr int cluster_size() const { return cluster_m * cluster_n; }
  constexpr int cluster_tile_m() const { return cluster_m * tile_m; }
  constexpr int cluster_tile_n() const { return cluster_n * tile_n; }
  constexpr int waves() const { return tile_m / (64 * math_warpgroups); }
  constexpr int math_threads() const { return 128 * math_warpgroups; }
  // One warpgroup more loads, reads scales and stores.
  constexpr int threads() const { return math_threads() + 128; }
  // Registers of a thread after setmaxnreg: of a math warpgroup, and of the loading one. Together
  // they may have what the block starts with: 65 536 divided evenly, rounded down to a multiple of
  // 8 for each thread (3 warpgroups: 168). More is not an error but a kernel that never begins.
  // Threads that copy operands themselves need more.
  constexpr int math_registers() const {
    if (math_warpgroups == 3) return 152;
    return load == OperandLoad::kTma ? 232 : 224;
  }
  constexpr int load_registers() const {
    return math_warpgroups == 3 || load == OperandLoad::kThreads ? 56 : 40;
  }
  constexpr int registers_at_start() const { return 65536 / threads() / 8 * 8; }

  // Registers of a math thread that the products fill: the sums, the partial sums of one wave, the
  // scales of its columns and their products with its rows' ones.
  constexpr int product_registers() const {
    const int columns = scaling == GemmScaling::kBlockByBlock ? tile_n / 2 : 0;
    return tile_n / 2 * (waves() + (promote ? 1 : 0)) + columns;
  }

  // 128×128 scales of B: how many 128-blocks of N a tile can touch, as tiles begin at multiples
  // of tile_n.
  constexpr int scale_columns() const {
    const int step = common_divisor(tile_n, kScaleBlock);
    return ceil_divide(kScaleBlock - step + tile_n, kScaleBlock);
  }
  static constexpr int common_divisor(int left, int right) {
    while (right != 0) {
      const int rest = left % right;
      left = right;
      right = rest;
    }
    return left;
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const;
};

// Where everything lies in a block's shared memory. Offsets in bytes.
struct SmemLayout {
  int output = 0;   // the tile of D, as boxes of output_box_columns columns
  int a = 0;        // [stages][tile_m][128], 128-byte swizzle
  int b = 0;        // [stages][tile_n][128], likewise
  int scale_a = 0;  // [stages][tile_m]
  int scale_b = 0;  // [stages][scale_b_count]
  int barriers = 0;
  int total = 0;

  // Bytes of one stage.
  int a_bytes = 0, b_bytes = 0, scale_a_bytes = 0, scale_b_bytes = 0;
  // D is stored in boxes of this many columns, each with the swizzle of its width in bytes.
  int output_box_columns = 0;

  constexpr explicit SmemLayout(const GemmConfig& config) {
    const bool block = has_block_scales(config.scaling);
    a_bytes = config.tile_m * kScaleBlock;
    b_bytes = config.tile_n * kScaleBlock;
    if (block) {
      scale_a_bytes = config.tile_m * 4;
      // Two at a time are read as one word, whether a tile touches one block of N or two.
      scale_b_bytes = config.scaling == GemmScaling::kBlock ? 16 : config.tile_n * 4;
    }
    int end = 0;
    if (config.store == OutputStore::kTma) {
      output_box_columns = 128 / size_of(config.out);
      while (config.tile_n % output_box_columns != 0) output_box_columns /= 2;
      end = round_up(config.tile_m * config.tile_n * size_of(config.out), kSwizzleAlignment);
    }
    a = end;
    b = a + config.stages * a_bytes;
    scale_a = b + config.stages * b_bytes;
    scale_b = scale_a + config.stages * scale_a_bytes;
    barriers = round_up(scale_b + config.stages * scale_b_bytes, 8);
    // full and empty of each stage; full and empty of the tile of D
    total = barriers + (2 * config.stages + 2) * 8;
  }
};

constexpr const char* GemmConfig::invalid_reason() const {
  if (!is_fp8(a) || !is_fp8(b)) return "A and B have to be FP8";
  if (is_fp8(out)) return "D has to be float32, float16 or bfloat16";
  if (math_warpgroups < 1 || math_warpgroups > 3) return "1 to 3 math warpgroups";
  if (tile_m < 64 || tile_m % (64 * math_warpgroups) != 0 || tile_m > 256) {
    return "tile_m has to be a multiple of 64 rows for each math warpgroup, at most 256";
  }
  if (tile_n < 16 || tile_n % 16 != 0 || tile_n > 256) {
    return "tile_n has to be a multiple of 16, at most 256";
  }
  if (stages < 2) return "at least 2 stages";
  if (cluster_m < 1 || cluster_n < 1 || cluster_size() > 2) return "clusters of 1 or 2";
  if (tile_m % (8 * cluster_n) != 0 || tile_n % (8 * cluster_m) != 0) {
    return "the blocks of a cluster each load whole swizzle atoms (8 rows)";
  }
  if (raster_rows < 1) return "raster_rows has to be at least 1";
  if (has_block_scales(scaling) && !promote) return "block scales need promotion";
  if (scaling == GemmScaling::kBlock && scale_columns() > 2) {
    return "a tile may touch two 128-blocks of N at most";
  }
  if (load == OperandLoad::kThreads && (cluster_size() != 1 || store != OutputStore::kDirect)) {
    return "threads that load neither multicast nor leave a warp to store";
  }
  if (store == OutputStore::kTma && out == DType::kFloat32) {
    return "a tile of FP32 leaves too little shared memory for the pipeline";
  }
  if (early_wait && !promote) return "without promotion nobody waits early";
  if (early_wait && order == MathOrder::kTakeTurns) {
    return "a warpgroup that waits for the next stage early keeps its turn too long";
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
  if (SmemLayout(*this).total > kSharedMemoryLimit) return "more shared memory than a block has";
  return nullptr;
}

}  // namespace octofold::config
