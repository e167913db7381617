#include "arguments.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>

#include "export.h"

namespace octofold::bindings {
namespace {

struct DTypePair {
  DLDataType dlpack;
  DType dtype;
};

constexpr DTypePair kDTypes[] = {
    {{kDLFloat, 32, 1}, DType::kFloat32},   {{kDLFloat, 16, 1}, DType::kFloat16},
    {{kDLBfloat, 16, 1}, DType::kBFloat16}, {{kDLFloat8_e4m3fn, 8, 1}, DType::kE4M3},
    {{kDLFloat8_e5m2, 8, 1}, DType::kE5M2}, {{kDLInt, 32, 1}, DType::kInt32},
};

constexpr bool is_same(DLDataType left, DLDataType right) {
  return left.code == right.code && left.bits == right.bits && left.lanes == right.lanes;
}

std::string text_of(DLDataType dtype) {
  try {
    return tvm::ffi::DLDataTypeToString(dtype);
  } catch (const tvm::ffi::Error&) {  // it knows no complex numbers
    return "DLPack type code " + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits) +
           " bits";
  }
}

[[noreturn]] void fail(std::string_view operation, std::string_view argument,
                       std::string_view expected, const std::string& got) {
  std::string message(operation);
  message.append(": argument '").append(argument).append("': expected ").append(expected);
  message.append(", got ").append(got);
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::optional<Device> device_of(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost: return Device{DeviceType::kCpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged: return Device{DeviceType::kCuda, device.device_id};
    case kDLExtDev: return Device{DeviceType::kNone, 0};  // bindings/bind.cpp makes them
    default: return std::nullopt;
  }
}

}  // namespace

MutableTensorView view_of(std::string_view operation, std::string_view argument,
                          const tvm::ffi::TensorView& tensor, std::string_view dtypes) {
  const auto invalid = [&](std::string_view expected, const std::string& got) {
    fail(operation, argument, expected, got);
  };
  const DTypePair* known = nullptr;
  for (const DTypePair& pair : kDTypes) {
    if (is_same(pair.dlpack, tensor.dtype())) known = &pair;
  }
  if (known == nullptr) {
    invalid(std::string("dtype ").append(dtypes), text_of(tensor.dtype()));
  }
  const std::optional<Device> device = device_of(tensor.device());
  if (!device) {
    invalid("a tensor on the CPU or a CUDA device",
            "one on DLPack device type " + std::to_string(tensor.device().device_type));
  }
  if (tensor.ndim() > kMaxRank) {
    invalid("at most " + std::to_string(kMaxRank) + " dimensions", std::to_string(tensor.ndim()));
  }

  MutableTensorView view{.dtype = known->dtype, .rank = tensor.ndim(), .device = *device};
  const auto shape = tensor.shape(), strides = tensor.strides();
  for (std::int32_t i = 0; i < view.rank; ++i) {
    view.shape[i] = shape[i];
    view.strides[i] = strides[i];
  }
  view.data = static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
  return view;
}

tvm::ffi::Tensor reinterpret(const tvm::ffi::Tensor& tensor, DLDataType dtype) {
  if (tensor.dtype().bits * tensor.dtype().lanes != dtype.bits * dtype.lanes) {
    fail("reinterpret", "dtype", "a dtype as large as " + text_of(tensor.dtype()), text_of(dtype));
  }
  // A tensor without dimensions may have no strides, which tvm-ffi does not expect.
  constexpr std::int64_t kNone = 0;
  const bool has_dimensions = tensor.ndim() > 0;
  const auto none = tvm::ffi::ShapeView(&kNone, 0);
  tvm::ffi::Tensor view = tensor.as_strided(has_dimensions ? tensor.shape() : none,
                                            has_dimensions ? tensor.strides() : none);
  // A new object that nobody else has seen: its dtype may still be set.
  const_cast<DLTensor*>(view.GetDLTensorPtr())->dtype = dtype;
  return view;
}

OCTOFOLD_EXPORT(reinterpret)

}  // namespace octofold::bindings
