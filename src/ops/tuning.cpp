#include "octofold/tuning.h"

#include <string_view>
#include <utility>

#include "octofold/error.h"

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cuda/tuning_file.h"
#include "ops/target_gpu.h"
#include "plan/product.h"
#include "plan/tuning.h"

namespace octofold {

TuningTable tuning_table(const GpuInfo& gpu) try {
  const plan::Gpu target = plan::as_target({.compute_major = gpu.compute_major,
                                            .compute_minor = gpu.compute_minor,
                                            .multiprocessors = gpu.multiprocessors},
                                           core::options().target);
  const cuda::TuningFile read = cuda::read_tuning(target, gpu.name);
  return {.file = read.file,
          .fault = read.fault,
          .products = static_cast<std::int64_t>(read.tuning.size()),
          .shipped = core::options().uses_tuning
                         ? static_cast<std::int64_t>(plan::shipped_tuning(target, gpu.name).size())
                         : 0};
} catch (const Error& error) {  // a target that is none of this GPU's
  return {.fault = error.what()};
}

namespace {

void require_groups(std::string_view operation, std::int64_t groups) {
  if (groups < 1) {
    core::fail_argument(operation, "groups", "at least 1", core::format("{}", groups));
  }
}

// Throws what the operation would, but for what only sizes decide.
plan::GemmProblem checked(std::string_view operation, const ProductProblem& problem) {
  GemmForm form = problem.product.form;
  if (problem.gated) form.out = DType::kBFloat16;
  ops::require_form(operation, form);
  require_groups(operation, problem.groups);
  if (problem.gated && !is_gated(*problem.gated)) {
    core::fail_argument(operation, "gated", "a gated activation", name(*problem.gated));
  }
  return plan::problem_of(problem);
}

plan::WeightOnlyProblem checked(std::string_view operation, const WeightOnlyProblem& problem) {
  if (problem.grouping == Grouping::kDepth) {
    core::fail_argument(operation, "grouping", "none, rows or masked", "depth");
  }
  require_groups(operation, problem.groups);
  if (problem.gathered && problem.grouping != Grouping::kRows) {
    core::fail_argument(operation, "gathered", "false but for groups of rows", "true");
  }
  const bool is_masked = problem.grouping == Grouping::kMasked;
  return plan::contiguous({.rows = problem.m,
                           .columns = problem.n,
                           .depth = problem.k,
                           .w = problem.w.type,
                           .x = problem.x,
                           .out = problem.out,
                           .transposed = problem.gradient,
                           .w_scales = problem.w.scales,
                           .work = plan::work_of(problem.grouping),
                           .groups = problem.groups,
                           .expected = is_masked ? problem.expected_rows.value_or(problem.m) : 0,
                           .gathered = problem.gathered,
                           .batch_invariant = problem.batch_invariant});
}

plan::Gpu gpu_of(std::string_view operation, const TargetGpu& gpu) {
  return ops::target_gpu(operation, gpu.architecture, gpu.multiprocessors);
}

}  // namespace

std::vector<std::string> product_candidates(const ProductProblem& given,
                                            const TensorAlignment& alignment,
                                            const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "product_candidates";
  plan::GemmProblem problem = checked(kOperation, given);
  problem.operands_fit_tma = alignment.operands;
  problem.output_fits_tma = alignment.out;
  problem.c_fits_tma = alignment.c;
  std::vector<std::string> names;
  for (auto& [name, config] : plan::product_candidates(problem, gpu_of(kOperation, gpu))) {
    names.push_back(std::move(name));
  }
  return names;
}

std::string planned_candidate(const ProductProblem& problem, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "planned_candidate";
  return plan::planned_candidate(checked(kOperation, problem), gpu_of(kOperation, gpu));
}

std::string tuning_key(const ProductProblem& problem) {
  return plan::tuning_key(checked("tuning_key", problem));
}

std::vector<std::string> product_candidates(const WeightOnlyProblem& given, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "product_candidates";
  const plan::WeightOnlyProblem problem = checked(kOperation, given);
  std::vector<std::string> names;
  for (auto& [name, choice] : plan::weight_only_candidates(problem, gpu_of(kOperation, gpu))) {
    names.push_back(std::move(name));
  }
  return names;
}

std::string planned_candidate(const WeightOnlyProblem& given, const TargetGpu& gpu) {
  constexpr std::string_view kOperation = "planned_candidate";
  return plan::planned_candidate(checked(kOperation, given), gpu_of(kOperation, gpu));
}

std::string tuning_key(const WeightOnlyProblem& problem) {
  return plan::tuning_key(checked("tuning_key", problem));
}

}  // namespace octofold
