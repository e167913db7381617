// The operands of products of groups, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "octofold/grouped_gemm.h"

#include "core/check.h"
#include "core/product.h"

namespace octofold::ops {

/// A matrix of its own for each group, [count, rows, columns], as the one [count · rows, columns]
/// with the scales of the first.
struct Stack {
  ScaledTensorView flat;
  std::int64_t count, rows;
  std::int64_t scale_stride;  ///< elements from the scales of one group to those of the next
};

/// By the table of grouped_gemm.h.
Stack checked_stack(const core::Arguments& check, std::string_view argument,
                    const ScaledTensorView& given);

/// Groups of so many rows, each of which is multiplied by one of the stack, on this device.
core::Groups row_groups(const core::Arguments& check, const RowGroups& groups, std::int64_t rows,
                        const Stack& stack, Device device);

/// Groups with room for the rows of `given`, [count, rows, columns].
core::Groups masked_groups(const core::Arguments& check, const MaskedGroups& groups,
                           std::string_view argument, const TensorView& given,
                           std::string_view stack_argument, const Stack& stack);

/// A bias [groups, columns of out] as a vector, beside a checked out.
std::optional<TensorView> bias_of_groups(const core::Arguments& check,
                                         const std::optional<TensorView>& given,
                                         std::int64_t groups, const MutableTensorView& out);

/// Checks operands whose rows are in groups one after another, and sets them and the groups of
/// `product`. Returns the rows of a group's b.
std::int64_t set_groups_of_rows(const core::Arguments& check, const ScaledTensorView& a,
                                const ScaledTensorView& b, const RowGroups& groups,
                                core::Product& product);

}  // namespace octofold::ops
