#include "plan/dot.h"

#include <algorithm>

#include "plan/capability.h"

namespace octofold::plan {

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
