// From a norm to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/norm/config/norm.h"
#include "plan/cast.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

/// Forward: the kernel that finds the statistics, and writes y or, where it can, the cast of it.
struct NormProblem {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  config::NormForm form{};
  bool adds_residual = false;
  /// kCodes: row_kernel_casts(); kNothing: tiles cast, from what this kernel leaves.
  config::NormOutput output = config::NormOutput::kCodes;
  config::CastFormat format{};
  /// True if addresses and row strides of all that is read, of the sum and of y are multiples of 16
  /// bytes, and those of the codes of 8.
  bool inputs_are_aligned = true;
  bool codes_are_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("form", form);
    field("adds_residual", adds_residual);
    field("output", output);
    field("format", format);
    field("inputs_are_aligned", inputs_are_aligned);
    field("codes_are_aligned", codes_are_aligned);
  }
  friend bool operator==(const NormProblem&, const NormProblem&) = default;
};

using NormPlan = Plan<NoConfig>;

/// True if one kernel does the norm and the cast: where each row has scales of its own.
bool row_kernel_casts(Granularity granularity, bool to_rows, bool to_transposed, bool given);

/// One kernel, or none where there are no rows. Throws as plan_cast() does.
NormPlan plan_norm(const NormProblem& problem, const Gpu& gpu);

/// The configuration from which a kernel for the problem is built.
config::NormRowConfig norm_row_config(const NormProblem& problem);

struct NormBackwardProblem {
  std::int64_t rows = 0;  ///< of all batches
  std::int64_t cols = 0;
  std::int64_t batches = 1;  ///< that have operands of their own
  config::NormForm form{};
  DType in = DType::kBFloat16;
  bool adds_gradient = false;
  /// The gradients that are wanted.
  bool of_weight = false;
  bool of_bias = false;
  bool of_scale = false;
  bool of_shift = false;
  bool is_aligned = true;  ///< matrices, to 16 bytes

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("rows", rows);
    field("cols", cols);
    field("batches", batches);
    field("form", form);
    field("in", in);
    field("adds_gradient", adds_gradient);
    field("of_weight", of_weight);
    field("of_bias", of_bias);
    field("of_scale", of_scale);
    field("of_shift", of_shift);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const NormBackwardProblem&, const NormBackwardProblem&) = default;

  bool sums_products() const { return of_weight || of_scale; }
  bool sums_offsets() const {
    return of_bias || of_shift || (of_scale && form.bias != config::NormOperand::kNone);
  }
};

/// How rows are shared among blocks: NormBackwardParams has it too.
struct NormSpans {
  std::int64_t rows_per_block = 1;
  std::int64_t blocks_per_batch = 0;
};

using NormBackwardPlan = Plan<NormSpans>;

/// dx and the sums of each block; from these dweight and dbias, dscale and dshift: up to three
/// kernels. Throws as plan_cast() does.
NormBackwardPlan plan_norm_backward(const NormBackwardProblem& problem, const Gpu& gpu);

config::NormBackwardConfig norm_backward_config(const NormBackwardProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
