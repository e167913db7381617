// What gated products have in common, of groups or not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "octofold/cast_targets.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "ops/cast_target.h"

namespace octofold::ops {

/// That arguments 'activation' and 'out' are of a gated product.
void require_gated_activation(const core::Arguments& check, Activation activation,
                              const CastTarget& out);

/// Of checked operands a [M, K] and b, of which `rows` rows, gates and ups, make a row of out: that
/// they suit each other, and out [leading…, rows / 2] as matrices, checked and apart from all
/// inputs.
CastTarget checked_gated_output(const core::Arguments& check, const ScaledTensorView& a,
                                const ScaledTensorView& b, std::int64_t rows,
                                std::vector<std::int64_t> leading, const CastTarget& out,
                                std::span<const CastInput> inputs);

}  // namespace octofold::ops
