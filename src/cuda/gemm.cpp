#include "cuda/gemm.h"

#include <utility>

#include "core/log.h"
#include "core/scale_layout.h"
#include "cuda/tensor_map.h"
#include "kernels/config/gemm_params.h"

namespace octofold::cuda {
namespace {

using config::GemmConfig;
using config::GemmParams;
using plan::GemmProblem;

template <typename View>
const char* obstacle(const View& matrix) {
  return tma_obstacle(matrix.data, matrix.dtype, matrix.shape[0], matrix.shape[1],
                      matrix.strides[0]);
}

const char* obstacle_to_storing(const MutableTensorView& out) {
  return tma_store_obstacle(out.data, out.dtype, out.shape[0], out.shape[1], out.strides[0]);
}

config::GemmScaling scaling_of(const GemmArguments& arguments) {
  switch (arguments.a.granularity) {
    case Granularity::kTensor: return config::GemmScaling::kTensor;
    case Granularity::kChannel: return config::GemmScaling::kChannel;
    default:
      return arguments.b.granularity == Granularity::kBlock128x128
                 ? config::GemmScaling::kBlock
                 : config::GemmScaling::kBlockByBlock;
  }
}

config::Addend addend_of(const std::optional<TensorView>& addend, DType out) {
  if (!addend) return config::Addend::kNone;
  return addend->dtype == out ? config::Addend::kOutputType : config::Addend::kFloat32;
}

// Says which argument keeps a problem from the fast path, where one does.
void log_obstacles(const GemmArguments& arguments, const GemmProblem& problem) {
  const auto log = [&](std::string_view argument, const char* reason, std::string_view effect) {
    if (reason == nullptr) return;
    core::log(LogLevel::kInfo, "gemm {}×{}×{}: argument '{}': {}: {}, which is slower", problem.m,
              problem.n, problem.k, argument, reason, effect);
  };
  if (problem.k == 0) return;
  constexpr std::string_view kCopies = "threads copy the operands, not TMA";
  log("a", obstacle(arguments.a.data), kCopies);
  log("b", obstacle(arguments.b.data), kCopies);
  if (problem.operands_fit_tma) {
    log("out", obstacle_to_storing(arguments.out), "threads store the result, not TMA");
  }
}

template <typename View>
config::TensorMap map_of(const Device& device, const View& matrix, int box_rows, int box_cols) {
  return encode_tensor_map(device.driver(), {.data = matrix.data,
                                             .dtype = matrix.dtype,
                                             .rows = matrix.shape[0],
                                             .cols = matrix.shape[1],
                                             .row_stride = matrix.strides[0],
                                             .box_rows = box_rows,
                                             .box_cols = box_cols});
}

GemmParams params_of(const Device& device, const GemmArguments& arguments,
                     const GemmConfig& config) {
  const TensorView& a = arguments.a.data;
  const TensorView& b = arguments.b.data;
  const MutableTensorView& out = arguments.out;
  const auto scale_a = core::scale_access(arguments.a);
  const auto scale_b = core::scale_access(arguments.b);
  GemmParams params{};
  if (config.load == config::OperandLoad::kTma) {
    params.a_box_rows =
        config::a_box_rows(config.tile_m, config.cluster_n, static_cast<int>(out.shape[0]));
    params.a_map = map_of(device, a, params.a_box_rows, kScaleBlock);
    params.b_map = map_of(device, b, config.tile_n / config.cluster_m, kScaleBlock);
  }
  if (config.store == config::OutputStore::kTma) {
    params.out_map =
        map_of(device, out, config.tile_m, config::SmemLayout(config).output_box_columns);
  }
  params.a = static_cast<const unsigned char*>(a.data);
  params.b = static_cast<const unsigned char*>(b.data);
  params.a_stride = a.strides[0];
  params.b_stride = b.strides[0];
  params.scale_a = scale_a.data;
  params.scale_b = scale_b.data;
  params.scale_a_row_stride = scale_a.row_stride;
  params.scale_a_col_stride = scale_a.col_stride;
  params.scale_b_row_stride = scale_b.row_stride;
  params.scale_b_col_stride = scale_b.col_stride;
  params.out = out.data;
  params.out_stride = out.strides[0];
  if (arguments.c) {
    params.c = arguments.c->data;
    params.c_stride = arguments.c->strides[0];
  }
  if (arguments.bias) params.bias = arguments.bias->data;
  params.m = static_cast<int>(out.shape[0]);
  params.n = static_cast<int>(out.shape[1]);
  params.k = static_cast<int>(a.shape[1]);
  return params;
}

}  // namespace

GemmProblem problem_of(const GemmArguments& arguments) {
  const TensorView& a = arguments.a.data;
  const TensorView& b = arguments.b.data;
  const MutableTensorView& out = arguments.out;
  return {.m = out.shape[0],
          .n = out.shape[1],
          .k = a.shape[1],
          .a = a.dtype,
          .b = b.dtype,
          .out = out.dtype,
          .scaling = scaling_of(arguments),
          .c = addend_of(arguments.c, out.dtype),
          .bias = addend_of(arguments.bias, out.dtype),
          .fast_accumulation = arguments.fast_accumulation,
          .operands_fit_tma = obstacle(a) == nullptr && obstacle(b) == nullptr,
          .output_fits_tma = obstacle_to_storing(out) == nullptr};
}

void gemm(Device& device, const GemmArguments& arguments, Stream stream) {
  if (arguments.out.element_count() == 0) return;
  const GemmProblem problem = problem_of(arguments);
  const auto prepared = device.prepared(problem, [&] {
    log_obstacles(arguments, problem);
    return plan::plan_gemm(problem, device.gpu());
  });
  const GemmParams params = params_of(device, arguments, prepared.config);
  prepared.launch(stream, &params);
}

}  // namespace octofold::cuda
