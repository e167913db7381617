#include "octofold/experts.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "octofold/cast.h"
#include "octofold/convert_dtype.h"
#include "octofold/gated_gemm.h"
#include "octofold/grouped_gemm.h"
#include "octofold/grouped_gemm_weight_only.h"
#include "octofold/routing.h"

#include "ops/dense.h"
#include "ops/experts_memory.h"

namespace octofold {
namespace {

using ops::LayerArguments;
using ops::Parts;
using ops::experts::BackwardSpace, ops::experts::ForwardSpace, ops::experts::Kept;
using ops::experts::checked;
using ops::experts::Experts, ops::experts::Routing;

// The product of each row with the matrix of its expert.
void multiply_rows(const LinearProduct& product, const ScaledTensorView& a,
                   const ScaledTensorView& b, const TensorView& offsets,
                   const MutableTensorView& out, const std::optional<TensorView>& bias,
                   Stream stream) {
  grouped_gemm({.a = a,
                .b = b,
                .groups = RowGroups{offsets},
                .out = out,
                .bias = bias,
                .fast_accumulation = product.fast_accumulation,
                .batch_invariant = product.batch_invariant},
               stream);
}

// The same of rows that keep 16 bits, and its gradient.
void multiply_wide(const LinearProduct& product, const RowsOfGroups& x, const ScaledTensorView& w,
                   const TensorView& offsets, const MutableTensorView& out,
                   const std::optional<TensorView>& bias, Stream stream) {
  grouped_gemm_weight_only({.x = x,
                            .w = w,
                            .groups = RowGroups{offsets},
                            .out = out,
                            .bias = bias,
                            .batch_invariant = product.batch_invariant},
                           stream);
}

void go_back_wide(const LinearProduct& product, const RowsOfGroups& gradient,
                  const ScaledTensorView& w, const TensorView& offsets,
                  const MutableTensorView& out, Stream stream) {
  grouped_gemm_weight_only_gradient({.gradient = gradient,
                                     .w = w,
                                     .groups = RowGroups{offsets},
                                     .out = out,
                                     .batch_invariant = product.batch_invariant},
                                    stream);
}

// The gradient by the weights of all experts, of transposed casts.
void multiply_depth(const LinearProduct& product, const ScaledTensorView& a,
                    const ScaledTensorView& b, const TensorView& offsets,
                    const MutableTensorView& out, bool adds, Stream stream) {
  GroupedGemmArguments arguments{.a = a,
                                 .b = b,
                                 .groups = DepthGroups{offsets},
                                 .out = ops::stacked(out, offsets.shape[0] - 1),
                                 .fast_accumulation = product.fast_accumulation,
                                 .batch_invariant = product.batch_invariant};
  if (adds) arguments.c = arguments.out;
  grouped_gemm(arguments, stream);
}

// Writes zeros to the rows that no source is for: no product writes those, and a cast that finds
// one scale for all would read what was there. Others become any numbers, until the product.
void clear_rows(const std::optional<MutableTensorView>& filler, const Routing& routing,
                const MutableTensorView& rows, Stream stream) {
  if (!filler) return;
  TensorView source = *filler;
  source.shape[0] = rows.shape[0];
  source.strides[0] = 0;
  const TensorView places = matrix(static_cast<const void*>(routing.sources.data), DType::kInt32,
                                   rows.shape[0], 1, 1, rows.device);
  combine({.y = source, .positions = places, .out = rows}, stream);
}

// The weights as the output's product reads them. Those of experts without tokens are not cast.
ScaledTensorView weights_operand(const ops::Weight& weight, const std::optional<CastTarget>& rows,
                                 const std::optional<CastTarget>& transposed,
                                 const TensorView& offsets, Stream stream) {
  if (const auto* const codes = std::get_if<ScaledTensorView>(&weight)) return *codes;
  const std::int64_t experts = offsets.shape[0] - 1;
  ops::cast_operand(ops::stacked(std::get<TensorView>(weight), experts),
                    {.rows = rows, .transposed = transposed, .matrices = experts, .used = offsets},
                    stream);
  return *rows;
}

std::optional<TensorView> readable(const std::optional<MutableTensorView>& view) {
  return view ? std::optional<TensorView>(*view) : std::nullopt;
}

}  // namespace

void experts_forward(const ExpertsProblem& problem, const ExpertsForward& given, Stream stream) {
  LayerArguments arguments("experts_forward", problem.device);
  const Experts layer = checked(arguments, problem);
  const std::int64_t tokens = problem.tokens, slots = problem.slots, experts = problem.experts;
  Parts kept_parts(given.kept.data(), problem.device);
  Parts parts(given.workspace.data(), problem.device);
  const Kept kept(layer, kept_parts);
  const ForwardSpace space(layer, parts);
  const TensorView x = arguments.matrix("x", given.x, tokens, problem.in_features);
  if (problem.weight_only) arguments.check().require_dtype("x", x, {*problem.weight_only});
  const TensorView ids =
      arguments.matrix_of("topk_ids", given.topk_ids, DType::kInt32, tokens, slots);
  const TensorView weights =
      arguments.matrix_of("topk_weights", given.topk_weights, DType::kFloat32, tokens, slots);
  const MutableTensorView y = arguments.matrix("y", given.y, tokens, problem.out_features);
  const ops::Weight up_weight = arguments.weights("up_weight", given.up_weight, layer.up, experts);
  const ops::Weight down_weight =
      arguments.weights("down_weight", given.down_weight, layer.down, experts);
  arguments.require_wanted("up_bias", problem.has_up_bias, given.up_bias.has_value());
  arguments.require_wanted("down_bias", problem.has_down_bias, given.down_bias.has_value());
  const auto up_bias = arguments.matrix("up_bias", given.up_bias, experts, layer.up.out_features);
  const auto down_bias =
      arguments.matrix("down_bias", given.down_bias, experts, layer.down.out_features);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), true);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();

  const LinearProduct& output = problem.recipe.output;
  const Routing& routing = kept.routing ? *kept.routing : *space.routing;
  const TensorView offsets = routing.offsets;
  sort_by_expert(ids, experts,
                 {.offsets = routing.offsets,
                  .sources = routing.sources,
                  .positions = routing.positions,
                  .workspace = space.counts},
                 stream);
  const ScaledTensorView up =
      weights_operand(up_weight, space.up, kept.up_transposed, offsets, stream);
  GatheredRows gathered{.x = x, .sources = routing.sources, .slots = slots};
  if (kept.x_transposed) gathered.transposed_factors = weights;
  if (!problem.weight_only) {
    ops::cast_operand(
        gathered, {.rows = space.x, .transposed = kept.x_transposed, .offsets = offsets}, stream);
  }
  if (problem.weight_only) {
    const MutableTensorView between = kept.between ? *kept.between : *space.between;
    multiply_wide(output, gathered, up, offsets, between, up_bias, stream);
    ops::write_values(Activated{.x = between, .activation = problem.activation}, *space.wide_h,
                      stream);
  } else if (layer.fuses) {
    gated_gemm({.a = *space.x,
                .b = up,
                .groups = RowGroups{offsets},
                .out = *space.h,
                .activation = problem.activation,
                .batch_invariant = output.batch_invariant},
               stream);
  } else {
    const MutableTensorView between = kept.between ? *kept.between : *space.between;
    clear_rows(space.filler, routing, between, stream);
    multiply_rows(output, *space.x, up, offsets, between, up_bias, stream);
    ops::cast_operand(Activated{.x = between, .activation = problem.activation},
                      {.rows = space.h, .transposed = kept.h_transposed, .offsets = offsets},
                      stream);
  }
  const ScaledTensorView down =
      weights_operand(down_weight, space.down, kept.down_transposed, offsets, stream);
  if (problem.weight_only) {
    multiply_wide(output, *space.wide_h, down, offsets, space.y, down_bias, stream);
  } else {
    multiply_rows(output, *space.h, down, offsets, space.y, down_bias, stream);
  }
  combine({.y = space.y, .positions = routing.positions, .weights = weights, .out = y}, stream);
}

