// Kernels: those that are kept, and those that are chosen.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>
#include <vector>

#include "octofold/kernel_cache.h"
#include "octofold/tuning.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;
using Fields = tvm::ffi::Map<String, tvm::ffi::Any>;

TargetGpu target(const String& architecture, int64_t multiprocessors) {
  return {std::string(view_of(architecture)), static_cast<std::int32_t>(multiprocessors)};
}

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

Fields warm_kernel_cache(tvm::ffi::Array<String> problems, String architecture,
                         int32_t multiprocessors, Progress progress) {
  std::vector<std::string> wanted;
  for (const String& problem : problems) wanted.emplace_back(view_of(problem));
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

tvm::ffi::Array<String> strings_of(const std::vector<std::string>& texts) {
  tvm::ffi::Array<String> strings;
  for (const std::string& text : texts) strings.push_back(text);
  return strings;
}

tvm::ffi::Array<String> problems_of(const std::shared_ptr<ProductRecording>& recording) {
  return strings_of(recording->problems());
}

// The recording lives as long as the function that is returned, which has its problems so far.
tvm::ffi::Function record_products() {
  return holding<&problems_of>("record_products", std::make_shared<ProductRecording>());
}

tvm::ffi::Array<String> product_candidates(String problem, String architecture,
                                           int64_t multiprocessors) {
  return strings_of(
      octofold::product_candidates(view_of(problem), target(architecture, multiprocessors)));
}

String planned_candidate(String problem, String architecture, int64_t multiprocessors) {
  return octofold::planned_candidate(view_of(problem), target(architecture, multiprocessors));
}

String complete_problem(String problem) { return octofold::complete_problem(view_of(problem)); }

String use_candidate(String name) { return octofold::use_candidate(std::string(view_of(name))); }

GpuInfo gpu_of(const String& name, int64_t compute_major, int64_t compute_minor,
               int64_t multiprocessors) {
  GpuInfo info;
  info.name = view_of(name);
  info.compute_major = static_cast<std::int32_t>(compute_major);
  info.compute_minor = static_cast<std::int32_t>(compute_minor);
  info.multiprocessors = static_cast<std::int32_t>(multiprocessors);
  return info;
}

// Each choice is (problem, candidate, microseconds, microseconds as planned).
tvm::ffi::Bytes write_choices(
    String gpu, int64_t compute_major, int64_t compute_minor, int64_t multiprocessors,
    tvm::ffi::Array<tvm::ffi::Tuple<String, String, double, double>> choices) {
  std::vector<MeasuredChoice> measured;
  for (const auto& choice : choices) {
    measured.push_back({std::string(view_of(choice.get<0>())),
                        std::string(view_of(choice.get<1>())), choice.get<2>(), choice.get<3>()});
  }
  return bytes_of(octofold::write_choices(
      gpu_of(gpu, compute_major, compute_minor, multiprocessors), measured));
}

// The table with the names that tuning.py reads.
Fields tuning_table(String gpu, int64_t compute_major, int64_t compute_minor,
                    int64_t multiprocessors) {
  const TuningTable table =
      octofold::tuning_table(gpu_of(gpu, compute_major, compute_minor, multiprocessors));
  return {{"file", bytes_of(table.file)},
          {"fault", as_utf8(table.fault)},
          {"products", table.products},
          {"shipped", table.shipped}};
}

OCTOFOLD_EXPORT(product_candidates)
OCTOFOLD_EXPORT(planned_candidate)
OCTOFOLD_EXPORT(complete_problem)
OCTOFOLD_EXPORT(record_products)
OCTOFOLD_EXPORT(use_candidate)
OCTOFOLD_EXPORT(tuning_table)
OCTOFOLD_EXPORT(write_choices)

}  // namespace octofold::bindings
