#include "ops/gemm.h"

#include "core/check.h"
#include "core/format.h"
#include "cpu/gemm.h"
#include "cuda/gemm.h"
#include "ops/backend.h"

namespace octofold {
namespace {

bool is_supported_pair(Granularity a, Granularity b) {
  switch (a) {
    case Granularity::kTensor: return b == Granularity::kTensor;
    case Granularity::kChannel: return b == Granularity::kChannel;
    case Granularity::kBlock1x128:
      return b == Granularity::kBlock128x128 || b == Granularity::kBlock1x128;
    case Granularity::kBlock128x128: return false;
  }
  return false;
}

bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

void check_operands(const core::Arguments& check, const GemmArguments& arguments) {
  const ScaledTensorView& a = arguments.a;
  const ScaledTensorView& b = arguments.b;
  check.require_scaled("a", a);
  check.require_scaled("b", b);
  check.require_same_device("b", b.data, a.data.device);
  if (b.data.shape[1] != a.data.shape[1]) {
    check.fail("b", core::format("K = {} columns as in 'a'", a.data.shape[1]),
               core::format("{}", b.data.shape[1]));
  }
  if (!is_supported_pair(a.granularity, b.granularity)) {
    check.fail("b.granularity",
               "one of the pairs tensor × tensor, channel × channel, 1x128 × 128x128, "
               "1x128 × 1x128",
               core::format("{} × {}", name(a.granularity), name(b.granularity)));
  }
  if (arguments.fast_accumulation && a.granularity == Granularity::kBlock1x128) {
    check.fail("fast_accumulation", "false for block scales, which promote every 128 of K", "true");
  }
}

void check_addends(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& out = arguments.out;
  if (arguments.c) {
    const TensorView& c = *arguments.c;
    check.require_matrix("c", c);
    check.require_dtype("c", c, {out.dtype, DType::kFloat32});
    check.require_shape("c", c, {out.shape[0], out.shape[1]});
    check.require_same_device("c", c, out.device);
    if (!is_same_memory(out, c)) check.require_disjoint("out", out, "c", c);
  }
  if (arguments.bias) {
    const TensorView& bias = *arguments.bias;
    check.require_vector("bias", bias);
    check.require_dtype("bias", bias, {out.dtype, DType::kFloat32});
    check.require_shape("bias", bias, {out.shape[1]});
    check.require_same_device("bias", bias, out.device);
    check.require_disjoint("out", out, "bias", bias);
  }
}

void check_output(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& out = arguments.out;
  check.require_matrix("out", out);
  check.require_dtype("out", out, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  check.require_shape("out", out, {arguments.a.data.shape[0], arguments.b.data.shape[0]});
  check.require_same_device("out", out, arguments.a.data.device);
  check.require_disjoint("out", out, "a", arguments.a.data);
  check.require_disjoint("out", out, "a.scale", arguments.a.scale);
  check.require_disjoint("out", out, "b", arguments.b.data);
  check.require_disjoint("out", out, "b.scale", arguments.b.scale);
}

}  // namespace

void ops::check(const GemmArguments& arguments) {
  const core::Arguments check("gemm");
  check_operands(check, arguments);
  check_output(check, arguments);
  check_addends(check, arguments);
}

void gemm(const GemmArguments& arguments, Stream stream) {
  ops::check(arguments);
  const Device device = arguments.out.device;
  if (ops::is_on_cpu(device)) return cpu::gemm(arguments);
  cuda::gemm(ops::gpu("gemm", device), arguments, stream);
}

}  // namespace octofold
