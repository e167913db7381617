#include "cuda/grouped_gemm.h"

#include "core/check.h"
#include "cuda/gated_gemm.h"
#include "cuda/gemm.h"
#include "cuda/group_check.h"
#include "plan/gemm.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

Prepared<config::Sm90GemmConfig> prepare(Device& device, const plan::GemmProblem& problem,
                                         std::string_view candidate) {
  if (candidate.empty()) {
    return device.prepared(problem, [&] { return plan::plan_gemm(problem, device.gpu()); });
  }
  return device.load(plan::plan_gemm(problem, device.gpu(), candidate), plan::describe(problem));
}

// Where OCTOFOLD_CHECK_GROUPS asks for it.
void check_numbers(Device& device, const core::GroupedProduct& grouped, config::Work work,
                   std::string_view operation, Stream stream) {
  const auto& [product, groups] = grouped;
  if (work == config::Work::kMaskedRows) {
    const TensorView counts = vector(groups.numbers, DType::kInt32, groups.count);
    return check_range(device, operation, "counts", counts, 0, groups.most_rows, stream);
  }
  check_offsets(device, operation, "offsets", groups.numbers, groups.count + 1, groups.most_rows,
                stream);
}

void require_tma(const core::GroupedProduct& grouped) {
  const auto require = [](std::string_view argument, const char* obstacle) {
    if (obstacle == nullptr) return;
    core::fail(ErrorCode::kUnsupported,
               "grouped_gemm_k: argument '{}': expected what TMA can address on a GPU, but {}",
               argument, obstacle);
  };
  require("a", plan::tma_obstacle(grouped.product.a.data));
  require("b", plan::tma_obstacle(grouped.product.b.data));
}

}  // namespace

void grouped_gemm(Device& device, const core::GroupedProduct& grouped, config::Work work,
                  Stream stream, std::string_view candidate) {
  const auto& [product, groups] = grouped;
  if (product.out.element_count() == 0) return;
  if (work == config::Work::kGroupedDepth) require_tma(grouped);
  const plan::GemmProblem problem = plan::problem_of(grouped, work);
  const auto prepared = prepare(device, problem, candidate);
  check_numbers(device, grouped, work, plan::operation_of(problem), stream);
  const config::Sm90GemmParams params = gemm_params(device, product, prepared.config, groups);
  prepared.launch(stream, &params);
}

void grouped_gated_gemm(Device& device, const core::GroupedProduct& grouped, const CastTarget& out,
                        Activation activation, const config::CastFormat& format, Stream stream,
                        std::string_view candidate) {
  const auto& [product, groups] = grouped;
  if (product.out.element_count() == 0) return;
  require_gated_kernel("grouped_gated_gemm", product);
  plan::GemmProblem problem = plan::problem_of(grouped, config::Work::kGroupedRows);
  problem.gated = gated_output(activation, format);
  const auto prepared = prepare(device, problem, candidate);
  check_numbers(device, grouped, problem.work, plan::operation_of(problem), stream);
  config::Sm90GemmParams params = gemm_params(device, product, prepared.config, groups);
  params.out_scale = output_scale_params(out);
  prepared.launch(stream, &params);
}

}  // namespace octofold::cuda
