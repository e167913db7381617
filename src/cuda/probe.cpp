#include "cuda/probe.h"

#include <array>
#include <cstddef>

#include "octofold/error.h"

#include "cuda/driver.h"
#include "jit/nvrtc.h"

namespace octofold::cuda {
namespace {

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
