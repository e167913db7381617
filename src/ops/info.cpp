#include "octofold/info.h"

#include <cstddef>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "octofold/error.h"
#include "octofold/kernel_cache.h"

#include "core/format.h"
#include "core/options.h"
#include "cpu/vector_kernels.h"
#include "cuda/runtime.h"
#include "jit/nvrtc.h"
#include "plan/capability.h"

namespace octofold {
namespace {

std::vector<OperationInfo> operations_of(const plan::Gpu& gpu) {
  std::vector<OperationInfo> operations;
  for (const plan::Operation operation : plan::kOperations) {
    std::string reason = plan::why_not(operation, gpu);
    const bool available = reason.empty();
    operations.push_back({std::string(plan::word(operation)), {available, std::move(reason)}});
  }
  return operations;
}

std::size_t precompiled_for(std::string_view architecture) {
  static const auto counts = [] {
    std::map<std::string, std::size_t, std::less<>> by_architecture;
    for (const PrecompiledKernel& kernel : list_precompiled_kernels())
      ++by_architecture[kernel.architecture];
    return by_architecture;
  }();
  const auto found = counts.find(architecture);
  return found == counts.end() ? 0 : found->second;
}

Component backend_of(const GpuInfo& info, const plan::Gpu& gpu, const Component& nvrtc) {
  std::vector<std::string_view> names;
  for (const OperationInfo& operation : info.operations) {
    if (operation.support.available) names.push_back(operation.name);
  }
  if (names.empty()) return {.available = false, .detail = info.operations.front().support.detail};
  const std::string architecture = plan::architecture(gpu);
  const std::size_t precompiled = precompiled_for(architecture);
  if (!nvrtc.available && precompiled == 0) return {.available = false, .detail = nvrtc.detail};
  std::string kernels = nvrtc.available ? "compiled when a shape first needs them"
                                        : core::format("cannot be compiled: {}", nvrtc.detail);
  if (precompiled > 0)
    kernels = core::format("{} are precompiled, others {}", precompiled, kernels);
  return {.available = true,
          .detail = core::format("{}; kernels for {}: {}", fmt::join(names, ", "), architecture,
                                 kernels)};
}

void describe(GpuInfo& info, const Component& nvrtc) try {
  const plan::Gpu gpu = plan::as_target({.compute_major = info.compute_major,
                                         .compute_minor = info.compute_minor,
                                         .multiprocessors = info.multiprocessors},
                                        core::options().target);
  info.operations = operations_of(gpu);
  info.backend = backend_of(info, gpu, nvrtc);
} catch (const Error& error) {  // a target that is none of this GPU's
  info.backend = {.available = false, .detail = error.what()};
}

}  // namespace

Info info() {
  cuda::DriverProbe probe = cuda::probe_driver();
  Component nvrtc = jit::probe_nvrtc();
  for (GpuInfo& gpu : probe.gpus) describe(gpu, nvrtc);
  return {
      .version = OCTOFOLD_VERSION,
      .cpu_threads = core::options().num_threads,
      .cpu = {.available = true, .detail = core::format("{} vectors", cpu::vector_kernels().name)},
      .driver = std::move(probe.driver),
      .nvrtc = std::move(nvrtc),
      .gpus = std::move(probe.gpus)};
}

}  // namespace octofold
