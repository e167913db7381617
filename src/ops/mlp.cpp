#include "octofold/mlp.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "octofold/cast.h"
#include "octofold/gated_gemm.h"
#include "octofold/norm_gradient.h"
#include "octofold/norm_linear.h"

#include "ops/cast_sources.h"
#include "ops/dense.h"

namespace octofold {
namespace {

using ops::LayerArguments;
using ops::Parts;

// ---- The first layer: of x, or of the norm of x + residual.

struct First {
  LinearProblem linear;
  std::optional<InputNorm> norm;
  DType x;

  bool goes_through_norm() const { return norm && linear.grad_input; }
};

void require_first(const LayerArguments& arguments, const First& first) {
  arguments.require_problem(first.linear);
  arguments.check().require_dtype("x", {.dtype = first.x},
                                  {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  if (first.norm) ops::require_norm_kind(arguments.check(), first.norm->kind);
}

// What forward keeps of it for backward.
struct FirstKept {
  FirstKept(const First& first, Parts& parts) : casts(ops::kept_casts(first.linear, parts)) {
    if (!first.norm) return;
    rstd = parts.floats(first.linear.tokens);
    if (first.norm->kind == NormKind::kLayer) mean = parts.floats(first.linear.tokens);
  }
  ops::KeptCasts casts;
  MutableTensorView rstd;
  std::optional<MutableTensorView> mean;
};

// What backward uses for it.
struct FirstSpace {
  FirstSpace(const First& first, Parts& parts) : casts(ops::backward_casts(first.linear, parts)) {
    if (!first.goes_through_norm()) return;
    const std::int64_t in = first.linear.in_features;
    by_norm = parts.numbers(first.x, first.linear.tokens, in);
    dweight = parts.floats(in);
    dbias = parts.floats(in);
    workspace = parts.numbers(DType::kFloat32, norm_workspace_rows(in), in);
  }
  ops::BackwardCasts casts;
  MutableTensorView by_norm;  // the gradient by the norm's result
  MutableTensorView dweight, dbias, workspace;
};

// What forward multiplies: x of the given arguments, or its norm.
template <typename Forward>
CastSource source_of(const First& first, const Forward& given, const FirstKept& kept,
                     LayerArguments& arguments) {
  const std::int64_t tokens = first.linear.tokens, in = first.linear.in_features;
  const TensorView x = arguments.matrix("x", given.x, tokens, in);
  arguments.check().require_dtype("x", x, {first.x});
  if (!first.norm) {
    arguments.require_wanted("residual", false, given.residual.has_value());
    arguments.require_wanted("sum", false, given.sum.has_value());
    arguments.require_no_operands(given.operands);
    return x;
  }
  arguments.require_wanted("sum", given.residual.has_value(), given.sum.has_value());
  const auto residual = arguments.matrix("residual", given.residual, tokens, in);
  const auto sum = arguments.matrix("sum", given.sum, tokens, in);
  arguments.add_operands(given.operands);
  return Normed{.kind = first.norm->kind,
                .epsilon = first.norm->epsilon,
                .x = x,
                .residual = residual,
                .operands = given.operands,
                .sum = sum,
                .rstd = kept.rstd,
                .mean = kept.mean};
}

// The gradient of the norm, if there is one to go through. `dx` has been checked.
template <typename Backward>
std::optional<NormGradientArguments> norm_step_of(const First& first, const Backward& given,
                                                  const std::optional<TensorView>& given_x,
                                                  const FirstKept& kept, const FirstSpace& space,
                                                  LayerArguments& arguments) {
  const bool through = first.goes_through_norm();
  arguments.require_wanted("x", through, given_x.has_value());
  if (!through) {
    arguments.require_wanted("sum_gradient", false, given.sum_gradient.has_value());
    arguments.require_wanted("dnorm_weight", false, given.dnorm_weight.has_value());
    arguments.require_wanted("dnorm_bias", false, given.dnorm_bias.has_value());
    return std::nullopt;
  }
  const std::int64_t tokens = first.linear.tokens, in = first.linear.in_features;
  arguments.add_operands(given.operands);
  arguments.add_vector("dnorm_weight", given.dnorm_weight);
  arguments.add_vector("dnorm_bias", given.dnorm_bias);
  return NormGradientArguments{
      .kind = first.norm->kind,
      .gradient = space.by_norm,
      .x = arguments.matrix("x", *given_x, tokens, in),
      .rstd = kept.rstd,
      .mean = kept.mean,
      .operands = given.operands,
      .residual_gradient = arguments.matrix("sum_gradient", given.sum_gradient, tokens, in)};
}

// The first layer's gradients, from the gradient by its result: all of the arguments are checked.
template <typename Backward>
void first_backward(const First& first, const CastSource& dy, const Backward& given,
                    const FirstKept& kept, const FirstSpace& space,
                    const std::optional<NormGradientArguments>& step, ops::DenseGradients gradients,
                    Stream stream) {
  const std::optional<MutableTensorView> dx = gradients.dx;
  if (step) gradients.dx = space.by_norm;
  ops::backward(first.linear, dy, kept.casts, space.casts, gradients, stream);
  if (!step) return;
  NormGradients of_norm{.dx = *dx};
  if (given.dnorm_weight) of_norm.dweight = ops::floats_for(*given.dnorm_weight, space.dweight);
  if (given.dnorm_bias) of_norm.dbias = ops::floats_for(*given.dnorm_bias, space.dbias);
  if (given.dnorm_weight || given.dnorm_bias) of_norm.workspace = space.workspace;
  norm_gradient(*step, of_norm, stream);
  if (given.dnorm_weight) ops::write_floats(*of_norm.dweight, *given.dnorm_weight, stream);
  if (given.dnorm_bias) ops::write_floats(*of_norm.dbias, *given.dnorm_bias, stream);
}

First first_of(const NormLinearProblem& problem) {
  return {problem.linear, problem.norm, problem.x};
}

}  // namespace

LayerMemory norm_linear_memory(const NormLinearProblem& problem) {
  const First first = first_of(problem);
  require_first(LayerArguments("norm_linear_memory", problem.linear.device), first);
  Parts kept(nullptr, problem.linear.device), forward = kept, backward = kept;
  FirstKept(first, kept);
  ops::forward_casts(problem.linear, forward);
  FirstSpace(first, backward);
  return {.kept = kept.bytes(), .forward = forward.bytes(), .backward = backward.bytes()};
}

void norm_linear_forward(const NormLinearProblem& problem, const NormLinearForward& given,
                         Stream stream) {
  const First first = first_of(problem);
  const LinearProblem& linear = problem.linear;
  LayerArguments arguments("norm_linear_forward", linear.device);
  require_first(arguments, first);
  Parts kept_parts(given.kept.data(), linear.device), parts(given.workspace.data(), linear.device);
  const FirstKept kept(first, kept_parts);
  const ops::ForwardCasts casts = ops::forward_casts(linear, parts);
  const CastSource source = source_of(first, given, kept, arguments);
  const MutableTensorView y = arguments.matrix("y", given.y, linear.tokens, linear.out_features);
  const ops::Weight given_weight = arguments.weight("weight", given.weight, linear);
  arguments.add_vector("bias", given.bias);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), true);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();

