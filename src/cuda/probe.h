// What CUDA offers on this machine. Opens libcuda and NVRTC at run time; needs no toolkit.
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

/// Looks for NVRTC: the file that OCTOFOLD_NVRTC names, else the system's, newest first.
Component probe_nvrtc();

}  // namespace octofold::cuda
