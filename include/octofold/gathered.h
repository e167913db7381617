// Rows that are gathered, cast to FP8 on the way: what a group of rows (an expert) multiplies.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/casts.h"
#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

/// A matrix [rows, K] whose row p is row sources[p] / slots of x, maybe times factors[sources[p]].
/// Each row of x has so many flat places (slots): of token t that goes to k experts, t · k … t · k
/// + k - 1.
struct GatheredRows {
  /// [..., K] float32, float16 or bfloat16; columns contiguous, any row stride. Leading dimensions
  /// are more rows.
  TensorView x{};
  /// int32 [rows], contiguous. A place outside of x's stands for no row: none is written in the
  /// cast of rows (nor its scale, where it has one of its own); in the transpose it counts as
  /// zeros. On the CPU that is -1, and others throw kInvalidArgument.
  TensorView sources{};
  std::int64_t slots = 1;
  /// float32 [..., slots], contiguous, with the leading dimensions of x. Products are FP32, rounded
  /// to nearest even in the type of x before they are cast.
  std::optional<TensorView> factors{};
};

/// Casts the matrix, which is nowhere in memory, and gets the bits of quantize() of it.
///
/// out: as in quantize(), of a matrix [rows, K]; `offsets` too. No `columns`.
/// Throws Error as quantize() does.
OCTOFOLD_API void quantize_gathered(const GatheredRows& rows, const CastTargets& out,
                                    const QuantizeOptions& options = {}, Stream stream = {});

}  // namespace octofold
