#include "cuda/dynamic_gemm.h"

#include "core/check.h"
#include "cuda/cast_views.h"
#include "cuda/gemm.h"
#include "plan/gemm.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

// A is x itself, which has no scales yet.
GemmArguments product_of(const DynamicGemmArguments& arguments) {
  return {.a = {arguments.x, {}, Granularity::kBlock1x128},
          .b = arguments.b,
          .out = arguments.out,
          .bias = arguments.bias};
}

void require_kernel(const DynamicGemmArguments& arguments) {
  const char* const obstacle = plan::tma_obstacle(arguments.b.data);
  if (obstacle == nullptr) return;
  core::fail(ErrorCode::kUnsupported,
             "dynamic_gemm: argument 'b': expected what TMA can address on a GPU, but {}: "
             "cast() and gemm() take it",
             obstacle);
}

plan::GemmProblem problem_of(const DynamicGemmArguments& arguments,
                             const config::CastFormat& format) {
  plan::GemmProblem problem = plan::problem_of(product_of(arguments));
  problem.product.form.a.type = format.out;
  problem.operands_fit_tma = problem.operands_fit_words = true;
  problem.dynamic = {
      .exists = true,
      .type = format.in,
      .rule = format.rule,
      .power_of_two = format.power_of_two,
      .saturate = format.saturate,
      .vectors = is_aligned(arguments.x, 16) && arguments.x.shape[1] % format.vector() == 0};
  return problem;
}

void launch(const Device& device, const DynamicGemmArguments& arguments, Stream stream,
            const Prepared<config::Sm90GemmConfig>& prepared) {
  const config::Sm90GemmParams params = gemm_params(device, product_of(arguments), prepared.config);
  prepared.launch(stream, &params);
}

}  // namespace

void dynamic_gemm(Device& device, const DynamicGemmArguments& arguments,
                  const config::CastFormat& format, Stream stream) {
  if (arguments.out.element_count() == 0) return;
  require_kernel(arguments);
  const plan::GemmProblem problem = problem_of(arguments, format);
  launch(device, arguments, stream,
         device.prepared(problem, [&] { return plan::plan_gemm(problem, device.gpu()); }));
}

void dynamic_gemm(Device& device, const DynamicGemmArguments& arguments,
                  const config::CastFormat& format, Stream stream, std::string_view candidate) {
  if (arguments.out.element_count() == 0) return;
  require_kernel(arguments);
  const plan::GemmProblem problem = problem_of(arguments, format);
  const plan::GemmPlan plan = plan::plan_gemm(problem, device.gpu(), candidate);
  launch(device, arguments, stream, device.load(plan, plan::describe(problem)));
}

}  // namespace octofold::cuda
