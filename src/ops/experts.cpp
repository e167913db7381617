#include "octofold/experts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "octofold/cast.h"
#include "octofold/gated_gemm.h"
#include "octofold/grouped_gemm.h"
#include "octofold/routing.h"

#include "core/format.h"
#include "ops/dense.h"

namespace octofold {
namespace {

using ops::LayerArguments;
using ops::Parts;

// ---- The layer, and what forward and backward have in memory.

// Both layers of an expert as linear layers of all rows: a row for each slot of a token.
struct Experts {
  explicit Experts(const ExpertsProblem& problem);

  std::int64_t rows() const { return up.tokens; }
  // Columns of a transposed cast: the sums over tokens are of groups of them.
  std::int64_t columns() const { return group_columns(rows(), of.experts); }

  const ExpertsProblem& of;
  LinearProblem up, down;
  bool keeps_between;  // True if backward goes through the activation
  bool keeps_routing;  // True if there is a backward
  bool fuses;          // True if the first product writes no result of its own
};

Experts::Experts(const ExpertsProblem& problem)
    : of(problem),
      up{.tokens = problem.tokens * problem.slots,
         .in_features = problem.in_features,
         .out_features = problem.hidden_features * (is_gated(problem.activation) ? 2 : 1),
         .recipe = problem.recipe,
         .grad_input = problem.grad_input,
         .grad_weight = problem.grad_up,
         .grad_bias = problem.grad_up_bias,
         .weight_is_cast = problem.weights_are_cast,
         .device = problem.device},
      down(up),
      keeps_between(problem.grad_input || problem.grad_topk_weights || problem.grad_up ||
                    problem.grad_up_bias),
      keeps_routing(keeps_between || problem.grad_down || problem.grad_down_bias),
      fuses(!keeps_between && !problem.grad_down &&
            ops::is_gated_product(up, problem.activation, problem.y, problem.has_up_bias)) {
  down.in_features = problem.hidden_features;
  down.out_features = problem.out_features;
  down.grad_input = keeps_between;
  down.grad_weight = problem.grad_down;
  down.grad_bias = problem.grad_down_bias;
}

// Throws for sizes of which no others can be computed, and then for all else.
Experts checked(const LayerArguments& arguments, const ExpertsProblem& problem) {
  constexpr int kBits = 28;
  const core::Arguments& check = arguments.check();
  check.require_size("tokens", problem.tokens, 0, kBits);
  check.require_size("slots", problem.slots, 1, kBits);
  check.require_size("experts", problem.experts, 1, 16);
  check.require_size("hidden_features", problem.hidden_features, 1, kBits - 1);
  check.require_enumerator("activation", problem.activation);
  check.require_dtype("y", {.dtype = problem.y},
                      {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  const Experts layer(problem);
  arguments.require_problem(layer.up);
  arguments.require_problem(layer.down);
  const std::int64_t widest =
      std::max({layer.up.in_features, layer.up.out_features, layer.down.out_features});
  if (problem.experts * widest > std::int64_t{1} << kBits) {
    check.fail("experts", "so few that their weights are 2^28 rows at most",
               core::format("{} times {}", problem.experts, widest));
  }
  for (const auto& [name, format] : {std::pair{"recipe.output.a", problem.recipe.output.a},
                                     {"recipe.grad_input.a", problem.recipe.grad_input.a}}) {
    if (format.granularity == Granularity::kBlock128x128) {
      check.fail(name,
                 "scales of 1x128, channel or tensor, as squares have rows of several experts",
                 octofold::name(format.granularity));
    }
  }
  return layer;
}

// The places of rows, as sort_by_expert() finds them.
struct Routing {
  Routing(const Experts& layer, Parts& parts)
      : offsets(parts.integers(layer.of.experts + 1)),
        sources(parts.integers(layer.rows())),
        positions(parts.numbers(DType::kInt32, layer.of.tokens, layer.of.slots)) {}
  MutableTensorView offsets, sources, positions;
};

// The casts of the weights' transposes, as far as backward multiplies by them.
std::optional<CastTarget> transposed_weights(const Experts& layer, const LinearProblem& of,
                                             Parts& parts) {
  if (!of.grad_input || of.weight_is_cast) return std::nullopt;
  return parts.stack(layer.of.experts, of.in_features, of.out_features, of.recipe.grad_input.b);
}

// The transposed cast of a layer's rows, as far as its weights' gradient is wanted.
std::optional<CastTarget> transposed_rows(const Experts& layer, const LinearProblem& of,
                                          Parts& parts) {
  if (!of.grad_weight) return std::nullopt;
  return parts.cast(of.in_features, layer.columns(), of.recipe.grad_weight.b);
}

MutableTensorView between_of(const Experts& layer, Parts& parts) {
  return parts.numbers(layer.of.y, layer.rows(), layer.up.out_features);
}

// Memory of a row that is filled from nowhere, where the cast of rows of so many columns takes the
// largest of all, those too that are nobody's.
std::optional<MutableTensorView> any_row(const Experts& layer, const LinearProduct& product,
                                         std::int64_t cols, Parts& parts) {
  if (product.a.granularity != Granularity::kTensor) return std::nullopt;
  return parts.numbers(layer.of.y, 1, cols);
}

struct Kept {
  Kept(const Experts& layer, Parts& parts) {
    if (layer.keeps_routing) routing.emplace(layer, parts);
    x_transposed = transposed_rows(layer, layer.up, parts);
    h_transposed = transposed_rows(layer, layer.down, parts);
    up_transposed = transposed_weights(layer, layer.up, parts);
    down_transposed = transposed_weights(layer, layer.down, parts);
    if (layer.keeps_between) between = between_of(layer, parts);
  }
  std::optional<Routing> routing;
  std::optional<CastTarget> x_transposed, h_transposed, up_transposed, down_transposed;
  std::optional<MutableTensorView> between;  // the activation's input
};

struct ForwardSpace {
  ForwardSpace(const Experts& layer, Parts& parts)
      : counts(parts.integers(sort_workspace_size(layer.rows(), layer.of.experts))),
        x(parts.cast(layer.rows(), layer.up.in_features, layer.of.recipe.output.a)),
        h(parts.cast(layer.rows(), layer.down.in_features, layer.of.recipe.output.a)),
        y(parts.numbers(layer.of.y, layer.rows(), layer.of.out_features)) {
    if (!layer.keeps_routing) routing.emplace(layer, parts);
    const std::int64_t experts = layer.of.experts;
    const Format& format = layer.of.recipe.output.b;
    if (!layer.of.weights_are_cast) {
      up = parts.stack(experts, layer.up.out_features, layer.up.in_features, format);
      down = parts.stack(experts, layer.down.out_features, layer.down.in_features, format);
    }
    if (layer.fuses) return;
    if (!layer.keeps_between) between = between_of(layer, parts);
    filler = any_row(layer, layer.of.recipe.output, layer.up.out_features, parts);
  }
  MutableTensorView counts;
  CastTarget x, h;
  MutableTensorView y;
  std::optional<Routing> routing;
  std::optional<CastTarget> up, down;
  std::optional<MutableTensorView> between, filler;
};

struct BackwardSpace {
  BackwardSpace(const Experts& layer, Parts& parts) {
    const auto& [output, grad_input, grad_weight] = layer.of.recipe;
    const std::int64_t rows = layer.rows(), columns = layer.columns();
    const LinearProblem &up = layer.up, &down = layer.down;
    if (down.grad_weight) dy_transposed = parts.cast(down.out_features, columns, grad_weight.a);
    if (up.grad_weight) d_transposed = parts.cast(up.out_features, columns, grad_weight.a);
    if (layer.keeps_between) {
      dy = parts.cast(rows, down.out_features, grad_input.a);
      dh = parts.numbers(layer.of.y, rows, down.in_features);
      filler = any_row(layer, grad_input, down.in_features, parts);
    }
    if (up.grad_input) {
      d = parts.cast(rows, up.out_features, grad_input.a);
      dx = parts.numbers(layer.of.y, rows, up.in_features);
    }
    if (up.grad_bias) up_sums = sums_of(layer, up, parts);
    if (down.grad_bias) down_sums = sums_of(layer, down, parts);
  }
  static MutableTensorView sums_of(const Experts& layer, const LinearProblem& of, Parts& parts) {
    return parts.numbers(DType::kFloat32, layer.of.experts, of.out_features);
  }
  std::optional<CastTarget> dy, dy_transposed;  // of the gradient by y
  std::optional<MutableTensorView> dh;          // that by the activation
  std::optional<CastTarget> d, d_transposed;    // of that by what the activation takes
  std::optional<MutableTensorView> dx, filler;  // of rows
  std::optional<MutableTensorView> up_sums, down_sums;
};

// ---- Steps of both.

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

LayerMemory experts_memory(const ExpertsProblem& problem) {
  const Experts layer = checked(LayerArguments("experts_memory", problem.device), problem);
  Parts kept(nullptr, problem.device), forward = kept, backward = kept;
  Kept(layer, kept);
  ForwardSpace(layer, forward);
  BackwardSpace(layer, backward);
  return {.kept = kept.bytes(), .forward = forward.bytes(), .backward = backward.bytes()};
}

void experts_forward(const ExpertsProblem& problem, const ExpertsForward& given, Stream stream) {
  LayerArguments arguments("experts_forward", problem.device);
  const Experts layer = checked(arguments, problem);
  const std::int64_t tokens = problem.tokens, slots = problem.slots, experts = problem.experts;
  Parts kept_parts(given.kept.data(), problem.device);
  Parts parts(given.workspace.data(), problem.device);
  const Kept kept(layer, kept_parts);
  const ForwardSpace space(layer, parts);
  const TensorView x = arguments.matrix("x", given.x, tokens, problem.in_features);
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
  ops::cast_operand(gathered,
                    {.rows = space.x, .transposed = kept.x_transposed, .offsets = offsets}, stream);
  if (layer.fuses) {
    gated_gemm({.a = space.x,
                .b = up,
                .groups = RowGroups{offsets},
                .out = space.h,
                .activation = problem.activation,
                .batch_invariant = output.batch_invariant},
               stream);
  } else {
    const MutableTensorView between = kept.between ? *kept.between : *space.between;
    clear_rows(space.filler, routing, between, stream);
    multiply_rows(output, space.x, up, offsets, between, up_bias, stream);
    ops::cast_operand(Activated{.x = between, .activation = problem.activation},
                      {.rows = space.h, .transposed = kept.h_transposed, .offsets = offsets},
                      stream);
  }
  const ScaledTensorView down =
      weights_operand(down_weight, space.down, kept.down_transposed, offsets, stream);
  multiply_rows(output, space.h, down, offsets, space.y, down_bias, stream);
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
    arguments.add_stack(name, *cast, of.recipe.grad_input.b, problem.experts, of.in_features,
                        of.out_features);
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
  if (space.dy_transposed) gathered.transposed_factors = weights;
  ops::cast_operand(
      gathered, {.rows = space.dy, .transposed = space.dy_transposed, .offsets = offsets}, stream);
  if (to.ddown) {
    multiply_depth(grad_weight, *space.dy_transposed, *kept.h_transposed, offsets, *to.ddown,
                   given.adds_to_ddown, stream);
  }
  if (!layer.keeps_between) return;
  clear_rows(space.filler, routing, *space.dh, stream);
  multiply_rows(grad_input, *space.dy, to.down_transposed, offsets, *space.dh, {}, stream);
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
  ops::cast_operand(
      ActivationGradient{
          .gradient = *space.dh, .x = *kept.between, .activation = problem.activation},
      {.rows = space.d, .transposed = space.d_transposed, .offsets = offsets}, stream);
  if (to.dup) {
    multiply_depth(grad_weight, *space.d_transposed, *kept.x_transposed, offsets, *to.dup,
                   given.adds_to_dup, stream);
  }
  if (!to.dx) return;
  multiply_rows(grad_input, *space.d, to.up_transposed, offsets, *space.dx, {}, stream);
  combine({.y = *space.dx, .positions = routing.positions, .weights = weights, .out = *to.dx},
          stream);
}

}  // namespace octofold
