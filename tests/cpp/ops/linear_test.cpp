// Linear layers in one call each way: the bits of casts and products one after another, memory that
// is just enough, and bad arguments.
#include "octofold/linear.h"

#include <optional>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "core/format.h"
#include "support/error_of.h"
#include "support/layer_memory.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::kBlockwise, test::kTensorwise;
using test::Matrix;
using test::random_matrix;
using Memory = test::LayerBytes;

// A layer of random numbers and what it is to compute, by cast() and gemm().
struct Layer {
  test::Random numbers;
  LinearProblem problem;
  Matrix x, weight, bias, dy, y, dx, dw, db;

  Layer(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in, std::int64_t out)
      : problem{.tokens = tokens,
                .in_features = in,
                .out_features = out,
                .recipe = recipe,
                .grad_input = true,
                .grad_weight = true,
                .grad_bias = true},
        x(random_matrix(numbers, tokens, in, 3, DType::kBFloat16)),
        weight(random_matrix(numbers, out, in, 5, DType::kFloat32)),
        bias(random_matrix(numbers, 1, out, 0, DType::kFloat32)),
        dy(random_matrix(numbers, tokens, out, 0, DType::kFloat16)),
        y(DType::kBFloat16, tokens, out, 1),
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
  void go_both_ways(Memory& memory) {
    linear_forward(problem, forward(memory));
    linear_backward(problem, backward(memory));
  }

  ScaledMatrix cast_of(const Matrix& source, const Format& format) const {
    ScaledMatrix result(source.rows(), source.cols(), format);
    cast(source.view(), {.rows = result.target()});
    return result;
  }
  ScaledMatrix transpose_of(const Matrix& source, const Format& format) const {
    ScaledMatrix result(source.cols(), source.rows(), format);
    cast(source.view(), {.transposed = result.target()});
    return result;
  }
  static Matrix product(const ScaledMatrix& a, const ScaledMatrix& b, DType dtype,
                        std::int64_t padding, std::optional<TensorView> bias = {},
                        const Matrix* c = nullptr) {
    Matrix result(dtype, a.rows(), b.rows(), padding);
    std::optional<TensorView> addend;
    if (c != nullptr) addend = c->view();
    gemm({.a = a.view(), .b = b.view(), .out = result.view(), .c = addend, .bias = bias});
    return result;
  }
  Matrix expected_y() const {
    const LinearProduct& output = problem.recipe.output;
    return product(cast_of(x, output.a), cast_of(weight, output.b), y.dtype(), 1,
                   bias.row_vector());
  }
  Matrix expected_dx() const {
    const LinearProduct& product_of = problem.recipe.grad_input;
    return product(cast_of(dy, product_of.a), transpose_of(weight, product_of.b), dx.dtype(), 0);
  }
  Matrix expected_dw(const Matrix* c = nullptr) const {
    const LinearProduct& product_of = problem.recipe.grad_weight;
    return product(transpose_of(dy, product_of.a), transpose_of(x, product_of.b), dw.dtype(), 0, {},
                   c);
  }
};

class LinearTest : public testing::TestWithParam<const LinearRecipe*> {};

TEST_P(LinearTest, HasTheBitsOfCastsAndProducts) {
  for (const std::int64_t tokens : {1, 8, 9, 200}) {
    Layer layer(*GetParam(), tokens, 300, 136);
    Memory memory(linear_memory(layer.problem));
    linear_forward(layer.problem, layer.forward(memory));
    EXPECT_EQ(layer.y.bytes(), layer.expected_y().bytes()) << tokens;
    linear_backward(layer.problem, layer.backward(memory));
    EXPECT_EQ(layer.dx.bytes(), layer.expected_dx().bytes()) << tokens;
    EXPECT_EQ(layer.dw.bytes(), layer.expected_dw().bytes()) << tokens;
    for (std::int64_t col = 0; col < layer.dy.cols(); ++col) {
      double sum = 0;
      for (std::int64_t row = 0; row < tokens; ++row) sum += layer.dy.at(row, col);
      EXPECT_FLOAT_EQ(static_cast<float>(layer.db.at(0, col)), static_cast<float>(sum));
    }
    EXPECT_TRUE(memory.is_sealed());
  }
}

