#include "plan/weight_only.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <variant>

#include "core/scale_layout.h"
#include "cuda/backend.h"
#include "cuda/context.h"
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

// By the candidate that is asked for, or that was measured to be the fastest, or reckoned to be.
Prepared<plan::WeightOnlyChoice> prepare(Device& device, const WeightOnlyProduct& product,
                                         const plan::WeightOnlyProblem& problem) {
  const auto plan = [&](std::string_view candidate) {
    return plan::plan_weight_only(problem, device.gpu(), candidate);
  };
  if (!product.candidate.empty()) return device.load(plan(product.candidate), describe(problem));
  return device.prepared(problem, [&] { return follow_table(device, problem, plan); });
}

// The rows that a kernel counts: those of a masked group, else all.
std::int64_t rows_of(const WeightOnlyProduct& product) {
  const std::int64_t rows = product.out.shape[0];
  switch (product.groups.work) {
    case config::Work::kMaskedRows: return product.groups.max_rows;
    case config::Work::kGroupedRows:  // offsets have 32 bits
      return std::min<std::int64_t>(rows, std::numeric_limits<int>::max());
    default: return rows;
  }
}

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

plan::WeightOnlyProblem problem_of(const WeightOnlyProduct& product) {
  const TensorView &x = product.x.data, &w = product.w.data;
  const MutableTensorView& out = product.out;
  const core::Groups& groups = product.groups;
  return {.rows = rows_of(product),
          .columns = out.shape[1],
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
          .has_workspace = product.workspace && product.workspace->element_count() > 0,
          .fits_tma = plan::tma_obstacle(x) == nullptr && plan::tma_obstacle(w) == nullptr,
          .work = groups.work,
          .groups = groups.count,
          .expected = groups.work == config::Work::kMaskedRows ? groups.expected_rows : 0,
          .gathered = product.gathered.has_value(),
          .batch_invariant = product.batch_invariant};
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
      .rows = rows_of(product),
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
          .work = {.rows = static_cast<int>(rows_of(product)),
                   .columns = static_cast<int>(product.out.shape[1]),
                   .depth = static_cast<int>(x.shape[1]),
                   .bands = {.width = config::kNeighbourRows}},
          .groups = groups_of(product)};
}

void multiply(Device& device, const WeightOnlyProduct& product, Stream stream) {
  const plan::WeightOnlyProblem problem = problem_of(product);
  const Prepared<plan::WeightOnlyChoice> prepared = prepare(device, product, problem);
  check_groups(device, plan::operation_of(problem), product.groups, stream);
  std::visit(
      [&](const auto& choice) {
        const auto params = params_of(device, product, choice);
        prepared.launch(stream, &params);
      },
      prepared.config);
}

}  // namespace octofold::cuda
