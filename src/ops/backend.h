// The choice of the backend that an operation runs on.
#pragma once

#include <string_view>

#include "octofold/tensor.h"

#include "core/check.h"
#include "cuda/device.h"
#include "plan/operands.h"

namespace octofold::ops {

constexpr bool is_on_cpu(Device device) { return device.type == DeviceType::kCpu; }

/// True if there is anything to do for an operation that has checked its arguments.
constexpr bool has_memory(Device device) { return device.type != DeviceType::kNone; }

/// The GPU that tensors lie on. Throws Error that names `operation` and the device, and says why
/// Octofold cannot use it: no driver, one that is too old, no such device, a forked process,
/// no memory.
cuda::Device& gpu(std::string_view operation, Device device);

inline plan::Form form_of(const ScaledTensorView& tensor) {
  return plan::form_of(tensor.granularity);
}

/// Throws unless the operand is of a form that its rule has.
void require_scales(const core::Arguments& check, std::string_view argument,
                    const plan::OperandRule& rule, plan::Form form);

}  // namespace octofold::ops
