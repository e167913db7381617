#include "octofold/info.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "octofold/error.h"
#include "octofold/kernel_cache.h"

#include "core/check.h"
#include "core/format.h"
#include "core/options.h"
#include "cpu/vector_kernels.h"
#include "cuda/runtime.h"
#include "jit/nvrtc.h"
#include "ops/info.h"
#include "plan/capability.h"
#include "plan/operands.h"

namespace octofold {
namespace {

constexpr std::array<std::string_view, 6> kKindsOfSupport{"native", "kernels", "weight-only",
                                                          "cast",   "CPU",     "none"};

struct Architecture {
  int compute_capability;
  std::string_view examples;
};
constexpr Architecture kArchitectures[] = {
    {75, "RTX 20, T4"}, {80, "A100"},        {86, "RTX 30, A10"}, {89, "RTX 40, L4, L40S"},
    {90, "H100, H200"}, {100, "B200, B100"}, {120, "RTX 50"}};

CapabilityTarget target_of(int compute_capability, std::string_view examples) {
  const int major = compute_capability / 10, minor = compute_capability % 10;
  return {.name = core::format("{}.{}", major, minor),
          .compute_major = major,
          .compute_minor = minor,
          .examples = std::string(examples),
          .gpus = {}};
}

int capability_of(const CapabilityTarget& target) {
  return 10 * target.compute_major + target.compute_minor;
}

// The GPU's column, which is added in its place if there is none.
CapabilityTarget& column_of(std::vector<CapabilityTarget>& targets, int compute_capability) {
  auto place = std::ranges::lower_bound(targets, compute_capability, {}, capability_of);
  if (place == targets.end() || capability_of(*place) != compute_capability) {
    place = targets.insert(place, target_of(compute_capability, ""));
  }
  return *place;
}

// Marks its column. Says what it is.
std::string mark(std::vector<CapabilityTarget>& targets, const GpuInfo& gpu, int as) try {
  const plan::Gpu target =
      plan::as_target({.compute_major = gpu.compute_major, .compute_minor = gpu.compute_minor}, as);
  CapabilityTarget& column = column_of(targets, target.compute_capability());
  column.gpus.push_back(gpu.index);
  return core::format(
      "cuda:{} is {}, {}.{}{}", gpu.index, gpu.name, gpu.compute_major, gpu.compute_minor,
      target.is_translated ? core::format(", as {} by OCTOFOLD_TARGET", column.name) : "");
} catch (const Error& error) {  // a target that is none of this GPU's
  return core::format("cuda:{} is {}, but {}", gpu.index, gpu.name, error.what());
}

}  // namespace

std::string_view name(SupportKind how) {
  const auto index = static_cast<std::size_t>(how);
  if (index < kKindsOfSupport.size()) return kKindsOfSupport[index];
  core::fail(ErrorCode::kInvalidArgument, "kind of support {} is not one of: {}", index,
             fmt::join(kKindsOfSupport, ", "));
}

Capabilities ops::capabilities_of(const cuda::DriverProbe& probe, const Component& nvrtc,
                                  int target) {
  Capabilities result;
  for (const auto& [capability, examples] : kArchitectures) {
    result.targets.push_back(target_of(capability, examples));
  }
  std::vector<std::string> found;
  for (const GpuInfo& gpu : probe.gpus) found.push_back(mark(result.targets, gpu, target));
  if (found.empty()) {
    result.at_hand =
        core::format("no GPU is at hand ({}): what would work on one",
                     probe.driver.available ? "the driver has none" : probe.driver.detail);
  } else {
    result.at_hand =
        core::format("{}{}", fmt::join(found, "; "),
                     nvrtc.available ? "" : "; kernels cannot be compiled: " + nvrtc.detail);
  }

  std::vector<plan::Gpu> gpus;
  for (const CapabilityTarget& each : result.targets) {
    gpus.push_back({.compute_major = each.compute_major, .compute_minor = each.compute_minor});
  }
  result.targets.push_back({.name = "cpu", .examples = "", .gpus = {}});
  for (const plan::MatrixRow& row : plan::matrix_rows()) {
    CapabilityRow& made = result.rows.emplace_back();
    made.operation = row.rule->called;
    made.kind = plan::word(row.rule->operation);
    for (std::size_t i = 0; i < row.forms.size(); ++i) {
      const plan::OperandRule& operand = row.rule->operands[i];
      made.operands.push_back(
          {std::string(operand.name), std::string(plan::word(row.forms[i])), operand.most_rows});
    }
    for (const plan::Gpu& gpu : gpus) made.support.push_back(plan::support_of(row, gpu));
    made.support.push_back(plan::support_of_cpu(row));
  }
  return result;
}

Capabilities capabilities() {
  return ops::capabilities_of(cuda::probe_driver(), jit::probe_nvrtc(), core::options().target);
}

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
