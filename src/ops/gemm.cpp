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
#include "ops/scales.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

constexpr std::initializer_list<DType> kOutputTypes = {DType::kBFloat16, DType::kFloat16,
                                                       DType::kFloat32};

bool is_same_memory(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

// Checked, and matrices all: leading dimensions are one.
GemmArguments checked(GemmArguments arguments) {
  const core::Arguments check("gemm");
  const GemmArguments given = arguments;
  arguments.a = core::flatten(check, "a", given.a);
  ops::check_operands(check, arguments.a, arguments.b);
  if (const auto refused = plan::refusal(plan::kGemmA, "a", ops::form_of(arguments.a))) {
    core::fail(ErrorCode::kUnsupported, "gemm: {}", plan::text(*refused));
  }
  ops::require_accumulation(check, arguments.a.granularity, arguments.b.granularity,
                            arguments.fast_accumulation);
  const auto require_shape = [&](std::string_view argument, const TensorView& tensor) {
    ops::require_shape_of_result(check, argument, tensor, given.a.data, given.b.data.shape[0]);
  };
  require_shape("out", given.out);
  arguments.out = core::flatten(check, "out", given.out);
  const std::array inputs{
      ops::CastInput{"a", arguments.a.data}, ops::CastInput{"a.scale", arguments.a.scale},
      ops::CastInput{"b", arguments.b.data}, ops::CastInput{"b.scale", arguments.b.scale}};
  ops::check_output(check, arguments.out, inputs);
  if (arguments.b.channel_scale) {
    check.require_disjoint("out", arguments.out, "b.channel_scale", *arguments.b.channel_scale);
  }
  if (given.c) {
    require_shape("c", *given.c);
    arguments.c = core::flatten(check, "c", *given.c);
    ops::check_c(check, *arguments.c, arguments.out);
  }
  ops::check_bias(check, arguments.bias, arguments.out);
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

void ops::require_accumulation(const core::Arguments& check, Granularity a, Granularity b,
                               bool fast) {
  if (!fast || (!varies_along_k(a) && !varies_along_k(b))) return;
  check.fail("fast_accumulation",
             "false for scales that vary along K, which promote every 128 of K",
             core::format("true for {} × {}", name(a), name(b)));
}

void ops::check_c(const core::Arguments& check, const TensorView& c, const MutableTensorView& out) {
  check.require_input_matrix("c", c);
  check.require_dtype("c", c, {out.dtype, DType::kFloat32});
  check.require_same_device("c", c, out.device);
  if (!is_same_memory(out, c)) check.require_disjoint("out", out, "c", c);
}

void ops::check_operands(const core::Arguments& check, const ScaledTensorView& a,
                         const ScaledTensorView& b) {
  check.require_scaled_input("a", a);
  check.require_scaled_input("b", b);
  check.require_same_device("b", b.data, a.data.device);
  require_depth(check, "b", b.data, "a", a.data);
}

void ops::require_depth(const core::Arguments& check, std::string_view argument,
                        const TensorView& given, std::string_view other, const TensorView& matrix) {
  if (given.shape[1] == matrix.shape[1]) return;
  check.fail(argument, core::format("K = {} columns as in '{}'", matrix.shape[1], other),
             core::format("{}", given.shape[1]));
}

void ops::check_output(const core::Arguments& check, const MutableTensorView& out,
                       std::span<const CastInput> inputs) {
  check.require_matrix("out", out);
  check.require_dtype("out", out, kOutputTypes);
  check.require_same_device("out", out, inputs.front().view.device);
  for (const CastInput& input : inputs) {
    check.require_disjoint("out", out, input.argument, input.view);
  }
}

void ops::check_bias(const core::Arguments& check, const std::optional<TensorView>& bias,
                     const MutableTensorView& out) {
  if (!bias) return;
  check.require_vector("bias", *bias);
  check.require_dtype("bias", *bias, {out.dtype, DType::kFloat32});
  check.require_shape("bias", *bias, {out.shape[1]});
  check.require_same_device("bias", *bias, out.device);
  check.require_disjoint("out", out, "bias", *bias);
}

void ops::require_shape_of_result(const core::Arguments& check, std::string_view argument,
                                  const TensorView& tensor, const TensorView& a,
                                  std::int64_t columns) {
  std::array<std::int64_t, kMaxRank> shape = a.shape;
  const auto rank = static_cast<std::size_t>(a.rank);
  shape[rank - 1] = columns;
  check.require_shape(argument, tensor, std::span<const std::int64_t>(shape.data(), rank));
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
                                         bool output_fits_tma, bool c_fits_tma) {
  ops::require_form("gemm_candidates", problem.form);
  std::vector<std::string> names;
  for (plan::GemmCandidate& candidate : plan::gemm_candidates({.product = problem,
                                                               .operands_fit_tma = operands_fit_tma,
                                                               .output_fits_tma = output_fits_tma,
                                                               .c_fits_tma = c_fits_tma},
                                                              plan::kHopper)) {
    names.push_back(std::move(candidate.name));
  }
  return names;
}

}  // namespace octofold
