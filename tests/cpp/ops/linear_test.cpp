// Linear layers in one call each way: memory that is just enough, rows of tensors that lie apart,
// no more than is wanted, a weight that is cast, and bad arguments. Python's tests have the bits.
#include "octofold/linear.h"

#include "octofold/octofold.h"

#include "core/format.h"
#include "support/layer_memory.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::kBlockwise, test::kTensorwise;
using test::Matrix;
using test::random_matrix;
using Memory = test::LayerBytes;

// A layer of random numbers. Rows of its inputs and of y lie `padding` elements apart.
struct Layer {
  test::Random numbers;
  LinearProblem problem;
  Matrix x, weight, bias, dy, y, dx, dw, db;

  Layer(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in, std::int64_t out,
        std::int64_t padding = 0)
      : problem{.tokens = tokens,
                .in_features = in,
                .out_features = out,
                .recipe = recipe,
                .grad_input = true,
                .grad_weight = true,
                .grad_bias = true},
        x(random_matrix(numbers, tokens, in, padding, DType::kBFloat16)),
        weight(random_matrix(numbers, out, in, padding, DType::kFloat32)),
        bias(random_matrix(numbers, 1, out, 0, DType::kFloat32)),
        dy(random_matrix(numbers, tokens, out, 0, DType::kFloat16)),
        y(DType::kBFloat16, tokens, out, padding),
        dx(DType::kBFloat16, tokens, in),
        dw(DType::kFloat32, out, in),
        db(DType::kFloat32, 1, out) {}

  LinearForward forward(Memory& memory) {
    return {.x = x.view(),
            .weight = std::as_const(weight).view(),
            .bias = std::as_const(bias).row_vector(),
            .y = y.view(),
            .kept = memory.kept.span(),
            .workspace = memory.forward.span()};
  }
  LinearBackward backward(Memory& memory) {
    LinearBackward arguments{.dy = std::as_const(dy).view(),
                             .kept = memory.kept.span(),
                             .workspace = memory.backward.span()};
    if (problem.grad_input) arguments.dx = dx.view();
    if (problem.grad_weight) arguments.dw = dw.view();
    if (problem.grad_bias) arguments.db = db.row_vector();
    return arguments;
  }
  test::Results results() const {
    return test::values_of({{"y", true, y},
                            {"dx", problem.grad_input, dx},
                            {"dw", problem.grad_weight, dw},
                            {"db", problem.grad_bias, db}});
  }
};

auto run(Layer& layer) { return test::run<linear_memory, linear_forward, linear_backward>(layer); }

class LinearTest : public testing::TestWithParam<const LinearRecipe*> {};

TEST_P(LinearTest, RunsInTheMemoryThatItAsksForWhereverRowsLie) {
  for (const std::int64_t tokens : {0, 1, 8, 9, 200}) {
    Layer layer(*GetParam(), tokens, 300, 136), apart(*GetParam(), tokens, 300, 136, 5);
    EXPECT_EQ(run(apart), run(layer)) << tokens;
  }
}

TEST_P(LinearTest, ActivatesItsInputAsItIsCast) {
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
    Layer layer(*GetParam(), 65, 300, 136);
    const std::int64_t cols = is_gated(activation) ? 600 : 300;
    layer.x = random_matrix(layer.numbers, 65, cols, 3, DType::kBFloat16);
    Memory memory(linear_memory(layer.problem));
    LinearForward arguments = layer.forward(memory);
    arguments.activation = activation;
    linear_forward(layer.problem, arguments);
    const LinearRecipe& recipe = layer.problem.recipe;
    ScaledMatrix activated(65, 300, recipe.output.a);
    cast(Activated{.x = std::as_const(layer.x).view(), .activation = activation},
         {.rows = activated.target()});
    Matrix expected(DType::kBFloat16, 65, 136);
    const test::WeightCasts weight(layer.weight, recipe);
    gemm({.a = activated.view(),
          .b = weight.rows.view(),
          .out = expected.view(),
          .bias = std::as_const(layer.bias).row_vector()});
    EXPECT_EQ(layer.y.bytes(), expected.bytes());
  }
}

TEST_P(LinearTest, ComputesNoMoreThanIsWanted) {
  test::expect_each_alone<LinearProblem>(
      {&LinearProblem::grad_input, &LinearProblem::grad_weight, &LinearProblem::grad_bias},
      [] { return Layer(*GetParam(), 9, 300, 136); }, run);
  Layer layer(*GetParam(), 9, 300, 136);
  LinearProblem& problem = layer.problem;
  problem.grad_input = problem.grad_weight = false;
  EXPECT_EQ(linear_memory(problem).kept, 0);
  problem.grad_bias = false;
  EXPECT_EQ(linear_memory(problem).backward, 0);
}

