#include "octofold/kernel_cache.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <vector>

#include "error.h"
#include "problem.h"
#include "text.h"

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

}  // namespace octofold::bindings
