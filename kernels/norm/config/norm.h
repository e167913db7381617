// The configurations of the norms' kernels, as cast/config/cast.h has those of the casts, and their
// parameters: the host passes one struct, by value. Strides count elements.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/norm_form.h"
#include "kernels/cast/config/params.h"

namespace octofold::config {

constexpr int at_least_one(int count) { return count < 1 ? 1 : count; }

// Rows to groups of threads: their statistics, the sum with a residual, and y, itself or cast where
// what shares a scale is a row or a part of it.
struct NormRowConfig {
  NormForm form{};
  bool adds_residual = false;
  NormOutput output = NormOutput::kCodes;
  CastFormat format{};

  // True if all that is read, the sum and y can be accessed in whole vectors; and the codes.
  bool vector_loads = true;
  bool vector_stores = true;

  // Threads that share a row, vectors that each holds of it, and whether these are too few for the
  // row, which then is read again for each pass over it.
  int threads_per_row = 256;
  int vectors_per_thread = 4;
  bool reread = false;
  // True if operands are loaded with x, and held beside it while the statistics are worked out.
  bool early_operands = false;

  static constexpr const char* kHeader = "kernels/norm/rows.h";
  static constexpr const char* kKernel = "norm_row_kernel";
  static constexpr const char* kTypeName = "octofold::config::NormRowConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("adds_residual", adds_residual);
    field("output", output);
    field("format", format);
    field("vector_loads", vector_loads);
    field("vector_stores", vector_stores);
    field("threads_per_row", threads_per_row);
    field("vectors_per_thread", vectors_per_thread);
    field("reread", reread);
    field("early_operands", early_operands);
  }
  friend constexpr bool operator==(const NormRowConfig&, const NormRowConfig&) = default;

  constexpr bool casts() const { return output == NormOutput::kCodes; }
  constexpr int rows_per_block() const { return at_least_one(128 / threads_per_row); }
  constexpr int threads() const { return rows_per_block() * threads_per_row; }
  // Threads that hold the 128 columns of a block scale.
  constexpr int lanes_per_unit() const { return kScaleBlock / format.vector(); }
  // Blocks of threads that a multiprocessor (of 65 536 registers) is to hold, to have enough loads
  // under way: 64 registers a thread, 128 where it holds eight vectors, goes through the row
  // several times or has many operands. Element-wise accesses take what they take.
  constexpr int resident_blocks() const {
    if (!vector_loads || !vector_stores) return 1;
    const bool takes_more =
        vectors_per_thread > 4 || reread || form.width() > 2 || form.modulates();
    return at_least_one((takes_more ? 512 : 1152) / threads());
  }

  // Null if a kernel can be built from it, else why not.
  constexpr const char* invalid_reason() const {
    if (const char* reason = format.invalid_reason()) return reason;
    if (casts() && format.granularity != Granularity::kChannel &&
        format.granularity != Granularity::kBlock1x128) {
      return "a kernel of rows casts with channel or 1x128 scales only";
    }
    if (threads_per_row < 32 || threads_per_row > 512 || threads_per_row % 32 != 0) {
      return "threads_per_row has to be a multiple of 32 up to 512";
    }
    if (vectors_per_thread != 1 && vectors_per_thread != 2 && vectors_per_thread != 4 &&
        vectors_per_thread != 8) {
      return "vectors_per_thread has to be 1, 2, 4 or 8";
    }
    if (early_operands && (reread || output == NormOutput::kNothing)) {
      return "operands can be loaded early only for a row that stays in registers and is written";
    }
    return nullptr;
  }
};

// The places of a thread's sums of its columns over the rows.
enum class NormSums : unsigned char { kRegisters, kShared, kWorkspace };

constexpr const char* word(NormSums sums) {
  switch (sums) {
    case NormSums::kRegisters: return "registers";
    case NormSums::kShared: return "shared memory";
    case NormSums::kWorkspace: return "workspace";
  }
  return "?";
}

// The gradient by x, and sums over rows for those by the norm's operands: a span of rows to a block
// of threads, each of which holds the same columns of all of them.
struct NormBackwardConfig {
  NormForm form{};  // weight and scale: the others do not enter
  DType in = DType::kBFloat16;
  bool adds_gradient = false;  // of the residual, to dx
  bool sums_products = true;   // dy · normalized x: for weight and scale
  bool sums_offsets = false;   // dy: for bias and shift
  bool vectors = true;         // whether all matrices can be accessed in whole vectors
  int row_threads = 256;       // a block
  int vectors_per_thread = 2;
  int chunks = 1;  // of a row; with more than one it is read twice
  NormSums sums = NormSums::kRegisters;

