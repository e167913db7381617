#include "octofold/gemm.h"

#include <fmt/format.h>

#include "core/check.h"
#include "cpu/gemm.h"
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
    check.fail("b", fmt::format("K = {} columns as in 'a'", a.data.shape[1]),
               fmt::format("{}", b.data.shape[1]));
  }
  if (!is_supported_pair(a.granularity, b.granularity)) {
    check.fail("b.granularity",
               "one of the pairs tensor × tensor, channel × channel, 1x128 × 128x128, "
               "1x128 × 1x128",
               fmt::format("{} × {}", name(a.granularity), name(b.granularity)));
  }
  if (arguments.fast_accumulation && a.granularity == Granularity::kBlock1x128) {
    check.fail("fast_accumulation", "false for block scales, which promote every 128 of K", "true");
  }
}

void check_addends(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& d = arguments.d;
  if (arguments.c) {
    const TensorView& c = *arguments.c;
    check.require_matrix("c", c);
    check.require_dtype("c", c, {d.dtype, DType::kFloat32});
    check.require_shape("c", c, {d.shape[0], d.shape[1]});
    check.require_same_device("c", c, d.device);
    if (!is_same_memory(d, c)) check.require_disjoint("d", d, "c", c);
  }
  if (arguments.bias) {
    const TensorView& bias = *arguments.bias;
    check.require_vector("bias", bias);
    check.require_dtype("bias", bias, {d.dtype, DType::kFloat32});
    check.require_shape("bias", bias, {d.shape[1]});
    check.require_same_device("bias", bias, d.device);
    check.require_disjoint("d", d, "bias", bias);
  }
}

void check_output(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& d = arguments.d;
  check.require_matrix("d", d);
  check.require_dtype("d", d, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  check.require_shape("d", d, {arguments.a.data.shape[0], arguments.b.data.shape[0]});
  check.require_same_device("d", d, arguments.a.data.device);
  check.require_disjoint("d", d, "a", arguments.a.data);
  check.require_disjoint("d", d, "a.scale", arguments.a.scale);
  check.require_disjoint("d", d, "b", arguments.b.data);
  check.require_disjoint("d", d, "b.scale", arguments.b.scale);
}

}  // namespace

void gemm(const GemmArguments& arguments) {
  const core::Arguments check("gemm");
  check_operands(check, arguments);
  check_output(check, arguments);
  check_addends(check, arguments);
  ops::require_backend("gemm", arguments.d.device);
  cpu::gemm(arguments);
}

}  // namespace octofold
