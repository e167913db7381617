#include "plan/transpose.h"

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

}  // namespace octofold::plan