  const ScaledTensorView weight = ops::weight_operand(given_weight, kept.casts, casts, stream);
  ops::cast_operand(source, {.rows = casts.x, .transposed = kept.casts.x_transposed}, stream);
  ops::multiply(linear.recipe.output, casts.x, weight, y, {}, given.bias, stream);
}

void norm_linear_backward(const NormLinearProblem& problem, const NormLinearBackward& given,
                          Stream stream) {
  const First first = first_of(problem);
  const LinearProblem& linear = problem.linear;
  LayerArguments arguments("norm_linear_backward", linear.device);
  require_first(arguments, first);
  Parts kept_parts(given.kept.data(), linear.device), parts(given.workspace.data(), linear.device);
  const FirstKept kept(first, kept_parts);
  const FirstSpace space(first, parts);
  const TensorView dy = arguments.matrix("dy", given.dy, linear.tokens, linear.out_features);
  const ops::DenseGradients gradients = arguments.gradients(
      linear, {.dx = "dx", .dw = "dw", .db = "db", .weight_transposed = "weight_transposed"},
      {given.weight_transposed, given.dx, given.dw, given.db, given.adds_to_dw});
  const auto step = norm_step_of(first, given, given.x, kept, space, arguments);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), false);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();
  first_backward(first, dy, given, kept, space, step, gradients, stream);
}

