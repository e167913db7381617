#include "octofold/info.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>

#include "octofold/kernel_cache.h"

#include "error.h"
#include "text.h"

namespace octofold::bindings {
namespace {

using Fields = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

Fields fields_of(const Component& component) {
  return {{"available", component.available}, {"detail", tvm::ffi::String(component.detail)}};
}

using Operations = tvm::ffi::Map<tvm::ffi::String, Fields>;

Operations by_name(const std::vector<OperationInfo>& operations) {
  Operations named;
  for (const OperationInfo& operation : operations) {
    named.Set(operation.name, fields_of(operation.support));
  }
  return named;
}

Fields fields_of(const GpuInfo& gpu) {
  return {{"index", gpu.index},
          {"name", tvm::ffi::String(gpu.name)},
          {"compute_major", gpu.compute_major},
          {"compute_minor", gpu.compute_minor},
          {"multiprocessors", gpu.multiprocessors},
          {"memory_bytes", gpu.memory_bytes},
          {"backend", fields_of(gpu.backend)},
          {"operations", by_name(gpu.operations)}};
}

}  // namespace

// Maps with the fields' own names, which python/octofold/_info.py turns into dataclasses.
Fields info() {
  const Info info = octofold::info();
  tvm::ffi::Array<Fields> gpus;
  for (const GpuInfo& gpu : info.gpus) gpus.push_back(fields_of(gpu));
  return {{"version", tvm::ffi::String(info.version)},
          {"cpu_threads", info.cpu_threads},
          {"cpu", fields_of(info.cpu)},
          {"driver", fields_of(info.driver)},
          {"nvrtc", fields_of(info.nvrtc)},
          {"gpus", gpus}};
}

Operations operations_on(int64_t compute_major, int64_t compute_minor) {
  return by_name(octofold::operations_on(static_cast<std::int32_t>(compute_major),
                                         static_cast<std::int32_t>(compute_minor)));
}

// Costs nothing, while info() probes the driver.
tvm::ffi::String version() { return OCTOFOLD_VERSION; }

void set_nvrtc_candidates(tvm::ffi::Array<tvm::ffi::String> files) {
  std::vector<std::string> paths;
  for (const tvm::ffi::String& file : files) paths.emplace_back(view_of(file));
  octofold::set_nvrtc_candidates(std::move(paths));
}

OCTOFOLD_EXPORT(info)
OCTOFOLD_EXPORT(operations_on)
OCTOFOLD_EXPORT(set_nvrtc_candidates)
OCTOFOLD_EXPORT(version)

}  // namespace octofold::bindings
