// Activations on the CPU, on checked matrices: the values that casts read.
#pragma once

#include <cstddef>
#include <vector>

#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

namespace octofold::cpu {

/// A row-major matrix of its own.
struct OwnedMatrix {
  std::vector<std::byte> memory;
  TensorView view;
};

/// The values of FP8 codes and their scales, as dequantize() has them.
OwnedMatrix dequantized(const ScaledTensorView& x, DType dtype);

/// activation(x) [rows, K] in the dtype of x: worked out in FP64, rounded to FP32 and then to that.
OwnedMatrix activation(const TensorView& x, Activation activation, GateLayout layout);

/// The gradient by x, of its shape and dtype, likewise.
OwnedMatrix activation_gradient(const TensorView& gradient, const TensorView& x,
                                Activation activation, GateLayout layout);

}  // namespace octofold::cpu
