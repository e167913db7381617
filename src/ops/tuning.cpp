#include "octofold/tuning.h"

#include <string_view>

#include "octofold/error.h"

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cuda/tuning_file.h"
#include "ops/gemm.h"
#include "plan/gemm.h"
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

std::string planned_gemm_candidate(const GemmProblem& problem, std::int32_t multiprocessors) {
  constexpr std::string_view kOperation = "planned_gemm_candidate";
  ops::require_form(kOperation, problem.form);
  if (multiprocessors < 2) {  // a cluster's blocks run on as many
    core::fail_argument(kOperation, "multiprocessors", "at least 2",
                        core::format("{}", multiprocessors));
  }
  plan::Gpu gpu = plan::kHopper;
  gpu.multiprocessors = multiprocessors;
  const plan::GemmProblem contiguous = plan::contiguous(problem);
  const auto config = plan::plan_gemm(contiguous, gpu).config;
  for (const auto& [name, candidate] : plan::gemm_candidates(contiguous, gpu)) {
    if (candidate == config) return name;
  }
  core::fail(ErrorCode::kInternal, "{}: planned what is no candidate", kOperation);
}

std::string tuning_key(const GemmProblem& problem) { return plan::tuning_key(problem); }

}  // namespace octofold
