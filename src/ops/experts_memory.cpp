#include "ops/experts_memory.h"

#include <algorithm>
#include <utility>

#include "octofold/grouped_gemm.h"
#include "octofold/routing.h"

#include "core/format.h"

namespace octofold {
namespace ops::experts {

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
      fuses(!keeps_between && !problem.grad_down && !problem.weight_only &&
            ops::is_gated_product(up, problem.activation, problem.y, problem.has_up_bias)) {
  down.in_features = problem.hidden_features;
  down.out_features = problem.out_features;
  down.grad_input = keeps_between;
  down.grad_weight = problem.grad_down;
  down.grad_bias = problem.grad_down_bias;
}

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
  if (problem.weight_only) {
    check.require_dtype("weight_only", {.dtype = *problem.weight_only},
                        {DType::kBFloat16, DType::kFloat16});
    if (!problem.weights_are_cast || problem.grad_up || problem.grad_down) {
      check.fail("weight_only", "weights that are cast, and have no gradients", "others");
    }
  }
  return layer;
}

namespace {

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
  return parts.numbers(layer.between(), layer.rows(), layer.up.out_features);
}

// Memory of a row that is filled from nowhere, where the cast of rows of so many columns takes the
// largest of all, those too that are nobody's.
std::optional<MutableTensorView> any_row(const Experts& layer, const LinearProduct& product,
                                         std::int64_t cols, Parts& parts) {
  if (product.a.granularity != Granularity::kTensor || layer.of.weight_only) return std::nullopt;
  return parts.numbers(layer.of.y, 1, cols);
}

MutableTensorView sums_of(const Experts& layer, const LinearProblem& of, Parts& parts) {
  return parts.numbers(DType::kFloat32, layer.of.experts, of.out_features);
}

}  // namespace

Routing::Routing(const Experts& layer, Parts& parts)
    : offsets(parts.integers(layer.of.experts + 1)),
      sources(parts.integers(layer.rows())),
      positions(parts.numbers(DType::kInt32, layer.of.tokens, layer.of.slots)) {}

Kept::Kept(const Experts& layer, Parts& parts) {
  if (layer.keeps_routing) routing.emplace(layer, parts);
  x_transposed = transposed_rows(layer, layer.up, parts);
  h_transposed = transposed_rows(layer, layer.down, parts);
  up_transposed = transposed_weights(layer, layer.up, parts);
  down_transposed = transposed_weights(layer, layer.down, parts);
  if (layer.keeps_between) between = between_of(layer, parts);
}

ForwardSpace::ForwardSpace(const Experts& layer, Parts& parts)
    : counts(parts.integers(sort_workspace_size(layer.rows(), layer.of.experts))),
      y(parts.numbers(layer.of.y, layer.rows(), layer.of.out_features)) {
  if (layer.of.weight_only) {
    wide_h = parts.numbers(layer.between(), layer.rows(), layer.down.in_features);
  } else {
    x = parts.cast(layer.rows(), layer.up.in_features, layer.of.recipe.output.a);
    h = parts.cast(layer.rows(), layer.down.in_features, layer.of.recipe.output.a);
  }
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

BackwardSpace::BackwardSpace(const Experts& layer, Parts& parts) {
  const auto& [output, grad_input, grad_weight] = layer.of.recipe;
  const std::int64_t rows = layer.rows(), columns = layer.columns();
  const LinearProblem &up = layer.up, &down = layer.down;
  if (down.grad_weight) dy_transposed = parts.cast(down.out_features, columns, grad_weight.a);
  if (up.grad_weight) d_transposed = parts.cast(up.out_features, columns, grad_weight.a);
  const bool is_wide = layer.of.weight_only.has_value();
  const DType type = layer.between();
  if (layer.keeps_between) {
    if (is_wide) wide_dy = parts.numbers(type, layer.of.tokens, down.out_features);
    if (!is_wide) dy = parts.cast(rows, down.out_features, grad_input.a);
    dh = parts.numbers(type, rows, down.in_features);
    filler = any_row(layer, grad_input, down.in_features, parts);
  }
  if (up.grad_input) {
    if (is_wide) wide_d = parts.numbers(type, rows, up.out_features);
    if (!is_wide) d = parts.cast(rows, up.out_features, grad_input.a);
    dx = parts.numbers(type, rows, up.in_features);
  }
  if (up.grad_bias) up_sums = sums_of(layer, up, parts);
  if (down.grad_bias) down_sums = sums_of(layer, down, parts);
}

}  // namespace ops::experts

LayerMemory experts_memory(const ExpertsProblem& problem) {
  using namespace ops::experts;
  const Experts layer = checked(ops::LayerArguments("experts_memory", problem.device), problem);
  ops::Parts kept(nullptr, problem.device), forward = kept, backward = kept;
  Kept(layer, kept);
  ForwardSpace(layer, forward);
  BackwardSpace(layer, backward);
  return {.kept = kept.bytes(), .forward = forward.bytes(), .backward = backward.bytes()};
}

}  // namespace octofold
