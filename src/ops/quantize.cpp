#include "octofold/quantize.h"

#include <array>
#include <string>
#include <utility>

#include "core/check.h"
#include "cpu/convert.h"
#include "cpu/quantize.h"
#include "cuda/cast.h"
#include "kernels/config/cast_rule.h"
#include "ops/backend.h"

namespace octofold {
namespace {

const config::CastRule& rule_of(CastProfile profile) {
  switch (profile) {
    case CastProfile::kDeepGemm: return config::kDeepGemmRule;
    case CastProfile::kVllm: return config::kVllmRule;
    case CastProfile::kTransformerEngine: return config::kTransformerEngineRule;
    case CastProfile::kTorchAo: return config::kTorchAoRule;
    case CastProfile::kDeepSeek: return config::kDeepSeekRule;
    case CastProfile::kCompressedTensors: return config::kCompressedTensorsRule;
  }
  core::fail(ErrorCode::kInvalidArgument, "quantize: profile {} does not exist",
             static_cast<int>(profile));
}

TensorView transposed(TensorView matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

// What an output and x have to fulfil; `source` is x or its transpose, whose cast it is.
void require_output(const core::Arguments& check, const std::string& argument,
                    const MutableScaledTensorView& out, const TensorView& source,
                    const TensorView& x) {
  check.require_scaled(argument, out);
  check.require_shape(argument, out.data, {source.shape[0], source.shape[1]});
  check.require_same_device(argument, out.data, x.device);
  check.require_disjoint(argument, out.data, "x", x);
  check.require_disjoint(argument + ".scale", out.scale, "x", x);
  check.require_disjoint(argument + ".scale", out.scale, argument, out.data);
}

void require_input(const core::Arguments& check, const TensorView& x) {
  check.require_matrix("x", x);
  check.require_dtype("x", x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
}

// convert() takes vectors too: a vector is a matrix of one row.
template <typename View>
View as_matrix(View tensor) {
  if (tensor.rank != 1) return tensor;
  const std::int64_t size = tensor.shape[0];
  tensor.rank = 2;
  tensor.shape = {1, size};
  tensor.strides = {size, tensor.strides[0]};
  return tensor;
}

}  // namespace

void quantize(const TensorView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options, Stream stream) {
  const core::Arguments check("quantize");
  require_input(check, x);
  const TensorView source = options.transpose ? transposed(x) : x;
  require_output(check, "out", out, source, x);
  check.require_enumerator("options.overflow", options.overflow);

  const config::CastRule& rule = rule_of(options.profile);
  const bool power_of_two = options.power_of_two.value_or(rule.power_of_two_by_default);
  if (ops::is_on_cpu(x.device)) {
    return cpu::quantize(source, out, rule, power_of_two, options.overflow);
  }
  cuda::quantize(ops::gpu("quantize", x.device), x, options.transpose ? nullptr : &out,
                 options.transpose ? &out : nullptr, rule, power_of_two, options.overflow, stream);
}

void quantize_both(const TensorView& x, const MutableScaledTensorView& out,
                   const MutableScaledTensorView& out_transposed, const QuantizeOptions& options,
                   Stream stream) {
  const core::Arguments check("quantize_both");
  require_input(check, x);
  if (options.transpose) check.fail("options.transpose", "false, as both casts are made", "true");
  require_output(check, "out", out, x, x);
  require_output(check, "out_transposed", out_transposed, transposed(x), x);
  check.require_enumerator("options.overflow", options.overflow);
  check.require_dtype("out_transposed", out_transposed.data, {out.data.dtype});
  if (out_transposed.granularity != out.granularity) {
    check.fail("out_transposed", core::format("granularity {}, as 'out'", name(out.granularity)),
               name(out_transposed.granularity));
  }
  const std::array<std::pair<const char*, TensorView>, 2> outputs{
      {{"out", out.data}, {"out.scale", out.scale}}};
  for (const auto& [argument, tensor] : outputs) {
    check.require_disjoint("out_transposed", out_transposed.data, argument, tensor);
    check.require_disjoint("out_transposed.scale", out_transposed.scale, argument, tensor);
  }

  const config::CastRule& rule = rule_of(options.profile);
  const bool power_of_two = options.power_of_two.value_or(rule.power_of_two_by_default);
  if (ops::is_on_cpu(x.device)) {
    cpu::quantize(x, out, rule, power_of_two, options.overflow);
    cpu::quantize(transposed(x), out_transposed, rule, power_of_two, options.overflow);
    return;
  }
  cuda::quantize(ops::gpu("quantize_both", x.device), x, &out, &out_transposed, rule, power_of_two,
                 options.overflow, stream);
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("dequantize");
  check.require_scaled("x", x);
  check.require_matrix("out", out);
  check.require_dtype("out", out, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_shape("out", out, {x.data.shape[0], x.data.shape[1]});
  check.require_same_device("out", out, x.data.device);
  check.require_disjoint("out", out, "x", x.data);
  check.require_disjoint("out", out, "x.scale", x.scale);
  if (ops::is_on_cpu(out.device)) return cpu::dequantize(x, out);
  cuda::dequantize(ops::gpu("dequantize", out.device), x, out, stream);
}

void convert(const TensorView& x, const MutableTensorView& out, Overflow overflow, Stream stream) {
  const core::Arguments check("convert");
  const TensorView source = as_matrix(x);
  const MutableTensorView target = as_matrix(out);
  check.require_matrix("x", source);
  check.require_matrix("out", target);
  check.require_shape("out", target, {source.shape[0], source.shape[1]});
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", source);
  check.require_enumerator("overflow", overflow);
  if (ops::is_on_cpu(x.device)) return cpu::convert(source, target, overflow);
  cuda::convert(ops::gpu("convert", x.device), source, target, overflow, stream);
}

}  // namespace octofold
