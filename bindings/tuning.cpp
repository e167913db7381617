#include "octofold/tuning.h"

#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <vector>

#include "error.h"
#include "problem.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;

TargetGpu target(const String& architecture, int64_t multiprocessors) {
  return {std::string(view_of(architecture)), static_cast<std::int32_t>(multiprocessors)};
}

}  // namespace

// `problem`: of a ProductProblem, or of a WeightOnlyProblem, which has a field "w".
tvm::ffi::Array<String> product_candidates(Fields problem, String architecture,
                                           int64_t multiprocessors) {
  const TargetGpu gpu = target(architecture, multiprocessors);
  const std::vector<std::string> found =
      is_weight_only(problem)
          ? octofold::product_candidates(weight_only_problem_of(problem), gpu)
          : octofold::product_candidates(product_problem_of(problem), alignment_of(problem), gpu);
  tvm::ffi::Array<String> names;
  for (const std::string& name : found) names.push_back(name);
  return names;
}

String planned_candidate(Fields problem, String architecture, int64_t multiprocessors) {
  const TargetGpu gpu = target(architecture, multiprocessors);
  return is_weight_only(problem) ? octofold::planned_candidate(weight_only_problem_of(problem), gpu)
                                 : octofold::planned_candidate(product_problem_of(problem), gpu);
}

String tuning_key(Fields problem) {
  return is_weight_only(problem) ? octofold::tuning_key(weight_only_problem_of(problem))
                                 : octofold::tuning_key(product_problem_of(problem));
}

// The table with the names that tuning.py reads.
Fields tuning_table(String gpu, int64_t compute_major, int64_t compute_minor,
                    int64_t multiprocessors) {
  GpuInfo info;
  info.name = view_of(gpu);
  info.compute_major = static_cast<std::int32_t>(compute_major);
  info.compute_minor = static_cast<std::int32_t>(compute_minor);
  info.multiprocessors = static_cast<std::int32_t>(multiprocessors);
  const TuningTable table = octofold::tuning_table(info);
  return {{"file", bytes_of(table.file)},
          {"fault", as_utf8(table.fault)},
          {"products", table.products},
          {"shipped", table.shipped}};
}

OCTOFOLD_EXPORT(product_candidates)
OCTOFOLD_EXPORT(planned_candidate)
OCTOFOLD_EXPORT(tuning_key)
OCTOFOLD_EXPORT(tuning_table)

}  // namespace octofold::bindings