  static constexpr const char* kHeader = "kernels/norm/backward.h";
  static constexpr const char* kKernel = "norm_backward_kernel";
  static constexpr const char* kTypeName = "octofold::config::NormBackwardConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("in", in);
    field("adds_gradient", adds_gradient);
    field("sums_products", sums_products);
    field("sums_offsets", sums_offsets);
    field("vectors", vectors);
    field("row_threads", row_threads);
    field("vectors_per_thread", vectors_per_thread);
    field("chunks", chunks);
    field("sums", sums);
  }
  friend constexpr bool operator==(const NormBackwardConfig&, const NormBackwardConfig&) = default;

  constexpr int vector() const { return 16 / size_of(in); }
  constexpr int threads() const { return row_threads; }
  constexpr int chunk() const { return row_threads * vectors_per_thread * vector(); }
  constexpr int kinds_of_sums() const { return int{sums_products} + int{sums_offsets}; }
  constexpr bool wide() const { return chunks > 1; }
  // Dynamic shared memory, beside what a block has anyway.
  static constexpr int kOwnSharedBytes = 1024;
  constexpr long long shared_bytes() const {
    return sums == NormSums::kShared ? 4ll * kinds_of_sums() * chunks * chunk() : 0;
  }
  // 128 registers a thread, for its columns' sums and factors in FP32.
  constexpr int resident_blocks() const {
    return vectors && sums == NormSums::kRegisters ? at_least_one(512 / row_threads) : 1;
  }
  // True if the next row is on its way while this one is worked on.
  constexpr bool loads_ahead() const {
    const bool has_room = sums == NormSums::kShared || !sums_offsets;
    return !wide() && vectors && has_room && in != DType::kFloat32;
  }

  constexpr const char* invalid_reason() const {
    if (size_of(in) < 2 || in == DType::kInt32)
      return "the input has to be float32, float16 or bfloat16";
    const bool few_registers = sums == NormSums::kShared && !wide();
    if (row_threads < 32 || row_threads > (few_registers ? 1024 : 512) || row_threads % 32 != 0) {
      return "row_threads has to be a multiple of 32 up to 512, or 1024 with sums in shared memory";
    }
    if (chunks < 1) return "a row has to have at least one chunk";
    if (wide() && sums == NormSums::kRegisters)
      return "rows that a block does not hold leave no registers for sums";
    if (!wide() && sums == NormSums::kWorkspace)
      return "only rows that a block does not hold are summed in the workspace";
    if (vectors_per_thread < 1 || vectors_per_thread * vector() > 16) {
      return "a thread has to have 1 to 16 columns";
    }
    return nullptr;
  }
};

// The gradients by the norm's operands, from the sums of all blocks.
struct NormGradientConfig {
  NormForm form{};
  DType in = DType::kBFloat16;
  bool by_batch = false;  // dscale and dshift; else dweight and dbias
  bool sums_products = true;
  bool sums_offsets = false;
  int columns = 32;  // of a block

  static constexpr const char* kHeader = "kernels/norm/gradients.h";
  static constexpr const char* kKernel = "norm_gradient_kernel";
  static constexpr const char* kTypeName = "octofold::config::NormGradientConfig";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("in", in);
    field("by_batch", by_batch);
    field("sums_products", sums_products);
    field("sums_offsets", sums_offsets);
    field("columns", columns);
  }
  friend constexpr bool operator==(const NormGradientConfig&, const NormGradientConfig&) = default;

  static constexpr int threads() { return 1024; }
  // Groups of threads, each with a share of the sums to be added.
  constexpr int groups() const { return threads() / columns; }

  constexpr const char* invalid_reason() const {
    if (size_of(in) < 2 || in == DType::kInt32)
      return "the input has to be float32, float16 or bfloat16";
    if (!sums_products && !sums_offsets) return "a gradient has to sum products, offsets, or both";
    if (columns != 8 && columns != 32) return "a block has to have 8 columns or 32";
    return nullptr;
  }
};

// The most spans that the rows of `batches` batches are cut into, for the workspace: as many as
// keep a GPU busy, of which wide rows take fewer, and one to a batch at least.
constexpr long long norm_spans(long long cols, long long batches) {
  const long long narrow = 4096 / (cols < 1 ? 1 : cols);
  const long long spans = 264 * (narrow < 1 ? 1 : narrow > 8 ? 8 : narrow);
  return batches > spans ? batches : spans;
}

// Forward.
struct NormParams {
  const void* x;  // [rows, cols], as residual and sum
  long long x_stride;
  const void* residual;
  long long residual_stride;
  void* sum;  // x + residual: may be the residual's memory
  long long sum_stride;
  long long rows;
  long long cols;
  float epsilon;
  float* rstd;  // [rows]
  float* mean;  // [rows]
  NormOperands operands;
  CastTarget target;  // [rows, cols]
  void* y;            // [rows, cols], of x's type
  long long y_stride;
};

// Backward: dx, and in the workspace sums over the rows of each block.
struct NormBackwardParams {
  const void* dy;  // [rows, cols], as x, addend and dx
  long long dy_stride;
  const void* x;
  long long x_stride;
  const void* addend;  // the gradient of the residual, added to dx
  long long addend_stride;
  void* dx;
  long long dx_stride;
  long long rows;
  long long cols;
  const float* rstd;  // [rows]
  const float* mean;  // [rows]
  NormOperands operands;

  // A batch is `blocks_per_batch` blocks of `rows_per_block` rows (its last one may have fewer, or
  // none). Block `i` sums dy · n to products[i * cols], and dy to offsets[i * cols].
  long long batches;
  long long rows_per_block;
  long long blocks_per_batch;
  float* products;
  float* offsets;
  float* dweight;  // [cols]; null where it is not wanted, as the others
  float* dbias;
  float* dscale;  // [batches, cols]
  long long dscale_stride;
  float* dshift;
  long long dshift_stride;
};

}  // namespace octofold::config
