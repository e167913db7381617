#include "cuda/runtime.h"

#include <array>
#include <cstddef>
#include <utility>

#include "octofold/error.h"

#include "core/check.h"
#include "cuda/kernel_headers.h"
#include "cuda/precompiled_kernels.h"
#include "jit/kernel_cache.h"
#include "jit/nvrtc.h"

namespace octofold::cuda {
namespace {

int count_devices(const Driver& driver) {
  int count = 0;
  driver.check(driver.device_get_count(&count), "cuDeviceGetCount");
  return count;
}

// Fields that the driver does not tell of a device stay empty.
GpuInfo describe_gpu(const Driver& driver, int ordinal) {
  GpuInfo gpu;
  gpu.index = ordinal;
  int device = 0;
  if (driver.device_get(&device, ordinal) != kSuccess) return gpu;

  std::array<char, 256> name{};
  if (driver.device_get_name(name.data(), static_cast<int>(name.size()), device) == kSuccess) {
    gpu.name = name.data();
  }
  std::size_t bytes = 0;
  if (driver.device_total_mem(&bytes, device) == kSuccess) {
    gpu.memory_bytes = static_cast<std::int64_t>(bytes);
  }
  driver.device_get_attribute(&gpu.multiprocessors, kMultiprocessorCount, device);
  driver.device_get_attribute(&gpu.compute_major, kComputeCapabilityMajor, device);
  driver.device_get_attribute(&gpu.compute_minor, kComputeCapabilityMinor, device);
  return gpu;
}

}  // namespace

Runtime::Runtime(const std::string& driver, KernelSource source)
    : driver_(driver),
      source_(std::move(source)),
      slots_(static_cast<std::size_t>(count_devices(driver_))) {
  jit::set_newest_cuda(driver_.cuda());
}

Device& Runtime::device(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= slots_.size()) {
    core::fail(ErrorCode::kInvalidArgument, "cuda:{} does not exist: this machine shows {} GPU{}",
               index, slots_.size(), slots_.size() == 1 ? "" : "s");
  }
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  std::call_once(slot.once, [&] { slot.device.emplace(driver_, index, source_); });
  return *slot.device;
}

Device& device(int index) {
  Driver::require_usable_here();
  static Runtime& runtime =
      *new Runtime("libcuda.so.1", {.compile =
                                        [](const jit::Program& program) {
                                          return jit::compile_cached(program, kernel_headers());
                                        },
                                    .precompiled = precompiled_kernel});
  return runtime.device(index);
}

DriverProbe probe_driver(const std::string& library) try {
  const Driver driver(library);
  jit::set_newest_cuda(driver.cuda());
  int count = 0;
  driver.check(driver.device_get_count(&count), driver.version() + " driver: cuDeviceGetCount");
  DriverProbe probe{{.available = true, .detail = driver.version()}, {}};
  for (int i = 0; i < count; ++i) probe.gpus.push_back(describe_gpu(driver, i));
  return probe;
} catch (const Error& error) {
  return {{.available = false, .detail = error.what()}, {}};
}

}  // namespace octofold::cuda
