// Activations on the CPU, on checked matrices: the values that casts read.
#pragma once

#include <cstdint>

#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

#include "cpu/matrices.h"

namespace octofold::cpu {

/// activation(x) [rows, K] in the dtype of x: worked out in FP64, rounded to FP32 and then to that.
OwnedMatrix activation(const TensorView& x, Activation activation, GateLayout layout);

/// The gradient by x, of its shape and dtype, likewise.
OwnedMatrix activation_gradient(const TensorView& gradient, const TensorView& x,
                                Activation activation, GateLayout layout);

/// Σ gradient[row] · activation(x)[row] in FP64; gate and up are halves.
double activation_dot(const TensorView& gradient, const TensorView& x, std::int64_t row,
                      Activation activation);

}  // namespace octofold::cpu
