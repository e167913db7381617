#include "octofold/linear.h"

#include <cstddef>
#include <cstdint>

#include "octofold/cast.h"
#include "octofold/gemm.h"
#include "octofold/tensor.h"

#include "ops/backend.h"
#include "ops/dense.h"
#include "plan/capability.h"
#include "plan/tma.h"

namespace octofold {
namespace {

// Up to so many tokens a product casts x itself, where backward wants nothing of it: it saves a
// kernel, and each 64 features that the layer puts out cast all tokens again. Measured on an H200,
// six N,K (docs/notes/layers.md): at 8 it wins 7 % over cast and product apart, at 16 it loses 6 %.
constexpr std::int64_t kFewTokens = 8;

bool product_casts(const LinearProblem& problem, const LinearForward& given,
                   const ScaledTensorView& weight) {
  const LinearProduct& output = problem.recipe.output;
  return !given.activation && problem.device.type == DeviceType::kCuda && !problem.grad_weight &&
         problem.tokens <= kFewTokens && output.a.granularity == Granularity::kBlock1x128 &&
         output.b.granularity == Granularity::kBlock128x128 &&
         plan::tma_obstacle(weight.data) == nullptr &&
         plan::why_not(plan::Operation::kDynamicProduct,
                       ops::gpu("linear_forward", problem.device).gpu())
             .empty();
}

}  // namespace

LayerMemory linear_memory(const LinearProblem& problem) {
  ops::LayerArguments("linear_memory", problem.device).require_problem(problem);
  ops::Parts kept(nullptr, problem.device), forward = kept, backward = kept;
  ops::kept_casts(problem, kept);
  ops::forward_casts(problem, forward);
  ops::backward_casts(problem, backward);
  return {.kept = kept.bytes(), .forward = forward.bytes(), .backward = backward.bytes()};
}

void linear_forward(const LinearProblem& problem, const LinearForward& given, Stream stream) {
  ops::LayerArguments arguments("linear_forward", problem.device);
  arguments.require_problem(problem);
  const std::int64_t tokens = problem.tokens;
  const LinearProduct& output = problem.recipe.output;
  const std::int64_t halves = given.activation && is_gated(*given.activation) ? 2 : 1;
  const TensorView x = arguments.matrix("x", given.x, tokens, problem.in_features * halves);
  const auto y = arguments.matrix("y", given.y, tokens, problem.out_features);
  const ops::Weight given_weight = arguments.weight("weight", given.weight, problem);
  arguments.add_vector("bias", given.bias);
  ops::Parts kept_parts(given.kept.data(), problem.device);
  ops::Parts parts(given.workspace.data(), problem.device);
  const ops::KeptCasts kept = ops::kept_casts(problem, kept_parts);
  const ops::ForwardCasts casts = ops::forward_casts(problem, parts);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), true);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();

  CastSource source = x;
  if (given.activation) source = Activated{.x = x, .activation = *given.activation};
  if (!y) {
    if (const auto* const numbers = std::get_if<TensorView>(&given_weight)) {
      ops::cast_operand(*numbers, {.transposed = kept.weight_transposed}, stream);
    }
    return ops::cast_operand(source, {.transposed = kept.x_transposed}, stream);
  }
  const ScaledTensorView weight = ops::weight_operand(given_weight, kept, casts, stream);
  if (product_casts(problem, given, weight)) {
    return gemm({.a = CastOperand{.data = x, .format = output.a},
                 .b = weight,
                 .out = *y,
                 .bias = given.bias,
                 .fast_accumulation = output.fast_accumulation,
                 .batch_invariant = output.batch_invariant},
                stream);
  }
  ops::cast_operand(source, {.rows = casts.x, .transposed = kept.x_transposed}, stream);
  ops::multiply(output, casts.x, weight, *y, {}, given.bias, stream);
}

void linear_backward(const LinearProblem& problem, const LinearBackward& given, Stream stream) {
  ops::LayerArguments arguments("linear_backward", problem.device);
  arguments.require_problem(problem);
  const TensorView dy = arguments.matrix("dy", given.dy, problem.tokens, problem.out_features);
  const ops::DenseGradients gradients = arguments.gradients(
      problem, {.dx = "dx", .dw = "dw", .db = "db", .weight_transposed = "weight_transposed"},
      {given.weight_transposed, given.dx, given.dw, given.db, given.adds_to_dw});
  ops::Parts kept_parts(given.kept.data(), problem.device);
  ops::Parts parts(given.workspace.data(), problem.device);
  const ops::KeptCasts kept = ops::kept_casts(problem, kept_parts);
  const ops::BackwardCasts casts = ops::backward_casts(problem, parts);
  arguments.add_memory("kept", given.kept, kept_parts.bytes(), false);
  arguments.add_memory("workspace", given.workspace, parts.bytes(), true);
  arguments.require_all_apart();
  ops::backward(problem, dy, kept, casts, gradients, stream);
}

}  // namespace octofold
