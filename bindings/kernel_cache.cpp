#include "octofold/kernel_cache.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <vector>

#include "error.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;
using Fields = tvm::ffi::Map<String, tvm::ffi::Any>;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;
using OptionalString = tvm::ffi::Optional<String>;

// GemmProblem's fields in their order, as python/octofold/kernel_cache.py has them.
using Problem = tvm::ffi::Tuple<int64_t, int64_t, int64_t, String, String, String, String, String,
                                OptionalString, OptionalString, bool>;

std::optional<DType> dtype_of(const OptionalString& name) {
  if (!name) return std::nullopt;
  return parse_dtype(view_of(*name));
}

GemmProblem problem_of(const Problem& fields) {
  return {.m = fields.get<0>(),
          .n = fields.get<1>(),
          .k = fields.get<2>(),
          .a = parse_dtype(view_of(fields.get<3>())),
          .b = parse_dtype(view_of(fields.get<4>())),
          .out = parse_dtype(view_of(fields.get<5>())),
          .a_granularity = parse_granularity(view_of(fields.get<6>())),
          .b_granularity = parse_granularity(view_of(fields.get<7>())),
          .c = dtype_of(fields.get<8>()),
          .bias = dtype_of(fields.get<9>()),
          .fast_accumulation = fields.get<10>()};
}

}  // namespace

String kernel_cache_folder() { return octofold::kernel_cache_folder().string(); }

tvm::ffi::Array<Fields> list_kernel_cache() {
  tvm::ffi::Array<Fields> kernels;
  for (const CachedKernel& kernel : octofold::list_kernel_cache()) {
    const std::chrono::duration<double> written = kernel.written.time_since_epoch();
    kernels.push_back({{"file", String(kernel.file.string())},
                       {"bytes", kernel.bytes},
                       {"written", written.count()},
                       {"fault", String(kernel.fault)},
                       {"description", String(kernel.description)},
                       {"architecture", String(kernel.architecture)},
                       {"registers", kernel.registers}});
  }
  return kernels;
}

int clear_kernel_cache() { return octofold::clear_kernel_cache(); }

Fields warm_kernel_cache(tvm::ffi::Array<Problem> problems, String architecture,
                         int32_t multiprocessors, Progress progress) {
  std::vector<GemmProblem> wanted;
  for (const Problem& problem : problems) wanted.push_back(problem_of(problem));
  const WarmReport report = octofold::warm_kernel_cache(
      wanted, {.architecture = std::string(view_of(architecture)),
               .multiprocessors = multiprocessors,
               .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }});
  return {{"compiled", report.compiled}, {"found", report.found}};
}

OCTOFOLD_EXPORT(kernel_cache_folder)
OCTOFOLD_EXPORT(list_kernel_cache)
OCTOFOLD_EXPORT(clear_kernel_cache)
OCTOFOLD_EXPORT(warm_kernel_cache)

}  // namespace octofold::bindings
