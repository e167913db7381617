// Products: what their arguments have to be, and how they are run. gemm(), grouped_gemm() and
// gated_gemm() are spellings of one core::Product, those of FP8 weights and numbers of one
// core::WeightOnlyProduct.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octofold/dot.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "core/product.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// The name that use_candidate() has set for this thread.
const std::string& used_candidate();

/// Throws where scales vary along K and accumulation is to be fast.
void require_accumulation(const core::Arguments& check, Granularity a, Granularity b, bool fast);

/// Checks a matrix 'c' beside a checked out, which it may be.
void check_c(const core::Arguments& check, const TensorView& c, const MutableTensorView& out);

/// Checks matrices [M, K] and [N, K], arguments 'a' and 'b'.
void check_operands(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b);

/// Throws unless the argument has as many columns as the other operand.
void require_depth(const core::Arguments& check, std::string_view argument, const TensorView& given,
                   std::string_view other, const TensorView& matrix);

/// Checks the type of out, a matrix, and that it is apart from all inputs, of which there is at
/// least one.
void check_output(const core::Arguments& check, const MutableTensorView& out,
                  std::span<const CastInput> inputs);

/// Checks a bias, where there is one, beside a checked out.
void check_bias(const core::Arguments& check, const std::optional<TensorView>& bias,
                const MutableTensorView& out);

/// [..., N]: of a result or what is added to it, whose leading dimensions are those of `a`
/// [..., K].
void require_shape_of_result(const core::Arguments& check, std::string_view argument,
                             const TensorView& tensor, const TensorView& a, std::int64_t columns);

/// Numbers as they are, or FP8 codes with scales, as a matrix and a scale for it: checked, and
/// among `inputs`.
DotOperand flat_operand(const core::Arguments& check, std::string_view argument,
                        const DotOperand& given, Inputs& inputs);

/// On the device of a checked product.
void run(std::string_view operation, const core::Product& product, Stream stream);
void run(std::string_view operation, const core::WeightOnlyProduct& product, Stream stream);

}  // namespace octofold::ops
