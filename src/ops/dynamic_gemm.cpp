#include "octofold/dynamic_gemm.h"

#include <array>
#include <utility>
#include <vector>

#include "octofold/tuning.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "cpu/dynamic_gemm.h"
#include "cuda/dynamic_gemm.h"
#include "ops/backend.h"
#include "ops/cast_target.h"
#include "ops/gemm.h"
#include "ops/scales.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

// Matrices all: leading dimensions are one.
struct Checked {
  DynamicGemmArguments arguments;
  config::CastFormat format;
};

Checked checked(const DynamicGemmArguments& given) {
  const core::Arguments check("dynamic_gemm");
  DynamicGemmArguments arguments = given;
  const Format& format = given.format;
  check.require_dtype("dtype", {.dtype = format.dtype}, {DType::kE4M3, DType::kE5M2});
  check.require_enumerator("granularity", format.granularity);
  if (format.granularity != Granularity::kBlock1x128) {
    check.fail("granularity", "1x128, which a tile of the product finds by itself",
               name(format.granularity));
  }
  arguments.x = core::flatten(check, "x", given.x);
  check.require_input_matrix("x", arguments.x);
  check.require_dtype("x", arguments.x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_scaled_input("b", given.b);
  check.require_same_device("b", given.b.data, given.x.device);
  ops::require_scales(check, "b", plan::kDynamicB, ops::form_of(given.b));
  ops::require_depth(check, "b", given.b.data, "x", arguments.x);

  ops::require_shape_of_result(check, "out", given.out, given.x, given.b.data.shape[0]);
  arguments.out = core::flatten(check, "out", given.out);
  const std::array inputs{ops::CastInput{"x", arguments.x}, ops::CastInput{"b", given.b.data},
                          ops::CastInput{"b.scale", given.b.scale}};
  ops::check_output(check, arguments.out, inputs);
  ops::check_bias(check, arguments.bias, arguments.out);
  return {arguments, ops::format_of(check, format, given.x.dtype)};
}

}  // namespace

void dynamic_gemm(const DynamicGemmArguments& given, Stream stream) {
  const auto [arguments, format] = checked(given);
  const Device device = arguments.out.device;
  if (ops::is_on_cpu(device)) return cpu::dynamic_gemm(arguments, format);
  cuda::dynamic_gemm(ops::gpu("dynamic_gemm", device), arguments, format, stream);
}

void dynamic_gemm(const DynamicGemmArguments& given, Stream stream, std::string_view candidate) {
  const auto [arguments, format] = checked(given);
  const Device device = arguments.out.device;
  if (ops::is_on_cpu(device)) {
    core::fail_argument("dynamic_gemm", "candidate",
                        "none for tensors on the CPU, which has one way", candidate);
  }
  cuda::dynamic_gemm(ops::gpu("dynamic_gemm", device), arguments, format, stream, candidate);
}

std::vector<std::string> dynamic_gemm_candidates() {
  std::vector<std::string> names;
  for (plan::GemmCandidate& candidate :
       plan::gemm_candidates({.dynamic = {.exists = true}}, plan::kHopper)) {
    names.push_back(std::move(candidate.name));
  }
  return names;
}

}  // namespace octofold
