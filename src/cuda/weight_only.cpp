#include "plan/weight_only.h"

#include <cstdint>
#include <variant>

#include "core/scale_layout.h"
#include "cuda/backend.h"
#include "cuda/context.h"
#include "cuda/fastest.h"
#include "cuda/group_check.h"
#include "cuda/params.h"
#include "cuda/tensor_map.h"
#include "cuda/views.h"
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

// The scales of a W whose rows are the depth: out's columns are its own.
config::WeightOnlyScale scale_of_columns(const ScaledTensorView& tensor) {
  const auto scale = core::scale_access(tensor);
  return {scale.data, scale.col_stride, scale.row_stride, kBlockShift};
}

using core::WeightOnlyProduct;

config::WeightOnlyGroups groups_of(const WeightOnlyProduct& product) {
  const core::Groups& groups = product.groups;
  if (!config::has_groups(groups.work)) return {};
  config::WeightOnlyGroups params{
      .numbers = groups.numbers,
      .count = static_cast<int>(groups.count),
      .w_stride = product.w.data.shape[0] / groups.count * product.w.data.strides[0],
      .scale_stride = groups.scale_stride};
  if (product.gathered) {
    const GatheredRows& rows = *product.gathered;
    params.sources = static_cast<const int*>(rows.sources.data);
    params.slots = config::Divisor::of(static_cast<unsigned>(rows.slots));
    params.places = places_of(rows);
    params.factors = floats_of(rows.factors);
  }
  return params;
}

config::WeightOnlyScale scale_of_weights(const WeightOnlyProduct& product) {
  return product.transposed ? scale_of_columns(product.w) : scale_of_rows(product.w);
}

}  // namespace

config::WeightOnlyParams weight_only_params(const WeightOnlyProduct& product, std::int64_t splits) {
  const TensorView &x = product.x.data, &w = product.w.data;
  config::WeightOnlyParams params{
      .w = static_cast<const unsigned char*>(w.data),
      .w_stride = w.strides[0],
      .x = x.data,
      .x_stride = x.strides[0] * size_of(x.dtype),
      .out = product.out.data,
      .out_stride = product.out.strides[0],
      .bias = product.bias ? product.bias->data : nullptr,
      .bias_is_float32 = product.bias && product.bias->dtype == DType::kFloat32,
      .w_scale = scale_of_weights(product),
      .x_scale = {},
      .rows = plan::rows_of(product),
      .columns = product.out.shape[1],
      .depth = x.shape[1],
      .splits = static_cast<int>(splits),
      .groups = groups_of(product)};
  if (product.x.scale) {
    params.x_scale = scale_of_rows({x, *product.x.scale, product.x.granularity});
  }
  if (product.workspace) params.partials = static_cast<float*>(product.workspace->data);
  return params;
}

config::WeightOnlyParams params_of(const Device&, const WeightOnlyProduct& product,
                                   const plan::WeightOnlyWork& work) {
  return weight_only_params(product, work.splits);
}

config::Sm90WeightOnlyParams params_of(const Device& device, const WeightOnlyProduct& product,
                                       const config::Sm90WeightOnlyConfig& config) {
  const TensorView& x = product.x.data;
  const Driver& driver = device.driver();
  const ContextGuard current(driver, device.context());
  return {.w_map =
              encode_tensor_map(driver, product.w.data,
                                config.transposed ? kScaleBlock : config.tile_columns, kScaleBlock),
          .x_map = encode_tensor_map(driver, x, config.tile_rows, kScaleBlock / 2),
          .out = product.out.data,
          .out_stride = product.out.strides[0],
          .bias = product.bias ? product.bias->data : nullptr,
          .bias_is_float32 = product.bias && product.bias->dtype == DType::kFloat32,
          .w_scale = scale_of_weights(product),
          .work = {.rows = static_cast<int>(plan::rows_of(product)),
                   .columns = static_cast<int>(product.out.shape[1]),
                   .depth = static_cast<int>(x.shape[1]),
                   .bands = {.width = config::kNeighbourRows}},
          .groups = groups_of(product)};
}

void multiply(Device& device, const WeightOnlyProduct& product, Stream stream) {
  const plan::WeightOnlyProblem problem = plan::problem_of(product);
  const auto plan = [&](std::string_view candidate) {
    return plan::plan_weight_only(problem, device.gpu(), candidate);
  };
  const auto told = [](const plan::WeightOnlyChoice&) {};
  auto chosen = choose_kernel(device, problem, product.candidate, stream, plan, told);
  check_groups(device, plan::operation_of(problem), product.groups, stream);
  std::visit(
      [&](const auto& choice) {
        const auto params = params_of(device, product, choice);
        chosen.launch(stream, &params);
      },
      chosen.config());
}

}  // namespace octofold::cuda
