#include "ops/gemm.h"

#include <array>
#include <initializer_list>
#include <span>
#include <utility>

#include "octofold/tuning.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "cpu/gemm.h"
#include "cuda/gemm.h"
#include "ops/backend.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

constexpr std::initializer_list<DType> kOutputTypes = {DType::kBFloat16, DType::kFloat16,
                                                       DType::kFloat32};

bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

void require_accumulation(const core::Arguments& check, Granularity a, Granularity b, bool fast) {
  if (!fast || (!varies_along_k(a) && !varies_along_k(b))) return;
  check.fail("fast_accumulation",
             "false for scales that vary along K, which promote every 128 of K",
             core::format("true for {} × {}", name(a), name(b)));
}

void check_output(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& out = arguments.out;
  check.require_matrix("out", out);
  check.require_dtype("out", out, kOutputTypes);
  check.require_same_device("out", out, arguments.a.data.device);
  check.require_disjoint("out", out, "a", arguments.a.data);
  check.require_disjoint("out", out, "a.scale", arguments.a.scale);
  check.require_disjoint("out", out, "b", arguments.b.data);
  check.require_disjoint("out", out, "b.scale", arguments.b.scale);
  if (arguments.b.channel_scale) {
    check.require_disjoint("out", out, "b.channel_scale", *arguments.b.channel_scale);
  }
}

void check_addends(const core::Arguments& check, const GemmArguments& arguments) {
  const MutableTensorView& out = arguments.out;
  if (arguments.c) {
    const TensorView& c = *arguments.c;
    check.require_input_matrix("c", c);
    check.require_dtype("c", c, {out.dtype, DType::kFloat32});
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

// [..., N]: of D and C, whose leading dimensions are A's.
void require_shape_of_result(const core::Arguments& check, std::string_view argument,
                             const TensorView& tensor, const GemmArguments& arguments) {
  std::array<std::int64_t, kMaxRank> shape = arguments.a.data.shape;
  const auto rank = static_cast<std::size_t>(arguments.a.data.rank);
  shape[rank - 1] = arguments.b.data.shape[0];
  check.require_shape(argument, tensor, std::span<const std::int64_t>(shape.data(), rank));
}

// Checked, and matrices all: leading dimensions are one.
GemmArguments checked(GemmArguments arguments) {
  const core::Arguments check("gemm");
  const GemmArguments given = arguments;
  arguments.a = core::flatten(check, "a", given.a);
  ops::check_operands(check, arguments.a, arguments.b);
  if (arguments.a.channel_scale) {
    core::fail(ErrorCode::kUnsupported,
               "gemm: argument 'a.channel_scale': expected none, as two-level scales are for 'b'");
  }
  require_accumulation(check, arguments.a.granularity, arguments.b.granularity,
                       arguments.fast_accumulation);
  require_shape_of_result(check, "out", given.out, given);
  arguments.out = core::flatten(check, "out", given.out);
  check_output(check, arguments);
  if (given.c) {
    require_shape_of_result(check, "c", *given.c, given);
    arguments.c = core::flatten(check, "c", *given.c);
  }
  check_addends(check, arguments);
  return arguments;
}

}  // namespace

void ops::require_form(std::string_view operation, const GemmForm& form) {
  const core::Arguments check(operation);
  const auto require = [&](std::string_view field, DType dtype,
                           std::initializer_list<DType> dtypes) {
    check.require_dtype(field, {.dtype = dtype}, dtypes);
  };
  require("a", form.a.type, {DType::kE4M3, DType::kE5M2});
  require("b", form.b.type, {DType::kE4M3, DType::kE5M2});
  require("out", form.out, kOutputTypes);
  check.require_enumerator("a.granularity", form.a.scales);
  check.require_enumerator("b.granularity", form.b.scales);
  require_accumulation(check, form.a.scales, form.b.scales, form.fast_accumulation);
  if (form.b_channel_scale && form.b.scales != Granularity::kBlock128x128) {
    check.fail("b_channel_scale", "false, but for scales of b of granularity 128x128", "true");
  }
}

void ops::check_operands(const core::Arguments& check, const ScaledTensorView& a,
                         const ScaledTensorView& b) {
  check.require_scaled_input("a", a);
  check.require_scaled_input("b", b);
  check.require_same_device("b", b.data, a.data.device);
  if (b.data.shape[1] != a.data.shape[1]) {
    check.fail("b", core::format("K = {} columns as in 'a'", a.data.shape[1]),
               core::format("{}", b.data.shape[1]));
  }
}

void gemm(const GemmArguments& given, Stream stream) {
  const GemmArguments arguments = checked(given);
  const Device device = arguments.out.device;
  if (ops::is_on_cpu(device)) return cpu::gemm(arguments);
  cuda::gemm(ops::gpu("gemm", device), arguments, stream);
}

void gemm(const GemmArguments& given, Stream stream, std::string_view candidate) {
  const GemmArguments arguments = checked(given);
  const Device device = arguments.out.device;
  if (ops::is_on_cpu(device)) {
    core::fail_argument("gemm", "candidate", "none for tensors on the CPU, which has one way",
                        candidate);
  }
  cuda::gemm(ops::gpu("gemm", device), arguments, stream, candidate);
}

std::vector<std::string> gemm_candidates(const GemmProblem& problem, bool operands_fit_tma,
                                         bool output_fits_tma) {
  ops::require_form("gemm_candidates", problem.form);
  std::vector<std::string> names;
  for (plan::GemmCandidate& candidate : plan::gemm_candidates({.product = problem,
                                                               .operands_fit_tma = operands_fit_tma,
                                                               .output_fits_tma = output_fits_tma},
                                                              plan::kHopper)) {
    names.push_back(std::move(candidate.name));
  }
  return names;
}

}  // namespace octofold
