// gemm_weight_only and its gradient: one kernel, and one way to it.
#include "plan/weight_only.h"

#include <cstdint>

#include "core/scale_layout.h"
#include "cuda/cast_views.h"
#include "cuda/gemm_weight_only.h"
#include "cuda/tuned_plan.h"
#include "kernels/weight_only/config/weight_only.h"
#include "plan/tma.h"

namespace octofold::cuda {
namespace {

constexpr int kBlockShift = 7;
static_assert(1 << kBlockShift == kScaleBlock);

int row_shift(Granularity granularity) {
  return granularity == Granularity::kBlock128x128 ? kBlockShift : 0;
}

// Scales of the rows of x or of W, which are those or the columns of out.
config::WeightOnlyScale scale_of_rows(const ScaledTensorView& tensor) {
  const auto scale = core::scale_access(tensor);
  return {scale.data, scale.row_stride, scale.col_stride, row_shift(tensor.granularity)};
}

// Of a W whose rows are the depth: out's columns are its own.
config::WeightOnlyScale scale_of_columns(const ScaledTensorView& tensor) {
  const auto scale = core::scale_access(tensor);
  return {scale.data, scale.col_stride, scale.row_stride, kBlockShift};
}

struct Product {
  const char* called;
  const ScaledTensorView& w;
  const DotOperand& x;
  const MutableTensorView& out;
  const std::optional<TensorView>& bias;
  const std::optional<MutableTensorView>& workspace;
  bool transposed = false;
  std::string_view candidate{};
};

// By the candidate that is asked for, or that was measured to be the fastest, or reckoned to be.
Prepared<plan::WeightOnlyWork> prepare(Device& device, const Product& product,
                                       const plan::WeightOnlyProblem& problem) {
  const auto plan = [&](std::string_view candidate) {
    return plan::plan_weight_only(problem, product.called, device.gpu(), candidate);
  };
  if (!product.candidate.empty()) return device.load(plan(product.candidate), describe(problem));
  return device.prepared(problem, [&] { return follow_table(device, problem, plan); });
}

void run(Device& device, const Product& product, Stream stream) {
  const TensorView &x = product.x.data, &w = product.w.data;
  const MutableTensorView& out = product.out;
  const plan::WeightOnlyProblem problem{
      .rows = x.shape[0],
      .columns = w.shape[product.transposed ? 1 : 0],
      .depth = x.shape[1],
      .w = w.dtype,
      .x = x.dtype,
      .out = out.dtype,
      .transposed = product.transposed,
      .w_scales = product.w.granularity,
      .x_blocks = product.x.scale && varies_along_k(product.x.granularity),
      .is_aligned = plan::has_vectors(x) && plan::has_vectors(w),
      .out_is_aligned =
          is_aligned(out, std::int64_t{4} * size_of(out.dtype)) && out.shape[1] % 4 == 0,
      .has_workspace = product.workspace && product.workspace->element_count() > 0};
  config::WeightOnlyParams params{
      .w = static_cast<const unsigned char*>(w.data),
      .w_stride = w.strides[0],
      .x = x.data,
      .x_stride = x.strides[0] * size_of(x.dtype),
      .out = out.data,
      .out_stride = out.strides[0],
      .bias = product.bias ? product.bias->data : nullptr,
      .bias_is_float32 = product.bias && product.bias->dtype == DType::kFloat32,
      .w_scale = product.transposed ? scale_of_columns(product.w) : scale_of_rows(product.w),
      .x_scale = {},
      .rows = problem.rows,
      .columns = problem.columns,
      .depth = problem.depth};
  if (product.x.scale) {
    params.x_scale = scale_of_rows({x, *product.x.scale, product.x.granularity});
  }
  const Prepared<plan::WeightOnlyWork> prepared = prepare(device, product, problem);
  if (product.workspace) params.partials = static_cast<float*>(product.workspace->data);
  params.splits = static_cast<int>(prepared.config.splits);
  prepared.launch(stream, &params);
}

}  // namespace

void gemm_weight_only(Device& device, const GemmWeightOnlyArguments& arguments, Stream stream) {
  run(device,
      {.called = "gemm_weight_only",
       .w = arguments.w,
       .x = arguments.x,
       .out = arguments.out,
       .bias = arguments.bias,
       .workspace = arguments.workspace,
       .candidate = arguments.candidate},
      stream);
}

void gemm_weight_only_gradient(Device& device, const GemmWeightOnlyGradientArguments& arguments,
                               Stream stream) {
  run(device,
      {.called = "gemm_weight_only_gradient",
       .w = arguments.w,
       .x = {.data = arguments.gradient},
       .out = arguments.out,
       .bias = {},
       .workspace = arguments.workspace,
       .transposed = true,
       .candidate = arguments.candidate},
      stream);
}

}  // namespace octofold::cuda
