#include "plan/rotary.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"
#include "plan/capability.h"

namespace octofold::plan {

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

}  // namespace octofold::plan
