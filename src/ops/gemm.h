// What gemm() takes, apart from its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "octofold/gemm_form.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// Throws Error(kInvalidArgument), in the name of `operation`, for a form that gemm() has not.
void require_form(std::string_view operation, const GemmForm& form);

/// That no scales vary along K where accumulation is to be fast.
void require_accumulation(const core::Arguments& check, Granularity a, Granularity b, bool fast);

/// Of a matrix 'c', beside a checked out that it may be.
void check_c(const core::Arguments& check, const TensorView& c, const MutableTensorView& out);

/// Of matrices [M, K] and [N, K], arguments 'a' and 'b'.
void check_operands(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b);

/// That the argument has as many columns as the other operand.
void require_depth(const core::Arguments& check, std::string_view argument, const TensorView& given,
                   std::string_view other, const TensorView& matrix);

/// Of out as a matrix: its type, and that it is apart from all inputs, of which there is at least
/// one.
void check_output(const core::Arguments& check, const MutableTensorView& out,
                  std::span<const CastInput> inputs);

/// Of a bias, where there is one, beside a checked out.
void check_bias(const core::Arguments& check, const std::optional<TensorView>& bias,
                const MutableTensorView& out);

/// [..., N]: of a result or what is added to it, whose leading dimensions are those of `a`
/// [..., K].
void require_shape_of_result(const core::Arguments& check, std::string_view argument,
                             const TensorView& tensor, const TensorView& a, std::int64_t columns);

}  // namespace octofold::ops