namespace {

// The gradients that are given, in the shapes that they are written in.
struct Gradients {
  std::optional<MutableTensorView> dx, dtopk_weights, dup, dup_bias, ddown, ddown_bias;
  ScaledTensorView up_transposed, down_transposed;
};

Gradients checked(LayerArguments& arguments, const Experts& layer, const ExpertsBackward& given,
                  const Kept& kept) {
  const ExpertsProblem& problem = layer.of;
  const LinearProblem &up = layer.up, &down = layer.down;
  const auto written = [&](std::string_view name, bool wanted,
                           const std::optional<MutableTensorView>& gradient, std::int64_t rows,
                           std::int64_t cols) {
    arguments.require_wanted(name, wanted, gradient.has_value());
    return arguments.matrix(name, gradient, rows, cols);
  };
  const auto transposed = [&](std::string_view name, const LinearProblem& of,
                              const std::optional<ScaledTensorView>& cast,
                              const std::optional<CastTarget>& own) -> ScaledTensorView {
    arguments.require_wanted(name, of.grad_input && of.weight_is_cast, cast.has_value());
    if (own) return *own;
    if (!cast) return {};
    if (problem.weight_only) {
      arguments.add_stack(name, *cast, of.recipe.output.b, problem.experts, of.out_features,
                          of.in_features);
    } else {
      arguments.add_stack(name, *cast, of.recipe.grad_input.b, problem.experts, of.in_features,
                          of.out_features);
    }
    return *cast;
  };
  const std::int64_t experts = problem.experts;
  if (given.dtopk_weights) {
    arguments.check().require_dtype("dtopk_weights", *given.dtopk_weights, {DType::kFloat32});
  }
  return {
      .dx = written("dx", up.grad_input, given.dx, problem.tokens, up.in_features),
      .dtopk_weights = written("dtopk_weights", problem.grad_topk_weights, given.dtopk_weights,
                               problem.tokens, problem.slots),
      .dup = written("dup", up.grad_weight, given.dup, experts * up.out_features, up.in_features),
      .dup_bias = written("dup_bias", up.grad_bias, given.dup_bias, experts, up.out_features),
      .ddown = written("ddown", down.grad_weight, given.ddown, experts * down.out_features,
                       down.in_features),
      .ddown_bias =
          written("ddown_bias", down.grad_bias, given.ddown_bias, experts, down.out_features),
      .up_transposed = transposed("up_transposed", up, given.up_transposed, kept.up_transposed),
      .down_transposed =
          transposed("down_transposed", down, given.down_transposed, kept.down_transposed)};
}

// The gradient by a bias, of rows that `of_rows` tells of, in the type of `out`.
void sum_experts(ExpertSumsArguments of_rows, const Routing& routing, const MutableTensorView& sums,
                 const MutableTensorView& out, Stream stream) {
  of_rows.offsets = routing.offsets;
  of_rows.sources = routing.sources;
  of_rows.sums = ops::floats_for(out, sums);
  expert_sums(of_rows, stream);
  ops::write_floats(of_rows.sums, out, stream);
}

}  // namespace

