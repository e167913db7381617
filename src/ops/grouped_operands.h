// What products of groups take.
#pragma once

#include <cstdint>

#include "octofold/grouped_gemm.h"

#include "core/check.h"
#include "core/product.h"

namespace octofold::ops {

/// Checks operands whose rows are in groups one after another, and sets them and the groups of
/// `product`. Returns the rows of a group's b.
std::int64_t set_groups_of_rows(const core::Arguments& check, const ScaledTensorView& a,
                                const ScaledTensorView& b, const RowGroups& groups,
                                core::Product& product);

}  // namespace octofold::ops
