#include "octofold/activations.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "cpu/activations.h"
#include "cpu/casts.h"
#include "cuda/casts.h"
#include "ops/backend.h"
#include "ops/cast_targets.h"
#include "ops/scales.h"

namespace octofold {
namespace {

using config::CastSource;
using config::SourceKind;

constexpr std::initializer_list<DType> kWide = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// x as it is given: what values are worked out from, and rounded to.
struct Input {
  TensorView x;  // a matrix
  DType dtype;
  // Of an x in FP8.
  std::optional<ScaledTensorView> scaled{};

  std::vector<ops::CastInput> inputs() const {
    std::vector<ops::CastInput> all{{"x", x}};
    if (scaled) all.push_back({"x.scale", scaled->scale});
    return all;
  }
  CastSource source(SourceKind kind, Activation activation, GateLayout layout) const {
    const CastSource source = CastSource::of(kind, activation, layout);
    return scaled ? source.of_codes(x.dtype, scaled->granularity) : source;
  }
  core::ScaleAccess<const float> scale() const {
    return scaled ? core::scale_access(*scaled) : core::ScaleAccess<const float>{};
  }
  // Its values, which the reference makes first.
  cpu::OwnedMatrix values() const {
    return scaled ? cpu::dequantized(*scaled, dtype) : cpu::OwnedMatrix{{}, x};
  }
};

void require_gate_and_up(const core::Arguments& check, const TensorView& x, Activation activation,
                         GateLayout layout) {
  check.require_enumerator("activation", activation);
  check.require_enumerator("layout", layout);
  if (is_gated(activation) && x.shape[x.rank - 1] % 2 != 0) {
    check.fail(
        "x",
        core::format("an even last dimension, gate and up, as {} takes them", name(activation)),
        core::describe(x));
  }
}

Input checked_input(const core::Arguments& check, const TensorView& x, Activation activation,
                    GateLayout layout) {
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, kWide);
  require_gate_and_up(check, x, activation, layout);
  return {source, x.dtype};
}

Input checked_input(const core::Arguments& check, const ScaledTensorView& x, DType dtype,
                    Activation activation, GateLayout layout) {
  const ScaledTensorView source = core::flatten(check, "x", x);
  check.require_enumerator("x.granularity", x.granularity);
  ops::require_scales(check, "x", plan::kActivated, ops::form_of(x));
  check.require_scaled_input("x", source);
  require_gate_and_up(check, x.data, activation, layout);
  return {source.data, dtype, source};
}

std::vector<std::int64_t> activation_shape(const TensorView& x, Activation activation) {
  const auto shape = ops::shape_of(x);
  std::vector<std::int64_t> result(shape.begin(), shape.end());
  if (is_gated(activation)) result.back() /= 2;
  return result;
}

void cast_activation(const core::Arguments& check, const Input& input,
                     std::span<const std::int64_t> shape, Activation activation, GateLayout layout,
                     const CastTargets& out, const QuantizeOptions& options, Stream stream) {
  const CastTargets targets =
      ops::checked_targets(check, out, shape, input.inputs(), options.scales);
  const config::CastFormat format = ops::format_of(check, options, input.dtype, targets);
  if (ops::is_on_cpu(input.x.device)) {
    const cpu::OwnedMatrix x = input.values();
    return cpu::quantize(cpu::activation(x.view, activation, layout).view, targets, format,
                         options.scales);
  }
  cuda::quantize(ops::gpu("quantize_activation", input.x.device),
                 {.source = input.source(SourceKind::kActivation, activation, layout),
                  .x = input.x,
                  .x_scale = input.scale()},
                 targets, format, options.scales, stream);
}

TensorView checked_gradient(const core::Arguments& check, const TensorView& gradient,
                            std::span<const std::int64_t> shape,
                            std::initializer_list<DType> dtypes, Device device) {
  check.require_shape("gradient", gradient, shape);
  const TensorView by_value = core::flatten(check, "gradient", gradient);
  check.require_input_matrix("gradient", by_value);
  check.require_dtype("gradient", by_value, dtypes);
  check.require_same_device("gradient", by_value, device);
  return by_value;
}

void cast_gradient(const core::Arguments& check, const TensorView& gradient, const Input& input,
                   std::span<const std::int64_t> shape, Activation activation, GateLayout layout,
                   const CastTargets& out, const QuantizeOptions& options, Stream stream) {
  std::vector<ops::CastInput> inputs = input.inputs();
  inputs.push_back({"gradient", gradient});
  const CastTargets targets = ops::checked_targets(check, out, shape, inputs, options.scales);
  const config::CastFormat format = ops::format_of(check, options, input.dtype, targets);
  if (ops::is_on_cpu(input.x.device)) {
    const cpu::OwnedMatrix x = input.values();
    return cpu::quantize(cpu::activation_gradient(gradient, x.view, activation, layout).view,
                         targets, format, options.scales);
  }
  cuda::quantize(ops::gpu("quantize_activation_gradient", input.x.device),
                 {.source = input.source(SourceKind::kActivationGradient, activation, layout),
                  .x = input.x,
                  .x_scale = input.scale(),
                  .gradient = gradient},
                 targets, format, options.scales, stream);
}

}  // namespace

void quantize_activation(const TensorView& x, Activation activation, GateLayout layout,
                         const CastTargets& out, const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_activation");
  const Input input = checked_input(check, x, activation, layout);
  cast_activation(check, input, activation_shape(x, activation), activation, layout, out, options,
                  stream);
}

void quantize_activation(const ScaledTensorView& x, DType dtype, Activation activation,
                         GateLayout layout, const CastTargets& out, const QuantizeOptions& options,
                         Stream stream) {
  const core::Arguments check("quantize_activation");
  check.require_enumerator("dtype", dtype);
  if (std::ranges::find(kWide, dtype) == kWide.end()) {
    check.fail("dtype", "float32, float16 or bfloat16, to which the values of x are rounded",
               name(dtype));
  }
  const Input input = checked_input(check, x, dtype, activation, layout);
  cast_activation(check, input, activation_shape(x.data, activation), activation, layout, out,
                  options, stream);
}

void quantize_activation_gradient(const TensorView& gradient, const TensorView& x,
                                  Activation activation, GateLayout layout, const CastTargets& out,
                                  const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_activation_gradient");
  const Input input = checked_input(check, x, activation, layout);
  const TensorView by_value =
      checked_gradient(check, gradient, activation_shape(x, activation), {x.dtype}, x.device);
  cast_gradient(check, by_value, input, ops::shape_of(x), activation, layout, out, options, stream);
}

void quantize_activation_gradient(const TensorView& gradient, const ScaledTensorView& x,
                                  Activation activation, GateLayout layout, const CastTargets& out,
                                  const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize_activation_gradient");
  const Input input = checked_input(check, x, gradient.dtype, activation, layout);
  const TensorView by_value =
      checked_gradient(check, gradient, activation_shape(x.data, activation), kWide, x.data.device);
  cast_gradient(check, by_value, input, ops::shape_of(x.data), activation, layout, out, options,
                stream);
}

}  // namespace octofold
