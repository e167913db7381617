#include "octofold/quantize.h"

#include <utility>

#include "core/check.h"
#include "core/scale_layout.h"
#include "cpu/convert.h"
#include "cpu/quantize.h"
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

std::vector<std::int64_t> scale_shape(Granularity granularity, std::int64_t rows,
                                      std::int64_t cols) {
  if (rows < 0 || cols < 0) {
    core::fail(ErrorCode::kInvalidArgument, "scale_shape: expected sizes of at least 0, got {}×{}",
               rows, cols);
  }
  return core::scale_shape(granularity, rows, cols);
}

void quantize(const TensorView& x, const MutableScaledTensorView& out,
              const QuantizeOptions& options) {
  const core::Arguments check("quantize");
  check.require_matrix("x", x);
  check.require_dtype("x", x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  const TensorView source = options.transpose ? transposed(x) : x;
  check.require_scaled("out", out);
  check.require_shape("out", out.data, {source.shape[0], source.shape[1]});
  check.require_same_device("out", out.data, x.device);
  check.require_disjoint("out", out.data, "x", x);
  check.require_disjoint("out.scale", out.scale, "x", x);
  check.require_disjoint("out.scale", out.scale, "out", out.data);
  ops::require_backend("quantize", x.device);

  const config::CastRule& rule = rule_of(options.profile);
  cpu::quantize(source, out, rule, options.power_of_two.value_or(rule.power_of_two_by_default),
                options.overflow);
}

void dequantize(const ScaledTensorView& x, const MutableTensorView& out) {
  const core::Arguments check("dequantize");
  check.require_scaled("x", x);
  check.require_matrix("out", out);
  check.require_dtype("out", out, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_shape("out", out, {x.data.shape[0], x.data.shape[1]});
  check.require_same_device("out", out, x.data.device);
  check.require_disjoint("out", out, "x", x.data);
  check.require_disjoint("out", out, "x.scale", x.scale);
  ops::require_backend("dequantize", x.data.device);
  cpu::dequantize(x, out);
}

void convert(const TensorView& x, const MutableTensorView& out, Overflow overflow) {
  const core::Arguments check("convert");
  const TensorView source = as_matrix(x);
  const MutableTensorView target = as_matrix(out);
  check.require_matrix("x", source);
  check.require_matrix("out", target);
  check.require_shape("out", target, {source.shape[0], source.shape[1]});
  check.require_same_device("out", target, x.device);
  check.require_disjoint("out", target, "x", source);
  ops::require_backend("convert", x.device);
  cpu::convert(source, target, overflow);
}

}  // namespace octofold
