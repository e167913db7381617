// DLPack tensors as Octofold's views.
#pragma once

#include <string_view>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>

#include "octofold/tensor.h"

namespace octofold::bindings {

using OptionalTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;

/// The view of a DLPack tensor. Throws Error(kInvalidArgument), naming `operation` and `argument`,
/// for what no operation could take: a dtype, device or rank that Octofold does not know, data that
/// is not aligned to its elements. `dtypes` are those that the operation takes, in words.
MutableTensorView view_of(std::string_view operation, std::string_view argument,
                          const tvm::ffi::TensorView& tensor,
                          std::string_view dtypes = "float32, float16, bfloat16, e4m3 or e5m2");

/// The same memory, read as another dtype of the same size. NumPy cannot export the dtypes of
/// ml_dtypes: they come as integers, and this gives them their name back.
tvm::ffi::Tensor reinterpret(const tvm::ffi::Tensor& tensor, DLDataType dtype);

}  // namespace octofold::bindings
