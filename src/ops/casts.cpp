#include "octofold/casts.h"

#include <array>
#include <span>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "cpu/casts.h"
#include "cpu/convert.h"
#include "cuda/casts.h"
#include "kernels/config/cast_config.h"
#include "ops/backend.h"

namespace octofold {
namespace {

const config::CastRule& rule_of(CastProfile profile) {
  switch (profile) {
    case CastProfile::kDeepGemm: return config::kDeepGemmRule;
    case CastProfile::kVllm: return config::kVllmRule;
    case CastProfile::kVllmPerToken: return config::kVllmPerTokenRule;
    case CastProfile::kTransformerEngine: return config::kTransformerEngineRule;
    case CastProfile::kTorchAo: return config::kTorchAoRule;
    case CastProfile::kTorchAoTensor: return config::kTorchAoTensorRule;
    case CastProfile::kDeepSeek: return config::kDeepSeekRule;
    case CastProfile::kCompressedTensors: return config::kCompressedTensorsRule;
    case CastProfile::kCompressedTensors012: return config::kCompressedTensors012Rule;
  }
  core::fail(ErrorCode::kInvalidArgument, "quantize: profile {} does not exist",
             static_cast<int>(profile));
}

std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

TensorView transposed(TensorView matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

// What convert() takes: all but integers.
constexpr std::initializer_list<DType> kComputable = {DType::kFloat32, DType::kFloat16,
                                                      DType::kBFloat16, DType::kE4M3, DType::kE5M2};

// An unscaled result as a matrix; `x` is flat, `shape` its own.
MutableTensorView checked_output(const core::Arguments& check, const MutableTensorView& out,
                                 std::span<const std::int64_t> shape, const TensorView& x) {
  check.require_shape("out", out, shape);
  const MutableTensorView target = core::flatten(check, "out", out);
  check.require_matrix("out", target);
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", x);
  return target;
}

// A target as matrices, checked against `shape`, that of its codes, and against the flat x.
MutableScaledTensorView checked_target(const core::Arguments& check, const std::string& argument,
                                       const MutableScaledTensorView& target,
                                       std::span<const std::int64_t> shape, const TensorView& x,
                                       ScaleSource scales) {
  check.require_shape(argument, target.data, shape);
  const MutableScaledTensorView out = core::flatten(check, argument, target);
  check.require_scaled(argument, out);
  check.require_same_device(argument, out.data, x.device);
  check.require_disjoint(argument, out.data, "x", x);
  check.require_disjoint(argument + ".scale", out.scale, argument, out.data);
  if (scales == ScaleSource::kComputed) {
    check.require_disjoint(argument + ".scale", out.scale, "x", x);
    const bool any = out.scale.element_count() > 0;
    for (int i = 0; any && i < out.scale.rank; ++i) {
      if (out.scale.shape[i] > 1 && out.scale.strides[i] == 0) {
        check.fail(argument + ".scale", "scales that do not overlap", core::describe(out.scale));
      }
    }
  }
  return out;
}

void require_alike_and_apart(const core::Arguments& check, const MutableScaledTensorView& rows,
                             const MutableScaledTensorView& transposed, ScaleSource scales) {
  check.require_dtype("out.transposed", transposed.data, {rows.data.dtype});
  if (transposed.granularity != rows.granularity) {
    check.fail("out.transposed",
               core::format("granularity {}, as 'out.rows'", name(rows.granularity)),
               name(transposed.granularity));
  }
  check.require_disjoint("out.transposed", transposed.data, "out.rows", rows.data);
  check.require_disjoint("out.transposed", transposed.data, "out.rows.scale", rows.scale);
  check.require_disjoint("out.rows", rows.data, "out.transposed.scale", transposed.scale);
  if (scales == ScaleSource::kGiven) return;  // both may read the same
  check.require_disjoint("out.transposed.scale", transposed.scale, "out.rows.scale", rows.scale);
}

// The targets as matrices; `x` is flat, `shape` its own.
CastTargets checked_targets(const core::Arguments& check, const CastTargets& out,
                            std::span<const std::int64_t> shape, const TensorView& x,
                            ScaleSource scales) {
  if (!out.rows && !out.transposed) check.fail("out", "rows, transposed or both", "neither");
  CastTargets targets;
  if (out.rows) targets.rows = checked_target(check, "out.rows", *out.rows, shape, x, scales);
  if (out.transposed) {
    const std::array transposed_shape{x.shape[1], x.shape[0]};
    targets.transposed =
        checked_target(check, "out.transposed", *out.transposed, transposed_shape, x, scales);
  }
  if (targets.rows && targets.transposed) {
    require_alike_and_apart(check, *targets.rows, *targets.transposed, scales);
  }
  return targets;
}

config::CastFormat format_of(const core::Arguments& check, const QuantizeOptions& options, DType in,
                             const MutableScaledTensorView& out) {
  check.require_enumerator("overflow", options.overflow);
  const config::CastRule& rule = rule_of(options.profile);
  const bool given = options.scales == ScaleSource::kGiven;
  if (given && options.power_of_two.value_or(false)) {
    check.fail("power_of_two", "unset or false, as given scales are taken as they are", "true");
  }
  return {.in = in,
          .out = out.data.dtype,
          .granularity = out.granularity,
          .rule = rule,
          .power_of_two = !given && options.power_of_two.value_or(rule.power_of_two_by_default),
          .saturate = options.overflow == Overflow::kSaturate};
}

}  // namespace

void quantize(const TensorView& x, const CastTargets& out, const QuantizeOptions& options,
              Stream stream) {
  const core::Arguments check("quantize");
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const CastTargets targets = checked_targets(check, out, shape_of(x), source, options.scales);
  const config::CastFormat format =
      format_of(check, options, x.dtype, targets.rows ? *targets.rows : *targets.transposed);
  if (!ops::is_on_cpu(x.device)) {
    return cuda::quantize(ops::gpu("quantize", x.device), source, targets, format, options.scales,
                          stream);
  }
  if (targets.rows) cpu::quantize(source, *targets.rows, format, options.scales);
  if (targets.transposed) {
    cpu::quantize(transposed(source), *targets.transposed, format, options.scales);
  }
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("dequantize");
  const ScaledTensorView source = core::flatten(check, "x", x);
  check.require_scaled_input("x", source);
  const MutableTensorView target = checked_output(check, out, shape_of(x.data), source.data);
  check.require_dtype("out", target, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_disjoint("out", target, "x.scale", source.scale);
  if (ops::is_on_cpu(out.device)) return cpu::dequantize(source, target);
  cuda::dequantize(ops::gpu("dequantize", out.device), source, target, stream);
}

void convert(const TensorView& x, const MutableTensorView& out, Overflow overflow, Stream stream) {
  const core::Arguments check("convert");
  check.require_enumerator("overflow", overflow);
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, kComputable);
  const MutableTensorView target = checked_output(check, out, shape_of(x), source);
  check.require_dtype("out", target, kComputable);
  if (ops::is_on_cpu(x.device)) return cpu::convert(source, target, overflow);
  cuda::convert(ops::gpu("convert", x.device), source, target, overflow, stream);
}

}  // namespace octofold
