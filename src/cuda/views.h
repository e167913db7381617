// Checked views as the parameters of kernels have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/tensor.h"

#include "core/scale_layout.h"
#include "kernels/cast/config/norm_form.h"
#include "kernels/cast/config/params.h"
#include "plan/tma.h"

namespace octofold::cuda {

using plan::is_aligned;

/// An absent matrix counts as aligned.
template <typename View>
bool is_aligned(const std::optional<View>& matrix, std::int64_t bytes) {
  return !matrix || is_aligned(*matrix, bytes);
}

inline bool codes_are_aligned(const std::optional<CastTarget>& out) {
  return !out || is_aligned(out->data, 8);
}

/// 0 where it is left out.
template <typename View>
std::int64_t stride_of(const std::optional<View>& matrix) {
  return matrix ? matrix->strides[0] : 0;
}

/// Null where it is left out.
inline const float* floats_of(const std::optional<TensorView>& tensor) {
  return tensor ? static_cast<const float*>(tensor->data) : nullptr;
}
inline float* floats_of(const std::optional<MutableTensorView>& tensor) {
  return tensor ? static_cast<float*>(tensor->data) : nullptr;
}

/// How many places gathered rows may come from, of those that an int32 can name.
inline unsigned places_of(const GatheredRows& source) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const std::int64_t rows = source.x.shape[0];
  return static_cast<unsigned>(rows > kMost / source.slots ? kMost : rows * source.slots);
}

inline config::GivenAmax amax_of(const std::optional<CastTarget>& out) {
  if (!out || !out->amax) return {};
  const core::ScaleAccess<const float> amax = core::amax_access(*out);
  return {amax.data, amax.row_stride};
}

inline config::CastTarget target_of(const std::optional<CastTarget>& out) {
  if (!out) return {};
  const core::ScaleAccess<float> scale = core::scale_access(*out);
  return {.codes = static_cast<unsigned char*>(out->data.data),
          .codes_stride = out->data.strides[0],
          .scale = scale.data,
          .scale_row_stride = scale.row_stride,
          .scale_col_stride = scale.col_stride};
}

// ---- Operands of norms.

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
