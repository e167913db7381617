#include "cuda/gemm.h"

#include "octofold/error.h"

#include "core/log.h"
#include "core/scale_layout.h"
#include "cuda/cast_views.h"
#include "cuda/context.h"
#include "cuda/tensor_map.h"
#include "kernels/mma/config/gemm.h"
#include "kernels/sm90/config/gemm.h"
#include "plan/gemm.h"
#include "plan/mma_gemm.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

using config::Sm90GemmConfig;
using config::Sm90GemmParams;

// Says which argument keeps a problem from the fast path, where one does. Warps store without TMA.
void log_obstacles(const GemmArguments& arguments, const plan::GemmProblem& problem,
                   bool by_warps) {
  const auto log = [&](std::string_view argument, const char* reason, std::string_view effect) {
    if (reason == nullptr) return;
    core::log(LogLevel::kInfo, "gemm {}×{}×{}: argument '{}': {}: {}, which is slower",
              problem.product.m, problem.product.n, problem.product.k, argument, reason, effect);
  };
  if (problem.product.k == 0) return;
  const std::string_view copies =
      by_warps ? "operands are copied in less than 16 bytes" : "threads copy the operands, not TMA";
  log("a", plan::tma_obstacle(arguments.a.data), copies);
  log("b", plan::tma_obstacle(arguments.b.data), copies);
  if (problem.operands_fit_tma && !by_warps) {
    log("out", plan::tma_store_obstacle(arguments.out), "threads store the result, not TMA");
  }
}

// Of a box of the last tile of rows, or of several in groups, where any tile may be the last of
// one.
int last_rows_of(const Sm90GemmConfig& config, int rows) {
  if (config.loads_sub_tiles()) return config::kSubTileRows;
  if (!config.swapped && config::groups_rows(config.work)) return 0;
  return config::last_rows(config.tile_rows, config.cluster_columns, rows);
}

config::WorkParams work_params(const MutableTensorView& out, std::int64_t depth,
                               const Sm90GemmConfig& config, const core::Groups& groups) {
  // Of all groups together where they lie one after another, else of one.
  const bool together = config.work == config::Work::kGroupedRows;
  const auto rows = static_cast<int>(out.shape[0] / (together ? 1 : groups.count));
  const auto columns = static_cast<int>(out.shape[1]);
  return {.rows = config.swapped ? columns : rows,
          .columns = config.swapped ? rows : columns,
          .depth = static_cast<int>(depth),
          .groups = static_cast<int>(groups.count),
          .numbers = groups.numbers};
}

config::OperandParams operand_params(const ScaledTensorView& operand) {
  const auto scale = core::scale_access(operand);
  return {.data = static_cast<const unsigned char*>(operand.data.data),
          .stride = operand.data.strides[0],
          .scale = {scale.data, scale.row_stride, scale.col_stride}};
}

config::GemmParams shared_params(const GemmArguments& arguments, bool swapped,
                                 const config::WorkParams& work) {
  const MutableTensorView& out = arguments.out;
  return {.rows = operand_params(swapped ? arguments.b : arguments.a),
          .columns = operand_params(swapped ? arguments.a : arguments.b),
          .out = out.data,
          .out_stride = out.strides[0],
          .c = arguments.c ? arguments.c->data : nullptr,
          .c_stride = arguments.c ? arguments.c->strides[0] : 0,
          .bias = arguments.bias ? arguments.bias->data : nullptr,
          .channel_scale = floats_of(arguments.b.channel_scale),
          .work = work};
}

}  // namespace

