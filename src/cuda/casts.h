// Casts and conversions on a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/casts.h"

#include "core/scale_layout.h"
#include "cuda/device.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/norm_operands.h"

namespace octofold::cuda {

/// What is cast: x itself, or what a source makes of x, and of the gradient where it takes one.
/// Matrices of as many rows, but for an x whose rows are gathered.
struct CastInput {
  config::CastSource source{};
  TensorView x{};
  core::ScaleAccess<const float> x_scale{};  ///< of an x in FP8
  TensorView gradient{};
  /// Of what is normed: the statistics of x's rows, and the operands, in vectors or not.
  const float* rstd = nullptr;
  const float* mean = nullptr;
  config::NormOperands norm{};
  bool norm_is_aligned = true;
  /// Of what is gathered: int32, a place for each row that is cast, so many places to a row of x;
  /// and their factors.
  std::optional<TensorView> sources{};
  std::int64_t slots = 1;
  std::optional<TensorView> factors{};
};

/// On checked matrices that lie on `device`: the targets that there are, from one read of the
/// input.
/// Queues one kernel, or four where a scale is worked out that is not known before all of x is
/// read, and another for what is worked out of columns; the first call of a problem also plans it
/// and loads its kernels.
void quantize(Device& device, const CastInput& input, const CastTargets& out,
              const config::CastFormat& format, ScaleSource scales, Stream stream);

/// octofold::dequantize() on checked arguments that lie on `device`.
void dequantize(Device& device, const ScaledTensorView& x, const MutableTensorView& out,
                Stream stream);

/// octofold::convert() on checked arguments of rank 2 that lie on `device`.
void convert(Device& device, const TensorView& x, const MutableTensorView& out, Overflow overflow,
             Stream stream);

}  // namespace octofold::cuda
