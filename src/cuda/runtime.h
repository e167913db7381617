// The way in: the process's driver and its devices, and what they offer.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "octofold/info.h"

#include "cuda/device.h"
#include "cuda/driver.h"

namespace octofold::cuda {

/// Safe to use from several threads. Devices are set up when first asked for.
class Runtime {
 public:
  /// Opens a driver as Driver does; the devices' kernels are of `source`.
  Runtime(const std::string& driver, KernelSource source);

  /// Throws Error(kInvalidArgument) for an index that no GPU has.
  Device& device(int index);

 private:
  struct Slot {
    std::once_flag once;
    std::optional<Device> device;
  };

  Driver driver_;
  KernelSource source_;
  std::vector<Slot> slots_;
};

/// The device `index` of this process. The driver is opened by the first call and never closed:
/// work may be under way when the process ends. Throws Error(kUnavailable) without a usable driver,
/// and in a process that was forked after CUDA was used.
Device& device(int index);

struct DriverProbe {
  Component driver;
  std::vector<GpuInfo> gpus;  // `backend` is left to the caller
};

/// Asks the driver `library` for its version and devices; no context is created.
DriverProbe probe_driver(const std::string& library = "libcuda.so.1");

}  // namespace octofold::cuda
