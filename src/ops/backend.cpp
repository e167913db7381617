#include "ops/backend.h"

#include "core/check.h"

namespace octofold::ops {

void require_backend(std::string_view operation, Device device) {
  if (device.type == DeviceType::kCpu) return;
  core::fail(
      ErrorCode::kUnavailable,
      "{}: the tensors are on cuda:{}, and this version of Octofold computes on the CPU only",
      operation, device.index);
}

}  // namespace octofold::ops
