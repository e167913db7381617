#include "plan/product_planner.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "plan/capability.h"
#include "plan/mma/planner.h"
#include "plan/sm90/planner.h"

namespace octofold::plan {
namespace {

Operation operation_kind(const GemmProblem& problem) {
  if (config::has_groups(problem.work)) return Operation::kGroupedProduct;
  if (problem.gated.exists) return Operation::kGatedProduct;
  return problem.dynamic.exists ? Operation::kDynamicProduct : Operation::kProduct;
}

// The planner for a GPU that has kernels for the problem.
const ProductPlanner& planner_for(const GemmProblem& problem, const Gpu& gpu) {
  require_kernels(operation_kind(problem), operation_of(problem), gpu);
  const ProductKernels kernels = product_kernels(gpu);
  if (problem.work == config::Work::kArrivingRows && kernels != ProductKernels::kSm90) {
    core::fail(ErrorCode::kUnsupported,
               "{}: argument 'arrivals': expected a GPU of compute capability 9.0 (H100, H200), "
               "whose kernels wait for rows, got {}.{}; without it, wait for all rows first",
               operation_of(problem), gpu.compute_major, gpu.compute_minor);
  }
  switch (kernels) {
    case ProductKernels::kSm90: return sm90::planner();
    case ProductKernels::kMma: return mma::planner();
    case ProductKernels::kNone: break;
  }
  core::fail(ErrorCode::kInternal, "{}: no planner for a GPU that has kernels",
             operation_of(problem));
}

ProductConfig config_of(const ProductPlanner& planner, const GemmProblem& problem, const Gpu& gpu,
                        std::string_view candidate) {
  std::vector<std::string> names;
  for (ProductCandidate& each : planner.candidates(problem, gpu)) {
    if (each.name == candidate) return each.config;
    names.push_back(std::move(each.name));
  }
  core::fail_argument(operation_of(problem), "candidate",
                      core::format("one of {}", fmt::join(names, ", ")), candidate);
}

}  // namespace

ProductPlan plan_product(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate) {
  const ProductPlanner& planner = planner_for(problem, gpu);
  planner.require_sizes(problem);
  const ProductConfig config = candidate.empty() ? planner.choose(problem, gpu)
                                                 : config_of(planner, problem, gpu, candidate);
  return {config, {planner.kernel(problem, config, gpu)}};
}

std::vector<ProductCandidate> product_candidates(const GemmProblem& problem, const Gpu& gpu) {
  return planner_for(problem, gpu).candidates(problem, gpu);
}

std::string planned_candidate(const GemmProblem& problem, const Gpu& gpu) {
  const ProductConfig config = plan_product(problem, gpu).config;
  const std::vector<ProductCandidate> candidates = product_candidates(problem, gpu);
  const auto found = std::ranges::find(candidates, config, &ProductCandidate::config);
  if (found != candidates.end()) return found->name;
  core::fail(ErrorCode::kInternal, "{}: the planned configuration is no candidate",
             operation_of(problem));
}

}  // namespace octofold::plan
