#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "core/log.h"
#include "core/options.h"
#include "cuda/context.h"

namespace octofold::cuda {

Device::Device(const Driver& driver, int index, KernelSource source)
    : driver_(driver), index_(index), source_(std::move(source)) {
  int handle = 0;
  driver.check(driver.device_get(&handle, index), core::format("cuda:{}: cuDeviceGet", index));
  const auto ask = [&](int attribute, int& value) {
    driver.check(driver.device_get_attribute(&value, attribute, handle),
                 core::format("cuda:{}: cuDeviceGetAttribute {}", index, attribute));
  };
  std::array<char, 256> name{};
  driver.check(driver.device_get_name(name.data(), static_cast<int>(name.size()), handle),
               core::format("cuda:{}: cuDeviceGetName", index));
  name_ = name.data();
  ask(kComputeCapabilityMajor, gpu_.compute_major);
  ask(kComputeCapabilityMinor, gpu_.compute_minor);
  ask(kMultiprocessorCount, gpu_.multiprocessors);
  ask(kSharedMemoryPerBlock, gpu_.shared_memory_per_block);
  gpu_ = plan::as_target(gpu_, core::options().target);
  driver.check(driver.device_primary_ctx_retain(&context_, handle),
               core::format("cuda:{}: cuDevicePrimaryCtxRetain", index));
}

GroupFaults& Device::group_faults() {
  std::call_once(faults_once_, [&] { faults_.emplace(driver_, context_, index_); });
  return *faults_;
}

void Device::read_tables() {
  TuningFile read = read_tuning(gpu_, name_);
  if (!read.fault.empty()) {
    core::log(LogLevel::kWarning, "cuda:{}: the tuning table '{}' is ignored: {}", index_,
              read.file.string(), read.fault);
  } else if (read.tuning.size() > 0) {
    core::log(LogLevel::kInfo, "cuda:{}: the tuning table '{}' has {} products", index_,
              read.file.string(), read.tuning.size());
  }
  tuning_ = std::move(read.tuning);
  if (core::options().uses_tuning) shipped_tuning_ = plan::shipped_tuning(gpu_, name_);
}

void Device::keep(const MeasuredChoice& choice) try {
  keep_choice(gpu_, name_, choice);
} catch (const Error& error) {
  std::call_once(unkept_once_, [&] {
    core::log(LogLevel::kWarning, "cuda:{}: choices are of this process alone: {}", index_,
              error.what());
  });
}

Launch Device::load(const plan::KernelPlan& plan, const std::string& purpose) {
  const Kernel& loaded = kernel(plan);
  std::int64_t blocks = plan.blocks;
  if (plan.as_many_as_run) blocks = std::min(blocks, loaded.resident_blocks());
  core::log(LogLevel::kDebug, "cuda:{}: {}: {}, {} blocks", index_, purpose, plan.description,
            blocks);
  return {&loaded, blocks};
}

const Kernel& Device::kernel(const plan::KernelPlan& plan) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slot = &kernels_[plan.kernel];
  }
  const std::lock_guard lock(slot->mutex);
  if (!slot->kernel) slot->kernel.emplace(new_kernel(plan));
  return *slot->kernel;
}

Kernel Device::new_kernel(const plan::KernelPlan& plan) const {
  require_resources(plan);
  const jit::Program program = program_of(plan, gpu_);
  const auto load = [&](const jit::Binary& binary) {
    const ContextGuard current(driver_, context_);
    return Kernel(driver_, context_, gpu_, plan, binary);
  };
  try {
    if (const auto precompiled =
            source_.precompiled ? source_.precompiled(program) : std::nullopt) {
      return load(*precompiled);
    }
  } catch (const Error& error) {  // of a driver that is older than the compiler was, above all
    core::log(LogLevel::kWarning, "cuda:{}: a precompiled kernel is compiled again: {}", index_,
              error.what());
  }
  return load(source_.compile(program));
}

void Device::require_resources(const plan::KernelPlan& plan) const {
  if (plan.shared_bytes <= gpu_.shared_memory_per_block) return;
  core::fail(ErrorCode::kUnsupported,
             "{}: needs {} bytes of shared memory per block, and cuda:{} (compute capability "
             "{}.{}) has {}",
             plan.description, plan.shared_bytes, index_, gpu_.compute_major, gpu_.compute_minor,
             gpu_.shared_memory_per_block);
}

jit::Program program_of(const plan::KernelPlan& plan, const plan::Gpu& gpu) {
  return {.header = plan.header,
          .kernel = plan.kernel,
          .architecture = plan::architecture(gpu),
          .description = plan.description};
}

}  // namespace octofold::cuda