TEST_P(LinearTest, TakesAWeightThatIsCast) {
  Layer layer(*GetParam(), 9, 300, 136);
  const test::Results expected = run(layer);
  const LayerMemory with_casts = linear_memory(layer.problem);
  layer.problem.weight_is_cast = true;
  Memory memory(linear_memory(layer.problem));
  EXPECT_LE(memory.size.kept + 300 * 136, with_casts.kept);
  EXPECT_LE(memory.size.forward + 300 * 136, with_casts.forward);
  const test::WeightCasts casts(layer.weight, layer.problem.recipe);
  LinearForward arguments = layer.forward(memory);
  arguments.weight = casts.rows.view();
  linear_forward(layer.problem, arguments);
  LinearBackward back = layer.backward(memory);
  back.weight_transposed = casts.transposed.view();
  linear_backward(layer.problem, back);
  EXPECT_EQ(layer.results(), expected);
}

INSTANTIATE_TEST_SUITE_P(Recipes, LinearTest, testing::Values(&kBlockwise, &kTensorwise),
                         [](const auto& recipe) {
                           return recipe.param == &kBlockwise ? "Blockwise" : "Tensorwise";
                         });

TEST(LinearErrorsTest, NameTheArgument) {
  Layer layer(kBlockwise, 9, 300, 136);
  Memory memory(linear_memory(layer.problem));
  test::refused([](auto& problem) { linear_memory(problem); }, layer.problem)({
      {[](auto& problem) { problem.tokens = -1; },
       "linear_memory: argument 'tokens': expected 0 to 2^28, got -1"},
      {[](auto& problem) { problem.in_features = 0; },
       "linear_memory: argument 'in_features': expected 1 to 2^28, got 0"},
      {[](auto& problem) { problem.in_features = INT64_MAX / 2; }, "'in_features'"},
  });
  const auto forward = [&](auto& given) { linear_forward(layer.problem, given); };
  test::refused(forward, layer.forward(memory))({
      {[&](auto& given) { given.x = layer.dy.view(); },
       "linear_forward: argument 'x': expected shape [9, 300], got [9, 136]"},
      {[&](auto& given) { given.weight = layer.x.view(); },
       "linear_forward: argument 'weight': expected shape [136, 300], got [9, 300]"},
      {[](auto& given) { given.weight = ScaledTensorView{}; },
       "linear_forward: argument 'weight': expected numbers, which are cast here, got its cast"},
      {[](auto& given) { given.workspace = given.workspace.first(1); },
       core::format("linear_forward: argument 'workspace': expected at least {} bytes, got 1",
                    memory.size.forward)},
      {[](auto& given) { given.kept = {}; },
       core::format("linear_forward: argument 'kept': expected at least {} bytes, got 0",
                    memory.size.kept)},
  });
  const ScaledMatrix wrong(136, 300, kBlockwise.output.a);
  test::refused([&](auto& given) { linear_backward(layer.problem, given); },
                layer.backward(memory))({
      {[](auto& given) { given.dx.reset(); },
       "linear_backward: argument 'dx': expected a tensor, which the problem wants, got none"},
      {[&](auto& given) { given.dy = layer.x.view(); },
       "linear_backward: argument 'dy': expected shape [9, 136], got [9, 300]"},
      {[&](auto& given) { given.weight_transposed = wrong.view(); },
       "linear_backward: argument 'weight_transposed': expected it to be omitted, as the problem "
       "has it, got one"},
  });
  layer.problem.weight_is_cast = true;
  LinearForward of_cast = layer.forward(memory);
  of_cast.weight = wrong.view();
  EXPECT_EQ(test::error_of([&] { forward(of_cast); }),
            "linear_forward: argument 'weight': expected e4m3 with scales of 128x128, got e4m3 "
            "with scales of 1x128");
}

// All that is written, at the place of each other memory.
TEST(LinearErrorsTest, WhatIsWrittenOverlapsNothing) {
  Layer layer(kBlockwise, 9, 300, 136);
  Memory memory(linear_memory(layer.problem));
  void *const y = layer.y.data(), *const dx = layer.dx.data(), *const dw = layer.dw.data();
  std::byte* const held = memory.kept.span().data();
  const auto expect_refused = [](const auto& call) {
    EXPECT_THAT(test::error_of(call), HasSubstr("expected memory of its own, apart from '"));
  };
  for (void* const place :
       std::initializer_list<void*>{layer.x.data(), layer.weight.data(), layer.bias.data(), y}) {
    LinearForward of_y = layer.forward(memory), of_memory = of_y;
    of_y.y->data = place == y ? held : place;
    of_memory.kept = {static_cast<std::byte*>(place), of_memory.kept.size()};
    expect_refused([&] { linear_forward(layer.problem, of_y); });
    expect_refused([&] { linear_forward(layer.problem, of_memory); });
  }
  for (void* const place : std::initializer_list<void*>{layer.dy.data(), layer.db.data(), dx, dw}) {
    LinearBackward of_dx = layer.backward(memory), of_dw = of_dx, of_memory = of_dx;
    of_dx.dx->data = place == dx ? held : place;
    of_dw.dw->data = place == dw ? held : place;
    of_memory.workspace = {static_cast<std::byte*>(place), of_memory.workspace.size()};
    expect_refused([&] { linear_backward(layer.problem, of_dx); });
    expect_refused([&] { linear_backward(layer.problem, of_dw); });
    expect_refused([&] { linear_backward(layer.problem, of_memory); });
  }
}

}  // namespace
}  // namespace octofold