namespace {

// ---- An MLP: the first layer, the activation and a second layer.

struct Mlp {
  Mlp(const MlpProblem& problem);

  First up;
  LinearProblem down;
  Activation activation;
  DType between;       // the type of the first product's result
  bool keeps_between;  // True if backward goes through the activation
  bool keeps_fp8;
  // True if product, activation and cast are one operation, which writes no result of the product.
  bool fuses;
};

Mlp::Mlp(const MlpProblem& problem)
    : up{.linear = {.tokens = problem.tokens,
                    .in_features = problem.in_features,
                    .out_features =
                        problem.hidden_features * (is_gated(problem.activation) ? 2 : 1),
                    .recipe = problem.recipe,
                    .grad_input = problem.grad_input,
                    .grad_weight = problem.grad_up,
                    .grad_bias = problem.grad_up_bias,
                    .weight_is_cast = problem.weights_are_cast,
                    .device = problem.device},
         .norm = problem.norm,
         .x = problem.x},
      down(up.linear),
      activation(problem.activation),
      between(problem.y),
      keeps_between(problem.grad_input || problem.grad_up || problem.grad_up_bias),
      keeps_fp8(problem.keeps_fp8) {
  down.in_features = problem.hidden_features;
  down.out_features = problem.out_features;
  down.grad_input = keeps_between;
  down.grad_weight = problem.grad_down;
  down.grad_bias = problem.grad_down_bias;
  fuses = !keeps_between && !problem.grad_down &&
          ops::is_gated_product(up.linear, activation, between, problem.has_up_bias);
}

void require_mlp(const LayerArguments& arguments, const MlpProblem& problem, const Mlp& mlp) {
  arguments.check().require_size("hidden_features", problem.hidden_features, 1, 27);
  arguments.check().require_enumerator("activation", mlp.activation);
  arguments.check().require_dtype("y", {.dtype = mlp.between},
                                  {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  require_first(arguments, mlp.up);
  arguments.require_problem(mlp.down);
}

MutableTensorView between_of(const Mlp& mlp, Parts& parts) {
  return parts.numbers(mlp.between, mlp.up.linear.tokens, mlp.up.linear.out_features);
}

struct MlpKept {
  MlpKept(const Mlp& mlp, Parts& parts)
      : up(mlp.up, parts), down(ops::kept_casts(mlp.down, parts)) {
    if (!mlp.keeps_between) return;
    if (!mlp.keeps_fp8) {
      between = between_of(mlp, parts);
      return;
    }
    const Format format{.rule = mlp.up.linear.recipe.output.a.rule};
    codes = parts.cast(mlp.up.linear.tokens, mlp.up.linear.out_features, format);
  }
  // The activation's input, as it waits for backward.
  std::variant<TensorView, ScaledTensorView> input() const {
    if (codes) return ScaledTensorView(*codes);
    return TensorView(*between);
  }
  FirstKept up;
  ops::KeptCasts down;
  std::optional<MutableTensorView> between;
  std::optional<CastTarget> codes;
};

struct MlpForwardSpace {
  MlpForwardSpace(const Mlp& mlp, Parts& parts)
      : up(ops::forward_casts(mlp.up.linear, parts)), down(ops::forward_casts(mlp.down, parts)) {
    const bool is_kept = mlp.keeps_between && !mlp.keeps_fp8;
    if (!mlp.fuses && !is_kept) between = between_of(mlp, parts);
  }
  ops::ForwardCasts up, down;
  std::optional<MutableTensorView> between;
};

struct MlpBackwardSpace {
  MlpBackwardSpace(const Mlp& mlp, Parts& parts)
      : up(mlp.up, parts), down(ops::backward_casts(mlp.down, parts)) {
    if (mlp.keeps_between) dh = parts.numbers(mlp.between, mlp.down.tokens, mlp.down.in_features);
  }
  FirstSpace up;
  ops::BackwardCasts down;
  std::optional<MutableTensorView> dh;  // the gradient by the activation's result
};

}  // namespace

LayerMemory mlp_memory(const MlpProblem& problem) {
  const Mlp mlp(problem);
  require_mlp(LayerArguments("mlp_memory", problem.device), problem, mlp);
  Parts kept(nullptr, problem.device), forward = kept, backward = kept;
  MlpKept(mlp, kept);
  MlpForwardSpace(mlp, forward);
  MlpBackwardSpace(mlp, backward);
  return {.kept = kept.bytes(), .forward = forward.bytes(), .backward = backward.bytes()};
}

void mlp_forward(const MlpProblem& problem, const MlpForward& given, Stream stream) {
  const Mlp mlp(problem);
  const LinearProblem &of_up = mlp.up.linear, &of_down = mlp.down;
  LayerArguments arguments("mlp_forward", problem.device);
  require_mlp(arguments, problem, mlp);
  Parts kept_parts(given.kept.data(), problem.device);
  Parts parts(given.workspace.data(), problem.device);
  const MlpKept kept(mlp, kept_parts);
  const MlpForwardSpace space(mlp, parts);
  const CastSource source = source_of(mlp.up, given, kept.up, arguments);
  const MutableTensorView y = arguments.matrix("y", given.y, problem.tokens, problem.out_features);
  const ops::Weight up_weight = arguments.weight("up_weight", given.up_weight, of_up);
  const ops::Weight down_weight = arguments.weight("down_weight", given.down_weight, of_down);
  arguments.require_wanted("up_bias", problem.has_up_bias, given.up_bias.has_value());
  arguments.add_vector("up_bias", given.up_bias);
  arguments.add_vector("down_bias", given.down_bias);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), true);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();

