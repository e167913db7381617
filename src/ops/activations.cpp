#include "octofold/activations.h"

#include <array>
#include <vector>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/activations.h"
#include "cpu/casts.h"
#include "cuda/casts.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"

namespace octofold {
namespace {

using config::CastSource;
using config::SourceKind;

TensorView checked_input(const core::Arguments& check, const TensorView& x, Activation activation,
                         GateLayout layout) {
  check.require_enumerator("activation", activation);
  check.require_enumerator("layout", layout);
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  if (is_gated(activation) && source.shape[1] % 2 != 0) {
    check.fail(
        "x",
        core::format("an even last dimension, gate and up, as {} takes them", name(activation)),
        core::describe(x));
  }
  return source;
}

std::vector<std::int64_t> activation_shape(const TensorView& x, Activation activation) {
  const auto shape = ops::shape_of(x);
  std::vector<std::int64_t> result(shape.begin(), shape.end());
  if (is_gated(activation)) result.back() /= 2;
  return result;
}

}  // namespace

void quantize_activation(const TensorView& x, Activation activation, GateLayout layout,
                         const CastTargets& out, const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_activation");
  const TensorView source = checked_input(check, x, activation, layout);
  const std::array inputs{ops::CastInput{"x", source}};
  const CastTargets targets =
      ops::checked_targets(check, out, activation_shape(x, activation), inputs, options.scales);
  const config::CastFormat format = ops::format_of(check, options, x.dtype, targets);
  if (ops::is_on_cpu(x.device)) {
    return cpu::quantize(cpu::activation(source, activation, layout).view, targets, format,
                         options.scales);
  }
  cuda::quantize(
      ops::gpu("quantize_activation", x.device),
      {.source = CastSource::of(SourceKind::kActivation, activation, layout), .x = source}, targets,
      format, options.scales, stream);
}

void quantize_activation_gradient(const TensorView& gradient, const TensorView& x,
                                  Activation activation, GateLayout layout, const CastTargets& out,
                                  const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_activation_gradient");
  const TensorView source = checked_input(check, x, activation, layout);
  check.require_shape("gradient", gradient, activation_shape(x, activation));
  const TensorView by_value = core::flatten(check, "gradient", gradient);
  check.require_input_matrix("gradient", by_value);
  check.require_dtype("gradient", by_value, {x.dtype});
  check.require_same_device("gradient", by_value, x.device);
  const std::array inputs{ops::CastInput{"x", source}, ops::CastInput{"gradient", by_value}};
  const CastTargets targets =
      ops::checked_targets(check, out, ops::shape_of(x), inputs, options.scales);
  const config::CastFormat format = ops::format_of(check, options, x.dtype, targets);
  if (ops::is_on_cpu(x.device)) {
    return cpu::quantize(cpu::activation_gradient(by_value, source, activation, layout).view,
                         targets, format, options.scales);
  }
  cuda::quantize(ops::gpu("quantize_activation_gradient", x.device),
                 {.source = CastSource::of(SourceKind::kActivationGradient, activation, layout),
                  .x = source,
                  .gradient = by_value},
                 targets, format, options.scales, stream);
}

}  // namespace octofold