TEST_P(LinearTest, CastsForBackwardAloneWhereTheCallerMakesY) {
  Layer layer(*GetParam(), 65, 300, 136);
  Memory memory(linear_memory(layer.problem));
  LinearForward arguments = layer.forward(memory);
  arguments.y.reset();
  linear_forward(layer.problem, arguments);
  linear_backward(layer.problem, layer.backward(memory));
  EXPECT_EQ(layer.dx.bytes(), layer.expected_dx().bytes());
  EXPECT_EQ(layer.dw.bytes(), layer.expected_dw().bytes());
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
    const LinearProduct& output = layer.problem.recipe.output;
    ScaledMatrix activated(65, 300, output.a);
    cast(Activated{.x = std::as_const(layer.x).view(), .activation = activation},
         {.rows = activated.target()});
    const Matrix expected = Layer::product(activated, layer.cast_of(layer.weight, output.b),
                                           DType::kBFloat16, 1, layer.bias.row_vector());
    EXPECT_EQ(layer.y.bytes(), expected.bytes());
  }
}

TEST_P(LinearTest, AddsToAGradient) {
  Layer layer(*GetParam(), 130, 300, 136);
  layer.dw = random_matrix(layer.numbers, 136, 300, 0, DType::kFloat32);
  const Matrix held = layer.dw;
  Memory memory(linear_memory(layer.problem));
  linear_forward(layer.problem, layer.forward(memory));
  LinearBackward arguments = layer.backward(memory);
  arguments.adds_to_dw = true;
  linear_backward(layer.problem, arguments);
  EXPECT_EQ(layer.dw.bytes(), layer.expected_dw(&held).bytes());
}

TEST_P(LinearTest, RoundsTheGradientOfABiasOnce) {
  Layer layer(*GetParam(), 130, 300, 136);
  Memory memory(linear_memory(layer.problem));
  layer.go_both_ways(memory);
  LinearBackward arguments = layer.backward(memory);
  Matrix rounded(DType::kBFloat16, 1, 136), expected(DType::kBFloat16, 1, 136);
  arguments.db = rounded.row_vector();
  linear_backward(layer.problem, arguments);
  convert_dtype(layer.db.view(), expected.view());
  EXPECT_EQ(rounded.bytes(), expected.bytes());
}

TEST_P(LinearTest, ComputesNoMoreThanIsWanted) {
  for (int wanted = 0; wanted < 5; ++wanted) {
    Layer layer(*GetParam(), 9, 300, 136);
    layer.problem.grad_input = (wanted & 1) != 0;
    layer.problem.grad_weight = (wanted & 2) != 0;
    layer.problem.grad_bias = wanted == 2 || wanted == 4;
    Memory memory(linear_memory(layer.problem));
    EXPECT_EQ(memory.size.kept > 0, wanted % 4 != 0);
    EXPECT_EQ(memory.size.backward > 0, wanted != 0);
    linear_forward(layer.problem, layer.forward(memory));
    EXPECT_EQ(layer.y.bytes(), layer.expected_y().bytes());
    if (wanted == 0) continue;
    linear_backward(layer.problem, layer.backward(memory));
    if (layer.problem.grad_input) {
      EXPECT_EQ(layer.dx.bytes(), layer.expected_dx().bytes());
    }
    if (layer.problem.grad_weight) {
      EXPECT_EQ(layer.dw.bytes(), layer.expected_dw().bytes());
    }
    if (layer.problem.grad_bias) {
      Layer all(*GetParam(), 9, 300, 136);
      Memory of_all(linear_memory(all.problem));
      all.go_both_ways(of_all);
      EXPECT_EQ(layer.db.bytes(), all.db.bytes());
    }
  }
}

