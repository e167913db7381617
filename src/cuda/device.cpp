#include "cuda/device.h"

#include <utility>

#include "core/check.h"
#include "cuda/context.h"

namespace octofold::cuda {

Device::Device(const Driver& driver, int index, Compile compile)
    : driver_(driver), index_(index), compile_(std::move(compile)) {
  int handle = 0;
  driver.check(driver.device_get(&handle, index), core::format("cuda:{}: cuDeviceGet", index));
  const auto ask = [&](int attribute, int& value) {
    driver.check(driver.device_get_attribute(&value, attribute, handle),
                 core::format("cuda:{}: cuDeviceGetAttribute {}", index, attribute));
  };
  ask(kComputeCapabilityMajor, gpu_.compute_major);
  ask(kComputeCapabilityMinor, gpu_.compute_minor);
  ask(kMultiprocessorCount, gpu_.multiprocessors);
  ask(kSharedMemoryPerBlock, gpu_.shared_memory_per_block);
  driver.check(driver.device_primary_ctx_retain(&context_, handle),
               core::format("cuda:{}: cuDevicePrimaryCtxRetain", index));
}

const Kernel& Device::kernel(const KernelSource& source) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slot = &kernels_[source.program.kernel];
  }
  const std::lock_guard lock(slot->mutex);
  if (!slot->kernel) {
    require_resources(source);
    const jit::Binary binary = compile_(source.program);
    const ContextGuard current(driver_, context_);
    slot->kernel.emplace(driver_, context_, source, binary);
  }
  return *slot->kernel;
}

void Device::require_resources(const KernelSource& source) const {
  if (source.shared_bytes <= static_cast<unsigned>(gpu_.shared_memory_per_block)) return;
  core::fail(ErrorCode::kUnsupported,
             "{}: needs {} bytes of shared memory per block, and cuda:{} (compute capability "
             "{}.{}) has {}",
             source.program.description, source.shared_bytes, index_, gpu_.compute_major,
             gpu_.compute_minor, gpu_.shared_memory_per_block);
}

}  // namespace octofold::cuda
