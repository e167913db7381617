// The groups of a product, as Python names them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>
#include <type_traits>

#include "octofold/error.h"
#include "octofold/grouped_gemm.h"

#include "cast_arguments.h"
#include "tensor.h"

namespace octofold::bindings {

/// One of the variant's kinds. `numbers`: offsets or counts.
template <typename Kinds>
Kinds groups_of(const CastOperation& operation, std::string_view kind,
                const tvm::ffi::TensorView& numbers,
                const tvm::ffi::Optional<std::int64_t>& expected_rows,
                const OptionalText& layout = {}) {
  constexpr bool kHasDepth = std::is_same_v<Kinds, Groups>;
  const auto view = [&](std::string_view argument) {
    return view_of(operation.name, argument, numbers, "int32");
  };
  if (kind == "rows") return RowGroups{view("groups.offsets")};
  if constexpr (kHasDepth) {
    if (kind == "depth") {
      return DepthGroups{view("groups.offsets"), parse_group_layout(view_of(layout.value()))};
    }
  }
  if (kind != "masked") {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(operation.name) + ": argument 'groups': expected " +
                    (kHasDepth ? "rows, masked or depth" : "rows or masked") + ", got " +
                    std::string(kind));
  }
  MaskedGroups masked{.counts = view("groups.counts")};
  if (expected_rows.has_value()) masked.expected_rows = *expected_rows;
  return masked;
}

}  // namespace octofold::bindings
