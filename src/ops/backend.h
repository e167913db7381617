// The choice of the backend that an operation runs on.
#pragma once

#include <string_view>

#include "octofold/tensor.h"

#include "cuda/device.h"

namespace octofold::ops {

constexpr bool is_on_cpu(Device device) { return device.type == DeviceType::kCpu; }

/// True if there is anything to do for an operation that has checked its arguments.
constexpr bool has_memory(Device device) { return device.type != DeviceType::kNone; }

/// The GPU that tensors lie on. Throws Error that names `operation` and the device, and says why
/// Octofold cannot use it: no driver, one that is too old, no such device, a forked process,
/// no memory.
cuda::Device& gpu(std::string_view operation, Device device);

}  // namespace octofold::ops
