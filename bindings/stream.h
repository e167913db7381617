// CUDA streams on their way in.
#pragma once

#include <cstdint>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/optional.h>

#include "octofold/stream.h"

namespace octofold::bindings {

using OptionalStream = tvm::ffi::Optional<int64_t>;

/// The stream with this handle; without one the stream that the tensor's framework is working on,
/// where tvm-ffi can ask it (torch), else the legacy default stream.
inline Stream stream_of(const OptionalStream& handle, const tvm::ffi::TensorView& tensor) {
  if (handle) return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(*handle))};
  const DLDevice device = tensor.device();
  if (device.device_type == kDLCPU || device.device_type == kDLExtDev) return {};
  return {TVMFFIEnvGetStream(device.device_type, device.device_id)};
}

}  // namespace octofold::bindings