  const LinearProduct& output = problem.recipe.output;
  const ScaledTensorView up = ops::weight_operand(up_weight, kept.up.casts, space.up, stream);
  ops::cast_operand(source, {.rows = space.up.x, .transposed = kept.up.casts.x_transposed}, stream);
  if (mlp.fuses) {
    gated_gemm({.a = space.up.x,
                .b = up,
                .out = space.down.x,
                .activation = mlp.activation,
                .batch_invariant = output.batch_invariant},
               stream);
  } else {
    const MutableTensorView between = space.between ? *space.between : *kept.between;
    ops::multiply(output, space.up.x, up, between, {}, given.up_bias, stream);
    if (kept.codes) cast(between, {.rows = kept.codes}, stream);
    ops::cast_operand(Activated{.x = between, .activation = mlp.activation},
                      {.rows = space.down.x, .transposed = kept.down.x_transposed}, stream);
  }
  const ScaledTensorView down = ops::weight_operand(down_weight, kept.down, space.down, stream);
  ops::multiply(output, space.down.x, down, y, {}, given.down_bias, stream);
}

void mlp_backward(const MlpProblem& problem, const MlpBackward& given, Stream stream) {
  const Mlp mlp(problem);
  LayerArguments arguments("mlp_backward", problem.device);
  require_mlp(arguments, problem, mlp);
  Parts kept_parts(given.kept.data(), problem.device);
  Parts parts(given.workspace.data(), problem.device);
  const MlpKept kept(mlp, kept_parts);
  const MlpBackwardSpace space(mlp, parts);
  const TensorView dy = arguments.matrix("dy", given.dy, problem.tokens, problem.out_features);
  ops::DenseGradients down = arguments.gradients(
      mlp.down, {.dw = "ddown", .db = "ddown_bias", .weight_transposed = "down_transposed"},
      {given.down_transposed, {}, given.ddown, given.ddown_bias, given.adds_to_ddown});
  down.dx = space.dh;
  const ops::DenseGradients up = arguments.gradients(
      mlp.up.linear,
      {.dx = "dx", .dw = "dup", .db = "dup_bias", .weight_transposed = "up_transposed"},
      {given.up_transposed, given.dx, given.dup, given.dup_bias, given.adds_to_dup});
  const auto step = norm_step_of(mlp.up, given, given.x, kept.up, space.up, arguments);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), false);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();

  if (mlp.keeps_between || problem.grad_down || problem.grad_down_bias) {
    ops::backward(mlp.down, dy, kept.down, space.down, down, stream);
  }
  if (!mlp.keeps_between) return;
  const ActivationGradient by_up{
      .gradient = *space.dh, .x = kept.input(), .activation = mlp.activation};
  first_backward(mlp.up, by_up, given, kept.up, space.up, step, up, stream);
}

}  // namespace octofold
