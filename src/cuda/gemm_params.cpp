#include "core/scale_layout.h"
#include "cuda/params.h"
#include "cuda/views.h"

namespace octofold::cuda {
namespace {

config::OperandParams operand_params(const ScaledTensorView& operand) {
  const auto scale = core::scale_access(operand);
  return {.data = static_cast<const unsigned char*>(operand.data.data),
          .stride = operand.data.strides[0],
          .scale = {scale.data, scale.row_stride, scale.col_stride}};
}

config::OutputScaleParams output_scale(const core::Product& product) {
  if (!product.gated) return {};
  const auto scale = core::scale_access(CastTarget{
      product.out, product.gated->scale, {.granularity = product.gated->format.granularity}});
  return {scale.data, scale.row_stride, scale.col_stride};
}

// The sizes of D, whose rows are B's where operands are swapped, and its groups.
config::WorkParams work_params(const core::Product& product, bool swapped) {
  const core::Groups& groups = product.groups;
  const MutableTensorView& out = product.out;
  // Rows of all groups together where they lie one after another, else of one.
  const bool together = groups.work == config::Work::kGroupedRows;
  const auto rows = static_cast<int>(out.shape[0] / (together ? 1 : groups.count));
  const auto columns = static_cast<int>(out.shape[1]);
  config::WorkParams work{.rows = swapped ? columns : rows,
                          .columns = swapped ? rows : columns,
                          .depth = static_cast<int>(product.a.data.shape[1]),
                          .groups = static_cast<int>(groups.count),
                          .numbers = groups.numbers,
                          .layout = groups.layout};
  if (product.arrivals) {
    work.groups = static_cast<int>(product.arrivals->shards);
    work.numbers = product.arrivals->flags;
    work.shard_rows = rows / work.groups;
    work.first_shard = static_cast<int>(product.arrivals->own);
  }
  return work;
}

}  // namespace

config::GemmParams gemm_params(const core::Product& product, bool swapped) {
  const MutableTensorView& out = product.out;
  config::GemmParams params{.rows = operand_params(swapped ? product.b : product.a),
                            .columns = operand_params(swapped ? product.a : product.b),
                            .out = out.data,
                            .out_stride = out.strides[0],
                            .c = product.c ? product.c->data : nullptr,
                            .c_stride = product.c ? product.c->strides[0] : 0,
                            .bias = product.bias ? product.bias->data : nullptr,
                            .out_scale = output_scale(product),
                            .work = work_params(product, swapped)};
  const core::Groups& groups = product.groups;
  (swapped ? params.rows : params.columns).scale.group_stride = groups.scale_stride;
  if (groups.a_scale_stride) {  // of A rows are counted from the first group's first
    config::ScaleParams& scale = (swapped ? params.columns : params.rows).scale;
    scale.group_stride = *groups.a_scale_stride - groups.max_rows * scale.row_stride;
  }
  return params;
}

config::GemmParams params_of(const Device&, const core::Product& product,
                             const config::MmaGemmConfig&) {
  return gemm_params(product, false);
}

// Warps store without TMA, whatever it can address.
SlowPaths slow_paths(const config::MmaGemmConfig&) {
  return {.operands = "operands are copied in less than 16 bytes"};
}

}  // namespace octofold::cuda
