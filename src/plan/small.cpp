#include "plan/small.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"
#include "kernels/shared/arithmetic.h"
#include "plan/capability.h"
#include "plan/cast.h"

namespace octofold::plan {

TransposePlan plan_transpose(const TransposeProblem& problem, const Gpu& gpu) {
  using config::TransposeConfig;
  constexpr const char* kOperation = "transpose";
  require_kernels(Operation::kCast, kOperation, gpu);
  TransposePlan plan{
      .config = {
          .vector_loads = problem.x_is_aligned && problem.cols % TransposeConfig::kVector == 0,
          .vector_stores = problem.out_is_aligned && problem.rows % TransposeConfig::kVector == 0}};
  const std::int64_t blocks = problem.matrices *
                              config::ceil_divide(problem.rows, TransposeConfig::kTile) *
                              config::ceil_divide(problem.cols, TransposeConfig::kTile);
  require_launchable(kOperation, blocks, problem.matrices * problem.rows, problem.cols);
  if (blocks > 0) {
    plan.kernels.push_back(kernel_plan(kOperation, TransposeConfig::kHeader,
                                       TransposeConfig::kKernel, plan.config, blocks));
    plan.kernels.back().shared_bytes = TransposeConfig::kSharedBytes;
  }
  return plan;
}

RotaryPlan plan_rotary(const RotaryProblem& problem, const Gpu& gpu) {
  using config::ceil_divide;
  constexpr const char* kOperation = "rotary";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require_kernels(Operation::kRotary, kOperation, gpu);
  RotaryPlan plan{.config = {.type = problem.type}};
  if (problem.tokens == 0 || problem.heads == 0 || problem.head_size == 0) return plan;
  if (problem.tokens > kMost || problem.heads > kMost / problem.head_size) {
    core::fail(ErrorCode::kUnsupported,
               "{}: expected fewer than 2^31 tokens, and elements of a token, on a GPU, got {} "
               "tokens of {} heads of {}",
               kOperation, problem.tokens, problem.heads, problem.head_size);
  }
  config::RotaryConfig& config = plan.config;
  const std::int64_t vector = config.vector(), half = problem.head_size / 2;
  config.vectors = problem.is_aligned && half % vector == 0;
  const std::int64_t items =
      ceil_divide(half, vector) * ceil_divide(problem.heads, std::int64_t{config.kHeads});
  config.threads_per_token = static_cast<int>(
      std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(items, config.kThreads))));
  const std::int64_t blocks = ceil_divide(problem.tokens, std::int64_t{config.tokens_per_block()});
  plan.kernels.push_back(kernel_plan(kOperation, config.kHeader, config.kKernel, config, blocks));
  return plan;
}

DotPlan plan_dot(const DotProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "dot";
  require_kernels(Operation::kDot, kOperation, gpu);
  // The result is written of no elements too.
  const std::int64_t parts = std::max<std::int64_t>(config::dot_parts(problem.size), 1);
  DotPlan plan{.config = {.a = problem.a,
                          .b = problem.b,
                          .a_blocks = problem.a_blocks,
                          .b_blocks = problem.b_blocks,
                          .vectors = problem.is_aligned,
                          .alone = parts == 1}};
  const config::DotConfig& config = plan.config;
  plan.kernels.push_back(kernel_plan(kOperation, config.kHeader, config.kKernel, config, parts));
  if (parts > 1) {
    constexpr config::DotPartsConfig kParts;
    plan.kernels.push_back(kernel_plan(kOperation, kParts.kHeader, kParts.kKernel, kParts, 1));
  }
  return plan;
}

}  // namespace octofold::plan
