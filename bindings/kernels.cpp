// Kernels: those that are kept, and those that are chosen.
#include <chrono>
#include <cstdint>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <vector>

#include "octofold/kernel_cache.h"
#include "octofold/tuning.h"

#include "arguments.h"
#include "error.h"
#include "problem.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;
using Fields = tvm::ffi::Map<String, tvm::ffi::Any>;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;
}  // namespace

tvm::ffi::Bytes kernel_cache_folder() { return bytes_of(octofold::kernel_cache_folder()); }

tvm::ffi::Array<Fields> list_kernel_cache() {
  tvm::ffi::Array<Fields> kernels;
  for (const CachedKernel& kernel : octofold::list_kernel_cache()) {
    const std::chrono::duration<double> written = kernel.written.time_since_epoch();
    kernels.push_back({{"file", bytes_of(kernel.file)},
                       {"bytes", kernel.bytes},
                       {"written", written.count()},
                       {"fault", as_utf8(kernel.fault)},
                       {"description", String(kernel.description)},
                       {"architecture", String(kernel.architecture)},
                       {"registers", kernel.registers}});
  }
  return kernels;
}

tvm::ffi::Array<Fields> list_precompiled_kernels() {
  tvm::ffi::Array<Fields> kernels;
  for (const PrecompiledKernel& kernel : octofold::list_precompiled_kernels()) {
    kernels.push_back({{"bytes", kernel.bytes},
                       {"description", String(kernel.description)},
                       {"architecture", String(kernel.architecture)},
                       {"registers", kernel.registers}});
  }
  return kernels;
}

int clear_kernel_cache() { return octofold::clear_kernel_cache(); }

Fields warm_kernel_cache(tvm::ffi::Array<Fields> problems, String architecture,
                         int32_t multiprocessors, Progress progress) {
  std::vector<GemmProblem> wanted;
  for (const Fields& problem : problems) wanted.push_back(problem_of(problem));
  const WarmReport report = octofold::warm_kernel_cache(
      wanted, {.architecture = std::string(view_of(architecture)),
               .multiprocessors = multiprocessors,
               .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }});
  return {
      {"compiled", report.compiled}, {"found", report.found}, {"precompiled", report.precompiled}};
}

OCTOFOLD_EXPORT(kernel_cache_folder)
OCTOFOLD_EXPORT(list_kernel_cache)
OCTOFOLD_EXPORT(list_precompiled_kernels)
OCTOFOLD_EXPORT(clear_kernel_cache)
OCTOFOLD_EXPORT(warm_kernel_cache)

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
