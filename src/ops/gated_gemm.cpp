#include "octofold/gated_gemm.h"

#include <array>
#include <utility>
#include <vector>

#include "octofold/tuning.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "cpu/gated_gemm.h"
#include "cuda/gated_gemm.h"
#include "ops/backend.h"
#include "ops/cast_target.h"
#include "ops/gated_gemm.h"
#include "ops/gemm.h"
#include "ops/scales.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

// Matrices all: leading dimensions are one.
struct Checked {
  GatedGemmArguments arguments;
  config::CastFormat format;
};

Checked checked(const GatedGemmArguments& given) {
  const core::Arguments check("gated_gemm");
  GatedGemmArguments arguments = given;
  ops::require_gated_activation(check, given.activation, given.out);
  arguments.a = core::flatten(check, "a", given.a);
  ops::check_operands(check, arguments.a, arguments.b);
  const auto leading = ops::shape_of(given.a.data).first(given.a.data.rank - 1);
  const std::array inputs{
      ops::CastInput{"a", arguments.a.data}, ops::CastInput{"a.scale", arguments.a.scale},
      ops::CastInput{"b", arguments.b.data}, ops::CastInput{"b.scale", arguments.b.scale}};
  arguments.out =
      ops::checked_gated_output(check, arguments.a, arguments.b, arguments.b.data.shape[0],
                                {leading.begin(), leading.end()}, given.out, inputs);
  return {arguments, ops::format_of(check, arguments.out.format, DType::kBFloat16)};
}

}  // namespace

void ops::require_gated_activation(const core::Arguments& check, Activation activation,
                                   const CastTarget& out) {
  check.require_enumerator("activation", activation);
  if (!is_gated(activation)) {
    check.fail("activation", "one of swiglu, geglu-tanh, geglu, which take gate and up",
               name(activation));
  }
  if (out.scales != ScaleSource::kComputed) {
    check.fail("out.scales", "kComputed, as the product finds them", "another ScaleSource");
  }
}

CastTarget ops::checked_gated_output(const core::Arguments& check, const ScaledTensorView& a,
                                     const ScaledTensorView& b, std::int64_t rows,
                                     std::vector<std::int64_t> leading, const CastTarget& out,
                                     std::span<const CastInput> inputs) {
  require_scales(check, "a", plan::kGatedA, form_of(a));
  require_scales(check, "b", plan::kGatedB, form_of(b));
  if (rows % 2 != 0) {
    check.fail("b", "an even number of rows, as many gates as ups", core::format("{}", rows));
  }
  std::vector<std::int64_t> shape = std::move(leading);
  shape.push_back(rows / 2);
  const CastTarget target = checked_target(check, "out", out, shape, inputs);
  require_scales(check, "out", plan::kGatedOut, form_of(out));
  return target;
}

void gated_gemm(const GatedGemmArguments& given, Stream stream) {
  const auto [arguments, format] = checked(given);
  const Device device = arguments.out.data.device;
  if (ops::is_on_cpu(device)) return cpu::gated_gemm(arguments, format);
  cuda::gated_gemm(ops::gpu("gated_gemm", device), arguments, format, stream);
}

void gated_gemm(const GatedGemmArguments& given, Stream stream, std::string_view candidate) {
  const auto [arguments, format] = checked(given);
  const Device device = arguments.out.data.device;
  if (ops::is_on_cpu(device)) {
    core::fail_argument("gated_gemm", "candidate", "none for tensors on the CPU, which has one way",
                        candidate);
  }
  cuda::gated_gemm(ops::gpu("gated_gemm", device), arguments, format, stream, candidate);
}

std::vector<std::string> gated_gemm_candidates() {
  plan::GemmProblem problem{.gated = {.exists = true}};
  problem.product.form.out = DType::kE4M3;
  std::vector<std::string> names;
  for (plan::GemmCandidate& candidate : plan::gemm_candidates(problem, plan::kHopper)) {
    names.push_back(std::move(candidate.name));
  }
  return names;
}

}  // namespace octofold