Sm90GemmParams gemm_params(const Device& device, const GemmArguments& arguments,
                           const Sm90GemmConfig& config, const core::Groups& groups) {
  const TensorView& rows = (config.swapped ? arguments.b : arguments.a).data;
  const TensorView& columns = (config.swapped ? arguments.a : arguments.b).data;
  const MutableTensorView& out = arguments.out;
  Sm90GemmParams params{
      shared_params(arguments, config.swapped, work_params(out, rows.shape[1], config, groups))};
  (config.swapped ? params.rows : params.columns).scale.group_stride = groups.scale_stride;
  const Driver& driver = device.driver();
  // Tensor maps want one too, and a thread of torch's autograd may have none yet.
  const ContextGuard current(driver, device.context());
  if (config.load == config::OperandLoad::kTma) {
    params.rows_map = encode_tensor_map(driver, rows, config.tile_rows / config.cluster_columns,
                                        config::kStageDepth);
    if (!config.dynamic.exists) {
      params.columns_map = encode_tensor_map(
          driver, columns, config.tile_columns / config.cluster_rows, config::kStageDepth);
    }
    params.last_rows = last_rows_of(config, params.work.rows);
    if (params.last_rows != 0) {
      params.last_rows_map = encode_tensor_map(driver, rows, params.last_rows, config::kStageDepth);
    }
  }
  if (config.store != config::OutputStore::kDirect) {
    const config::Sm90SmemLayout layout(config);
    const auto encode = config.stores_groups() ? encode_grouped_tensor_map : encode_tensor_map;
    params.out_map = encode(driver, out, layout.output_box_rows, layout.output_box_columns);
    if (config.stores_onto_c()) {
      params.c_map =
          encode(driver, *arguments.c, layout.output_box_rows, layout.output_box_columns);
    }
  }
  return params;
}

namespace {

// The candidate that was measured to be the fastest, where one was; else what the planner reckons.
template <typename Plan>
auto planned(Device& device, const plan::GemmProblem& problem, Plan&& plan) {
  const std::string_view tuned = device.tuned(problem);
  if (tuned.empty()) return plan();
  try {
    return plan(tuned);
  } catch (const Error& error) {  // the table was edited: this version has all that it wrote
    core::log(LogLevel::kWarning, "cuda:{}: the tuning table has no candidate of {}: {}",
              device.index(), plan::describe(problem), error.what());
    return plan();
  }
}

void launch(const Device& device, const GemmArguments& arguments, Stream stream,
            const Prepared<Sm90GemmConfig>& prepared) {
  const Sm90GemmParams params = gemm_params(device, arguments, prepared.config);
  prepared.launch(stream, &params);
}

void launch(const Device&, const GemmArguments& arguments, Stream stream,
            const Prepared<config::MmaGemmConfig>& prepared) {
  const MutableTensorView& out = arguments.out;
  const config::GemmParams params =
      shared_params(arguments, false,
                    {.rows = static_cast<int>(out.shape[0]),
                     .columns = static_cast<int>(out.shape[1]),
                     .depth = static_cast<int>(arguments.a.data.shape[1])});
  prepared.launch(stream, &params);
}

}  // namespace

void gemm(Device& device, const GemmArguments& arguments, Stream stream) {
  if (arguments.out.element_count() == 0) return;
  const plan::GemmProblem problem = plan::problem_of(arguments);
  if (plan::multiplies_by_warps(device.gpu())) {
    return launch(device, arguments, stream, device.prepared(problem, [&] {
      log_obstacles(arguments, problem, true);
      return planned(device, problem, [&](auto... candidate) {
        return plan::plan_mma_gemm(problem, device.gpu(), candidate...);
      });
    }));
  }
  launch(device, arguments, stream, device.prepared(problem, [&] {
    log_obstacles(arguments, problem, false);
    return planned(device, problem, [&](auto... candidate) {
      return plan::plan_gemm(problem, device.gpu(), candidate...);
    });
  }));
}

void gemm(Device& device, const GemmArguments& arguments, Stream stream,
          std::string_view candidate) {
  if (arguments.out.element_count() == 0) return;
  const plan::GemmProblem problem = plan::problem_of(arguments);
  if (plan::multiplies_by_warps(device.gpu())) {
    const plan::MmaGemmPlan plan = plan::plan_mma_gemm(problem, device.gpu(), candidate);
    return launch(device, arguments, stream, device.load(plan, plan::describe(problem)));
  }
  const plan::GemmPlan plan = plan::plan_gemm(problem, device.gpu(), candidate);
  launch(device, arguments, stream, device.load(plan, plan::describe(problem)));
}

}  // namespace octofold::cuda