void experts_backward(const ExpertsProblem& problem, const ExpertsBackward& given, Stream stream) {
  LayerArguments arguments("experts_backward", problem.device);
  const Experts layer = checked(arguments, problem);
  const std::int64_t tokens = problem.tokens, slots = problem.slots;
  Parts kept_parts(given.kept.data(), problem.device);
  Parts parts(given.workspace.data(), problem.device);
  const Kept kept(layer, kept_parts);
  const BackwardSpace space(layer, parts);
  const TensorView dy = arguments.matrix("dy", given.dy, tokens, problem.out_features);
  const TensorView weights =
      arguments.matrix_of("topk_weights", given.topk_weights, DType::kFloat32, tokens, slots);
  const bool reads_bias = problem.grad_topk_weights && problem.has_down_bias;
  arguments.require_wanted("topk_ids", reads_bias, given.topk_ids.has_value());
  arguments.require_wanted("down_bias", reads_bias, given.down_bias.has_value());
  std::optional<TensorView> ids;
  if (reads_bias) {
    ids = arguments.matrix_of("topk_ids", *given.topk_ids, DType::kInt32, tokens, slots);
  }
  const auto bias =
      arguments.matrix("down_bias", given.down_bias, problem.experts, problem.out_features);
  const Gradients to = checked(arguments, layer, given, kept);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), false);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();
  if (!layer.keeps_routing) return;

  const auto& [output, grad_input, grad_weight] = problem.recipe;
  const Routing& routing = *kept.routing;
  const TensorView offsets = routing.offsets;
  if (to.ddown_bias) {
    sum_experts({.gradient = dy, .weights = weights}, routing, *space.down_sums, *to.ddown_bias,
                stream);
  }
  GatheredRows gathered{.x = dy, .sources = routing.sources, .slots = slots};
  if (space.wide_dy) {
    if (dy.dtype != space.wide_dy->dtype) {
      convert_dtype(dy, *space.wide_dy, Overflow::kSaturate, stream);
      gathered.x = *space.wide_dy;
    }
    go_back_wide(output, gathered, to.down_transposed, offsets, *space.dh, stream);
  }
  if (space.dy_transposed) gathered.transposed_factors = weights;
  ops::cast_operand(
      gathered, {.rows = space.dy, .transposed = space.dy_transposed, .offsets = offsets}, stream);
  if (to.ddown) {
    multiply_depth(grad_weight, *space.dy_transposed, *kept.h_transposed, offsets, *to.ddown,
                   given.adds_to_ddown, stream);
  }
  if (!layer.keeps_between) return;
  clear_rows(space.filler, routing, *space.dh, stream);
  if (space.dy) {
    multiply_rows(grad_input, *space.dy, to.down_transposed, offsets, *space.dh, {}, stream);
  }
  if (to.dtopk_weights) {
    if (bias) {
      combine_gradient(
          {.gradient = dy, .y = *bias, .positions = *ids, .weights_gradient = *to.dtopk_weights},
          stream);
    }
    activation_dots({.gradient = *space.dh,
                     .x = *kept.between,
                     .positions = routing.positions,
                     .activation = problem.activation,
                     .c = bias ? readable(to.dtopk_weights) : std::nullopt,
                     .dots = *to.dtopk_weights},
                    stream);
  }
  if (to.dup_bias) {
    sum_experts({.gradient = *space.dh,
                 .x = *kept.between,
                 .activation = problem.activation,
                 .weights = weights},
                routing, *space.up_sums, *to.dup_bias, stream);
  }
  const ActivationGradient by_between{
      .gradient = *space.dh, .x = *kept.between, .activation = problem.activation};
  ops::cast_operand(
      by_between, {.rows = space.d, .transposed = space.d_transposed, .offsets = offsets}, stream);
  if (to.dup) {
    multiply_depth(grad_weight, *space.d_transposed, *kept.x_transposed, offsets, *to.dup,
                   given.adds_to_dup, stream);
  }
  if (!to.dx) return;
  if (space.wide_d) {
    ops::write_values(by_between, *space.wide_d, stream);
    go_back_wide(output, *space.wide_d, to.up_transposed, offsets, *space.dx, stream);
  } else {
    multiply_rows(grad_input, *space.d, to.up_transposed, offsets, *space.dx, {}, stream);
  }
  combine({.y = *space.dx, .positions = routing.positions, .weights = weights, .out = *to.dx},
          stream);
}

}  // namespace octofold
