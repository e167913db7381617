// The probe of this machine's CUDA driver and what it offers.
#pragma once

#include <string>
#include <vector>

#include "octofold/info.h"

namespace octofold::cuda {

struct DriverProbe {
  Component driver;
  std::vector<GpuInfo> gpus;  // `backend` is left to the caller
};

/// Asks the driver `library` for its version and devices; no context is created.
DriverProbe probe_driver(const std::string& library = "libcuda.so.1");

}  // namespace octofold::cuda
