#include "cuda/gated_gemm.h"

#include "core/check.h"
#include "core/scale_layout.h"
#include "cuda/gemm.h"
#include "plan/gemm.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

// What leaves as a product's D are H's codes.
GemmArguments product_of(const GatedGemmArguments& arguments) {
  return {.a = arguments.a, .b = arguments.b, .out = arguments.out.data};
}

void require_kernel(const GatedGemmArguments& arguments) {
  require_gated_kernel("gated_gemm", product_of(arguments));
}

plan::GemmProblem problem_of(const GatedGemmArguments& arguments,
                             const config::CastFormat& format) {
  plan::GemmProblem problem = plan::problem_of(product_of(arguments));
  problem.gated = gated_output(arguments.activation, format);
  return problem;
}

void launch(const Device& device, const GatedGemmArguments& arguments, Stream stream,
            const Prepared<config::Sm90GemmConfig>& prepared) {
  config::Sm90GemmParams params = gemm_params(device, product_of(arguments), prepared.config);
  params.out_scale = output_scale_params(arguments.out);
  prepared.launch(stream, &params);
}

}  // namespace

void require_gated_kernel(std::string_view operation, const GemmArguments& product) {
  constexpr std::string_view kInstead = "products and cast() take it";
  const std::int64_t columns = product.out.shape[1];
  if (columns % kScaleBlock != 0) {
    core::fail(ErrorCode::kUnsupported,
               "{}: argument 'b': expected 2·N rows with N a multiple of {} on a GPU, where "
               "no block of scales may have gates and ups, got N = {}: {}",
               operation, kScaleBlock, columns, kInstead);
  }
  const auto require = [&](std::string_view argument, const char* obstacle) {
    if (obstacle == nullptr) return;
    core::fail(ErrorCode::kUnsupported,
               "{}: argument '{}': expected what TMA can address on a GPU, but {}: {}", operation,
               argument, obstacle, kInstead);
  };
  require("a", plan::tma_obstacle(product.a.data));
  require("b", plan::tma_obstacle(product.b.data));
  require("out", plan::tma_store_obstacle(product.out));
}

config::GatedOutput gated_output(Activation activation, const config::CastFormat& format) {
  return {.exists = true,
          .activation = activation,
          .rule = format.rule,
          .power_of_two = format.power_of_two,
          .saturate = format.saturate};
}

config::OutputScaleParams output_scale_params(const CastTarget& out) {
  const core::ScaleAccess<float> scale = core::scale_access(out);
  return {scale.data, scale.row_stride, scale.col_stride};
}

void gated_gemm(Device& device, const GatedGemmArguments& arguments,
                const config::CastFormat& format, Stream stream) {
  if (arguments.out.data.element_count() == 0) return;
  require_kernel(arguments);
  const plan::GemmProblem problem = problem_of(arguments, format);
  launch(device, arguments, stream,
         device.prepared(problem, [&] { return plan::plan_gemm(problem, device.gpu()); }));
}

void gated_gemm(Device& device, const GatedGemmArguments& arguments,
                const config::CastFormat& format, Stream stream, std::string_view candidate) {
  if (arguments.out.data.element_count() == 0) return;
  require_kernel(arguments);
  const plan::GemmProblem problem = problem_of(arguments, format);
  const plan::GemmPlan plan = plan::plan_gemm(problem, device.gpu(), candidate);
  launch(device, arguments, stream, device.load(plan, plan::describe(problem)));
}

}  // namespace octofold::cuda
