// Products of numbers and FP8 weights: what their arguments have to be, and how they are run.
#pragma once

#include <string_view>

#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "core/weight_only_product.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// Checks 'w', a matrix on `device`, which joins the inputs.
void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   Inputs& inputs);

/// A float16 or bfloat16 tensor that is read, as a matrix; it joins the inputs.
TensorView checked_halves(const core::Arguments& check, std::string_view argument,
                          const TensorView& given, Inputs& inputs);

/// Throws unless 'gradient', a matrix, has a column for each of so many rows of 'w'.
void require_columns_of_gradient(const core::Arguments& check, const TensorView& gradient,
                                 std::int64_t rows);

/// On the device of a checked product.
void run(std::string_view operation, const core::WeightOnlyProduct& product, Stream stream);

}  // namespace octofold::ops
