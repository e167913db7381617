#include "cuda/probe.h"

#include <array>
#include <cstddef>
#include <fmt/format.h>

#include "core/options.h"
#include "cuda/shared_object.h"

namespace octofold::cuda {
namespace {

// From the CUDA driver API's documentation (cuInit, cuDeviceGetAttribute …): CUresult and CUdevice
// are ints, 0 is success.
using Init = int(unsigned flags);
using DriverGetVersion = int(int* version);
using DeviceGetCount = int(int* count);
using DeviceGet = int(int* device, int ordinal);
using DeviceGetName = int(char* name, int size, int device);
using DeviceTotalMem = int(std::size_t* bytes, int device);
using DeviceGetAttribute = int(int* value, int attribute, int device);
using GetErrorString = int(int error, const char** text);
using NvrtcVersion = int(int* major, int* minor);

constexpr int kMultiprocessorCount = 16;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

std::string error_text(const SharedObject& library, int error) {
  const char* text = nullptr;
  auto* get = library.find<GetErrorString>("cuGetErrorString");
  if (get != nullptr && get(error, &text) == 0 && text != nullptr) return text;
  return fmt::format("CUDA error {}", error);
}

GpuInfo describe_gpu(const SharedObject& library, int ordinal) {
  GpuInfo gpu;
  gpu.index = ordinal;
  int device = 0;
  auto* get = library.find<DeviceGet>("cuDeviceGet");
  if (get == nullptr || get(&device, ordinal) != 0) return gpu;

  std::array<char, 256> name{};
  auto* get_name = library.find<DeviceGetName>("cuDeviceGetName");
  if (get_name != nullptr && get_name(name.data(), static_cast<int>(name.size()), device) == 0) {
    gpu.name = name.data();
  }
  std::size_t bytes = 0;
  auto* total_memory = library.find<DeviceTotalMem>("cuDeviceTotalMem_v2");
  if (total_memory != nullptr && total_memory(&bytes, device) == 0) {
    gpu.memory_bytes = static_cast<std::int64_t>(bytes);
  }
  auto* attribute = library.find<DeviceGetAttribute>("cuDeviceGetAttribute");
  if (attribute != nullptr) {
    attribute(&gpu.multiprocessors, kMultiprocessorCount, device);
    attribute(&gpu.compute_major, kComputeCapabilityMajor, device);
    attribute(&gpu.compute_minor, kComputeCapabilityMinor, device);
  }
  return gpu;
}

Component missing(std::string reason) { return {.available = false, .detail = std::move(reason)}; }

}  // namespace

DriverProbe probe_driver(const std::string& name) {
  const SharedObject library(name);
  if (!library.is_open())
    return {missing(fmt::format("no NVIDIA driver: {}", library.error())), {}};

  auto* init = library.find<Init>("cuInit");
  auto* get_version = library.find<DriverGetVersion>("cuDriverGetVersion");
  auto* get_count = library.find<DeviceGetCount>("cuDeviceGetCount");
  if (init == nullptr || get_version == nullptr || get_count == nullptr) {
    return {missing(fmt::format("{} is not a CUDA driver: it lacks cuInit", name)), {}};
  }
  int version = 0, count = 0;
  if (const int error = get_version(&version); error != 0) {
    return {missing(fmt::format("cuDriverGetVersion: {}", error_text(library, error))), {}};
  }
  const std::string text = fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
  if (int error = init(0); error != 0 || (error = get_count(&count)) != 0) {
    return {missing(fmt::format("{} driver, but: {}", text, error_text(library, error))), {}};
  }
  DriverProbe probe{{.available = true, .detail = text}, {}};
  for (int i = 0; i < count; ++i) probe.gpus.push_back(describe_gpu(library, i));
  return probe;
}

Component probe_nvrtc() {
  const std::string& chosen = core::options().nvrtc_library;
  const std::vector<std::string> names =
      chosen.empty() ? std::vector<std::string>{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}
                     : std::vector<std::string>{chosen};
  std::string reason;
  for (const std::string& name : names) {
    const SharedObject library(name);
    auto* get_version = library.find<NvrtcVersion>("nvrtcVersion");
    int major = 0, minor = 0;
    if (get_version != nullptr && get_version(&major, &minor) == 0) {
      return {.available = true, .detail = fmt::format("NVRTC {}.{} ({})", major, minor, name)};
    }
    if (reason.empty()) {
      reason = library.is_open() ? fmt::format("{} is not NVRTC: it lacks nvrtcVersion", name)
                                 : library.error();
    }
  }
  return missing(fmt::format("no NVRTC: {}", reason));
}

}  // namespace octofold::cuda