TEST_P(LinearTest, TakesAWeightThatIsCast) {
  Layer layer(*GetParam(), 9, 300, 136);
  const LinearRecipe& recipe = layer.problem.recipe;
  const LayerMemory with_casts = linear_memory(layer.problem);
  layer.problem.weight_is_cast = true;
  Memory memory(linear_memory(layer.problem));
  EXPECT_LE(memory.size.kept + 300 * 136, with_casts.kept);
  EXPECT_LE(memory.size.forward + 300 * 136, with_casts.forward);
  const ScaledMatrix rows = layer.cast_of(layer.weight, recipe.output.b);
  const ScaledMatrix transposed = layer.transpose_of(layer.weight, recipe.grad_input.b);
  LinearForward arguments = layer.forward(memory);
  arguments.weight = rows.view();
  linear_forward(layer.problem, arguments);
  EXPECT_EQ(layer.y.bytes(), layer.expected_y().bytes());
  LinearBackward back = layer.backward(memory);
  back.weight_transposed = transposed.view();
  linear_backward(layer.problem, back);
  EXPECT_EQ(layer.dx.bytes(), layer.expected_dx().bytes());
  EXPECT_EQ(layer.dw.bytes(), layer.expected_dw().bytes());
}

TEST_P(LinearTest, OfNoTokens) {
  Layer layer(*GetParam(), 0, 300, 136);
  Memory memory(linear_memory(layer.problem));
  layer.go_both_ways(memory);
  for (std::int64_t row = 0; row < 136; ++row) {
    for (std::int64_t col = 0; col < 300; ++col) EXPECT_EQ(layer.dw.at(row, col), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LinearTest, testing::Values(&kBlockwise, &kTensorwise),
                         [](const auto& recipe) {
                           return recipe.param == &kBlockwise ? "Blockwise" : "Tensorwise";
                         });

TEST(LinearErrorsTest, NameTheArgument) {
  Layer layer(kBlockwise, 9, 300, 136);
  Memory memory(linear_memory(layer.problem));
  const auto of_problem = [&](auto spoil) {
    LinearProblem problem = layer.problem;
    spoil(problem);
    return test::error_of([&] { linear_memory(problem); });
  };
  EXPECT_EQ(of_problem([](auto& problem) { problem.tokens = -1; }),
            "linear_memory: argument 'tokens': expected 0 to 2^28, got -1");
  EXPECT_EQ(of_problem([](auto& problem) { problem.in_features = 0; }),
            "linear_memory: argument 'in_features': expected 1 to 2^28, got 0");
  EXPECT_NE(of_problem([](auto& problem) { problem.in_features = INT64_MAX / 2; }), "no error");

  const auto of_forward = [&](auto spoil) {
    LinearForward arguments = layer.forward(memory);
    spoil(arguments);
    return test::error_of([&] { linear_forward(layer.problem, arguments); });
  };
  EXPECT_EQ(of_forward([&](auto& given) { given.x = layer.dy.view(); }),
            "linear_forward: argument 'x': expected shape [9, 300], got [9, 136]");
  EXPECT_EQ(of_forward([&](auto& given) { given.weight = layer.x.view(); }),
            "linear_forward: argument 'weight': expected shape [136, 300], got [9, 300]");
  EXPECT_EQ(of_forward([](auto& given) { given.weight = ScaledTensorView{}; }),
            "linear_forward: argument 'weight': expected numbers, which are cast here, got its "
            "cast");
  EXPECT_EQ(of_forward([](auto& given) { given.workspace = given.workspace.first(1); }),
            core::format("linear_forward: argument 'workspace': expected at least {} bytes, got 1",
                         memory.size.forward));
  EXPECT_EQ(of_forward([](auto& given) { given.kept = {}; }),
            core::format("linear_forward: argument 'kept': expected at least {} bytes, got 0",
                         memory.size.kept));
  const auto of_backward = [&](auto spoil) {
    LinearBackward arguments = layer.backward(memory);
    spoil(arguments);
    return test::error_of([&] { linear_backward(layer.problem, arguments); });
  };
  EXPECT_EQ(of_backward([](auto& given) { given.dx.reset(); }),
            "linear_backward: argument 'dx': expected a tensor, which the problem wants, got none");
  EXPECT_EQ(of_backward([&](auto& given) { given.dy = layer.x.view(); }),
            "linear_backward: argument 'dy': expected shape [9, 136], got [9, 300]");
  const ScaledMatrix wrong = layer.cast_of(layer.x, kBlockwise.output.a);
  EXPECT_EQ(of_backward([&](auto& given) { given.weight_transposed = wrong.view(); }),
            "linear_backward: argument 'weight_transposed': expected it to be omitted, as the "
            "problem has it, "
            "got one");
  layer.problem.weight_is_cast = true;
  EXPECT_EQ(of_forward([&](auto& given) { given.weight = wrong.view(); }),
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
