#include "plan/norm.h"

#include <algorithm>
#include <bit>

#include "kernels/shared/arithmetic.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

using config::ceil_divide;
using config::NormBackwardConfig;
using config::NormForm;
using config::NormGradientConfig;
using config::NormOperand;
using config::NormOutput;
using config::NormRowConfig;
using config::NormSums;

// Warps that hold so many vectors, `each` to a thread.
int threads_for(std::int64_t vectors, int each, int most) {
  const std::int64_t threads = 32 * ceil_divide(vectors, std::int64_t{32} * each);
  return static_cast<int>(std::clamp<std::int64_t>(threads, 32, most));
}

// Narrow rows have many spans, which more groups share.
NormGradientConfig gradient_config(const NormBackwardProblem& problem, bool by_batch) {
  NormGradientConfig config{
      .in = problem.in, .by_batch = by_batch, .columns = problem.cols < 2048 ? 8 : 32};
  if (by_batch) {
    const bool reads_both = problem.of_scale;
    config.form.weight = reads_both ? problem.form.weight : NormOperand::kNone;
    config.form.bias = reads_both ? problem.form.bias : NormOperand::kNone;
    config.sums_products = problem.of_scale;
    config.sums_offsets = problem.of_shift || config.form.bias != NormOperand::kNone;
  } else {
    config.form.scale = problem.form.scale;
    config.sums_products = problem.of_weight;
    config.sums_offsets = problem.of_bias;
  }
  return config;
}

NormSpans spans_of(const NormBackwardProblem& problem) {
  const std::int64_t rows = problem.batches > 0 ? problem.rows / problem.batches : 0;
  if (rows == 0) return {};
  const std::int64_t most = config::norm_spans(problem.cols, problem.batches) / problem.batches;
  NormSpans spans{.rows_per_block = ceil_divide(rows, std::min(most, rows))};
  spans.blocks_per_batch = ceil_divide(rows, spans.rows_per_block);
  return spans;
}

}  // namespace

bool row_kernel_casts(Granularity granularity, bool to_rows, bool to_transposed, bool given) {
  const bool of_rows =
      granularity == Granularity::kChannel || granularity == Granularity::kBlock1x128;
  return of_rows && to_rows && !to_transposed && !given;
}

// Four vectors to a thread keep enough loads under way without too many registers, eight go where
// 512 threads would not hold a row else.
NormRowConfig norm_row_config(const NormProblem& problem) {
  const std::int64_t vector = problem.format.vector();
  NormRowConfig config{.form = problem.form,
                       .adds_residual = problem.adds_residual,
                       .output = problem.output,
                       .format = problem.format};
  // Kernels are shared where nothing is read of it.
  if (!config.casts()) config.format = {.in = problem.format.in};
  if (config.output == NormOutput::kNothing) config.form = {.kind = problem.form.kind};
  config.vector_loads = problem.inputs_are_aligned && problem.cols % vector == 0;
  config.vector_stores =
      !config.casts() || (problem.codes_are_aligned && problem.cols % vector == 0);
  const bool in_vectors = config.vector_loads && config.vector_stores;
  const int most_threads = in_vectors ? 512 : 256;
  const std::int64_t vectors = ceil_divide(problem.cols, vector);
  int each = 4;
  if (vectors <= 64) each = vectors <= 32 ? 1 : 2;
  if (in_vectors && vectors > 4 * most_threads && vectors <= 8 * most_threads) each = 8;
  config.vectors_per_thread = each;
  config.threads_per_row = threads_for(vectors, each, most_threads);
  config.reread = vectors > std::int64_t{each} * config.threads_per_row;
  // A weight as wide as x, and no residual: there is room for it.
  config.early_operands =
      config.output != NormOutput::kNothing && in_vectors && !config.reread && each <= 4 &&
      !config.adds_residual &&
      config.form == NormForm{.kind = config.form.kind, .weight = NormOperand::kInputType};
  return config;
}

