// Operands of norms as the parameters of kernels have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "octofold/cast_sources.h"

#include "cuda/cast_views.h"
#include "kernels/cast/config/norm_form.h"

namespace octofold::cuda {

inline config::NormOperand kind_of(const std::optional<TensorView>& operand, DType in) {
  if (!operand) return config::NormOperand::kNone;
  return operand->dtype == in ? config::NormOperand::kInputType : config::NormOperand::kFloat32;
}

inline config::NormForm form_of(NormKind kind, const NormOperands& operands, DType in) {
  return {.kind = kind,
          .weight = kind_of(operands.weight, in),
          .bias = kind_of(operands.bias, in),
          .scale = kind_of(operands.ada_scale, in),
          .shift = kind_of(operands.ada_shift, in)};
}

template <typename View>
auto data_of(const std::optional<View>& tensor) {
  return tensor ? tensor->data : nullptr;
}

/// 1 where no operand tells batches apart.
inline std::int64_t batches_of(const NormOperands& operands) {
  if (operands.ada_scale) return operands.ada_scale->shape[0];
  return operands.ada_shift ? operands.ada_shift->shape[0] : 1;
}

inline config::NormOperands operands_of(const NormOperands& operands, std::int64_t rows) {
  return {.weight = data_of(operands.weight),
          .bias = data_of(operands.bias),
          .scale = data_of(operands.ada_scale),
          .scale_stride = stride_of(operands.ada_scale),
          .shift = data_of(operands.ada_shift),
          .shift_stride = stride_of(operands.ada_shift),
          .rows_per_batch = rows / std::max<std::int64_t>(batches_of(operands), 1)};
}

inline bool operands_are_aligned(const NormOperands& operands) {
  return is_aligned(operands.weight, 16) && is_aligned(operands.bias, 16) &&
         is_aligned(operands.ada_scale, 16) && is_aligned(operands.ada_shift, 16);
}

}  // namespace octofold::cuda