NormPlan plan_norm(const NormProblem& problem, const Gpu& gpu) {
  const char* const kOperation = problem.output == NormOutput::kNumbers ? "norm" : "cast";
  require_kernels(Operation::kNorm, kOperation, gpu);
  const NormRowConfig config = norm_row_config(problem);
  const std::int64_t blocks = ceil_divide(problem.rows, config.rows_per_block());
  require_launchable(kOperation, blocks, problem.rows, problem.cols);
  NormPlan plan;
  if (blocks > 0) {
    plan.kernels.push_back(
        kernel_plan(kOperation, NormRowConfig::kHeader, NormRowConfig::kKernel, config, blocks));
  }
  return plan;
}

// 16 columns to a thread leave room for what it keeps of each; 8 if they are accessed one by one,
// or have two sums beside FP32 rows. Rows of more go to 1024 threads that keep no sums, wide ones
// are walked in chunks.
NormBackwardConfig norm_backward_config(const NormBackwardProblem& problem, const Gpu& gpu) {
  NormBackwardConfig config{.form = {.kind = problem.form.kind,
                                     .weight = problem.form.weight,
                                     .scale = problem.form.scale},
                            .in = problem.in,
                            .adds_gradient = problem.adds_gradient,
                            .sums_products = problem.sums_products(),
                            .sums_offsets = problem.sums_offsets()};
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  const std::int64_t vectors = ceil_divide(problem.cols, config.vector());
  const bool keeps_more = !config.vectors || (config.sums_offsets && problem.in == DType::kFloat32);
  const int most_each = (keeps_more ? 8 : 16) / config.vector();
  const auto needed = static_cast<int>(std::min<std::int64_t>(ceil_divide(vectors, 32), most_each));
  config.vectors_per_thread = std::max(needed, 1);
  config.row_threads = threads_for(vectors, config.vectors_per_thread, 512);
  if (config.chunk() >= problem.cols) return config;
  config.sums = NormSums::kShared;
  const bool has_room = config.vectors && problem.in != DType::kFloat32;
  if (has_room) config.row_threads = threads_for(vectors, config.vectors_per_thread, 1024);
  if (config.chunk() < problem.cols) config.row_threads = 512;
  const auto chunks_of = [&] {
    return static_cast<int>(ceil_divide<std::int64_t>(problem.cols, config.chunk()));
  };
  config.chunks = chunks_of();
  if (config.shared_bytes() + config.kOwnSharedBytes <= gpu.shared_memory_per_block) return config;
  config.sums = NormSums::kWorkspace;
  config.row_threads = 512;
  config.chunks = chunks_of();
  return config;
}

NormBackwardPlan plan_norm_backward(const NormBackwardProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "norm_gradient";
  require_kernels(Operation::kNorm, kOperation, gpu);
  NormBackwardPlan plan{.config = spans_of(problem)};
  if (problem.cols == 0) return plan;
  const std::int64_t blocks = problem.batches * plan.config.blocks_per_batch;
  require_launchable(kOperation, blocks, problem.rows, problem.cols);
  if (blocks > 0) {
    const NormBackwardConfig config = norm_backward_config(problem, gpu);
    plan.kernels.push_back(kernel_plan(kOperation, NormBackwardConfig::kHeader,
                                       NormBackwardConfig::kKernel, config, blocks));
    plan.kernels.back().shared_bytes = static_cast<int>(config.shared_bytes());
  }
  const auto add_gradients = [&](bool by_batch, std::int64_t batches) {
    if (batches == 0) return;
    const NormGradientConfig config = gradient_config(problem, by_batch);
    const std::int64_t across = ceil_divide<std::int64_t>(problem.cols, config.columns);
    require_launchable(kOperation, across * batches, problem.rows, problem.cols);
    plan.kernels.push_back(kernel_plan(kOperation, NormGradientConfig::kHeader,
                                       NormGradientConfig::kKernel, config, across * batches));
  };
  if (problem.of_weight || problem.of_bias) add_gradients(false, 1);
  if (problem.of_scale || problem.of_shift) add_gradients(true, problem.batches);
  return plan;
}

}  // namespace octofold::plan
