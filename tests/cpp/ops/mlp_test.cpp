// A norm and a linear layer, and MLPs, in one call each way: memory that is just enough, rows of
// tensors that lie apart, no more than is wanted, and bad arguments. Python's tests have the bits,
// and weights that are cast.
#include "octofold/mlp.h"

#include "octofold/octofold.h"

#include "core/format.h"
#include "support/layer_memory.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::kBlockwise, test::kTensorwise;
using test::LayerBytes;
using test::Matrix;
using test::random_matrix;

constexpr std::int64_t kIn = 300, kHidden = 144, kOut = 136;

struct Case {
  const char* name;
  const LinearRecipe* recipe = &kBlockwise;
  Activation activation = Activation::kSwiGlu;
  std::optional<InputNorm> norm{};
  bool residual = false;
  bool keeps_fp8 = false;
  DType y = DType::kBFloat16;
};
const Case kCases[] = {
    {.name = "Gated"},
    {.name = "Plain", .activation = Activation::kGelu, .y = DType::kFloat16},
    {.name = "OfTensors", .recipe = &kTensorwise, .norm = InputNorm{}, .residual = true},
    {.name = "KeptInFp8", .norm = InputNorm{}, .residual = true, .keeps_fp8 = true},
    {.name = "OfALayerNorm", .norm = InputNorm{NormKind::kLayer, 1e-5f}},
};

// All tensors of a layer. Rows of its inputs lie `padding` elements apart.
struct Layer {
  test::Random numbers;
  MlpProblem problem;
  Case of;
  Matrix x, residual, norm_weight, norm_bias, up, up_bias, down, down_bias, dy, sum_gradient;
  Matrix sum, y, dx, dnorm_weight, dnorm_bias, dup, dup_bias, ddown, ddown_bias;

  Layer(const Case& given, std::int64_t tokens, std::int64_t padding = 0)
      : problem{.tokens = tokens,
                .in_features = kIn,
                .hidden_features = kHidden,
                .out_features = kOut,
                .activation = given.activation,
                .recipe = *given.recipe,
                .norm = given.norm,
                .x = DType::kBFloat16,
                .y = given.y,
                .grad_input = true,
                .grad_up = true,
                .grad_up_bias = true,
                .grad_down = true,
                .grad_down_bias = true,
                .keeps_fp8 = given.keeps_fp8,
                .has_up_bias = true},
        of(given),
        x(random_matrix(numbers, tokens, kIn, padding, DType::kBFloat16)),
        residual(random_matrix(numbers, tokens, kIn, 0, DType::kBFloat16)),
        norm_weight(random_matrix(numbers, 1, kIn, 0, DType::kFloat32)),
        norm_bias(random_matrix(numbers, 1, kIn, 0, DType::kBFloat16)),
        up(random_matrix(numbers, up_rows(), kIn, padding, DType::kFloat32)),
        up_bias(random_matrix(numbers, 1, up_rows(), 0, DType::kFloat32)),
        down(random_matrix(numbers, kOut, kHidden, 0, DType::kBFloat16)),
        down_bias(random_matrix(numbers, 1, kOut, 0, DType::kFloat32)),
        dy(random_matrix(numbers, tokens, kOut, 0, given.y)),
        sum_gradient(random_matrix(numbers, tokens, kIn, 0, DType::kBFloat16)),
        sum(DType::kBFloat16, tokens, kIn),
        y(given.y, tokens, kOut),
        dx(DType::kBFloat16, tokens, kIn),
        dnorm_weight(DType::kFloat32, 1, kIn),
        dnorm_bias(DType::kBFloat16, 1, kIn),
        dup(DType::kFloat32, up_rows(), kIn),
        dup_bias(DType::kFloat32, 1, up_rows()),
        ddown(DType::kBFloat16, kOut, kHidden),
        ddown_bias(DType::kBFloat16, 1, kOut) {}

  std::int64_t up_rows() const { return kHidden * (is_gated(problem.activation) ? 2 : 1); }
  NormOperands operands() const {
    if (!problem.norm) return {};
    return {.weight = norm_weight.row_vector(), .bias = norm_bias.row_vector()};
  }

  MlpForward forward(LayerBytes& memory) {
    MlpForward arguments{.x = x.view(),
                         .operands = operands(),
                         .up_weight = std::as_const(up).view(),
                         .down_weight = std::as_const(down).view(),
                         .down_bias = down_bias.row_vector(),
                         .y = y.view(),
                         .kept = memory.kept.span(),
                         .workspace = memory.forward.span()};
    if (problem.has_up_bias) arguments.up_bias = up_bias.row_vector();
    if (of.residual) arguments.residual = residual.view(), arguments.sum = sum.view();
    return arguments;
  }
  MlpBackward backward(LayerBytes& memory) {
    MlpBackward arguments{.dy = dy.view(),
                          .operands = problem.grad_input ? operands() : NormOperands{},
                          .kept = memory.kept.span(),
                          .workspace = memory.backward.span()};
    if (problem.grad_input) arguments.dx = dx.view();
    if (problem.grad_input && problem.norm) {
      arguments.x = std::as_const(of.residual ? sum : x).view();
      arguments.sum_gradient = sum_gradient.view();
      arguments.dnorm_weight = dnorm_weight.row_vector();
      arguments.dnorm_bias = dnorm_bias.row_vector();
    }
    if (problem.grad_up) arguments.dup = dup.view();
    if (problem.grad_up_bias) arguments.dup_bias = dup_bias.row_vector();
    if (problem.grad_down) arguments.ddown = ddown.view();
    if (problem.grad_down_bias) arguments.ddown_bias = ddown_bias.row_vector();
    return arguments;
  }

  test::Results results() const {
    const bool goes_through_norm = problem.grad_input && problem.norm;
    return test::values_of({{"y", true, y},
                            {"sum", of.residual, sum},
                            {"dx", problem.grad_input, dx},
                            {"dnorm_weight", goes_through_norm, dnorm_weight},
                            {"dnorm_bias", goes_through_norm, dnorm_bias},
                            {"dup", problem.grad_up, dup},
                            {"dup_bias", problem.grad_up_bias, dup_bias},
                            {"ddown", problem.grad_down, ddown},
                            {"ddown_bias", problem.grad_down_bias, ddown_bias}});
  }
};

auto run(Layer& layer) { return test::run<mlp_memory, mlp_forward, mlp_backward>(layer); }

class MlpTest : public testing::TestWithParam<Case> {};

TEST_P(MlpTest, RunsInTheMemoryThatItAsksForWhereverRowsLie) {
  for (const std::int64_t tokens : {0, 1, 9, 200}) {
    Layer layer(GetParam(), tokens), apart(GetParam(), tokens, 5);
    EXPECT_EQ(run(apart), run(layer)) << tokens;
  }
}

TEST_P(MlpTest, ComputesNoMoreThanIsWanted) {
  test::expect_each_alone<MlpProblem>(
      {&MlpProblem::grad_input, &MlpProblem::grad_up, &MlpProblem::grad_up_bias,
       &MlpProblem::grad_down, &MlpProblem::grad_down_bias},
      [] { return Layer(GetParam(), 9); }, run);
}

INSTANTIATE_TEST_SUITE_P(Cases, MlpTest, testing::ValuesIn(kCases),
                         [](const auto& of) { return std::string(of.param.name); });

// Without gradients and a bias, product, activation and cast are one operation.
TEST(MlpFusionTest, WritesNoGateAndUp) {
  Layer layer(kCases[0], 200), unfused(kCases[0], 200);
  for (Layer* each : {&layer, &unfused}) each->up_bias.fill([] { return 0.0f; });
  layer.problem.grad_input = layer.problem.grad_up = layer.problem.grad_up_bias = false;
  layer.problem.grad_down = layer.problem.grad_down_bias = false;
  const LayerMemory with_bias = mlp_memory(layer.problem);
  layer.problem.has_up_bias = false;
  EXPECT_EQ(with_bias.forward - mlp_memory(layer.problem).forward, 200 * 2 * kHidden * 2);
  EXPECT_EQ(run(layer).at("y"), run(unfused).at("y"));
}

// The first half of an MLP: y is what the activation takes.
struct NormLinear : Layer {
  explicit NormLinear(const Case& given, std::int64_t padding = 0)
      : Layer(given, 70, padding),
        problem{.linear = {.tokens = 70,
                           .in_features = kIn,
                           .out_features = 2 * kHidden,
                           .recipe = kBlockwise,
                           .grad_input = true,
                           .grad_weight = true,
                           .grad_bias = true},
                .norm = *given.norm},
        between(DType::kBFloat16, 70, 2 * kHidden),
        gradient(random_matrix(numbers, 70, 2 * kHidden)) {}

  NormLinearForward forward(LayerBytes& memory) {
    return {.x = x.view(),
            .residual = residual.view(),
            .operands = operands(),
            .sum = sum.view(),
            .weight = std::as_const(up).view(),
            .bias = up_bias.row_vector(),
            .y = between.view(),
            .kept = memory.kept.span(),
            .workspace = memory.forward.span()};
  }
  NormLinearBackward backward(LayerBytes& memory) {
    return {.dy = gradient.view(),
            .x = std::as_const(sum).view(),
            .operands = operands(),
            .dx = dx.view(),
            .dnorm_weight = dnorm_weight.row_vector(),
            .dw = dup.view(),
            .db = dup_bias.row_vector(),
            .kept = memory.kept.span(),
            .workspace = memory.backward.span()};
  }
  test::Results results() const {
    return test::values_of({{"y", true, between},
                            {"sum", true, sum},
                            {"dx", true, dx},
                            {"dnorm_weight", true, dnorm_weight},
                            {"dw", true, dup},
                            {"db", true, dup_bias}});
  }

  NormLinearProblem problem;
  Matrix between, gradient;
};

TEST(NormLinearTest, RunsInTheMemoryThatItAsksForWhereverRowsLie) {
  const auto results = [](NormLinear layer) {
    return test::run<norm_linear_memory, norm_linear_forward, norm_linear_backward>(layer);
  };
  for (const Case& of : {kCases[3], kCases[4]}) {
    EXPECT_EQ(results(NormLinear(of, 5)), results(NormLinear(of)));
  }
}

TEST(MlpErrorsTest, NameTheArgument) {
  Layer layer(kCases[3], 9);
  LayerBytes memory(mlp_memory(layer.problem));
  test::refused([](auto& problem) { mlp_memory(problem); }, layer.problem)({
      {[](auto& problem) { problem.hidden_features = 0; },
       "mlp_memory: argument 'hidden_features': expected 1 to 2^27, got 0"},
      {[](auto& problem) { problem.activation = static_cast<Activation>(77); },
       "mlp_memory: argument 'activation'"},
      {[](auto& problem) { problem.norm->kind = static_cast<NormKind>(7); },
       "mlp_memory: argument 'norm': expected a NormKind, got 7"},
      {[](auto& problem) { problem.y = DType::kE4M3; }, "mlp_memory: argument 'y': expected dtype"},
  });
  test::refused([&](auto& given) { mlp_forward(layer.problem, given); }, layer.forward(memory))({
      {[](auto& given) { given.sum.reset(); },
       "mlp_forward: argument 'sum': expected a tensor, which the problem wants, got none"},
      {[](auto& given) { given.operands.ada_scale = given.operands.weight; },
       "mlp_forward: argument 'operands.ada_scale': expected it to be omitted, as the problem has "
       "it, got one"},
      {[](auto& given) { given.up_bias.reset(); },
       "mlp_forward: argument 'up_bias': expected a tensor, which the problem wants, got none"},
      {[&](auto& given) { given.down_weight = layer.up.view(); },
       "mlp_forward: argument 'down_weight': expected shape [136, 144], got [288, 300]"},
      {[](auto& given) { given.x.dtype = DType::kFloat16; },
       "mlp_forward: argument 'x': expected dtype bfloat16, got float16"},
      {[](auto& given) { given.y.data = given.sum->data; },
       "expected memory of its own, apart from '"},
  });
  const auto backward = [&](auto& given) { mlp_backward(layer.problem, given); };
  test::refused(backward, layer.backward(memory))({
      {[](auto& given) { given.x.reset(); },
       "mlp_backward: argument 'x': expected a tensor, which the problem wants, got none"},
      {[](auto& given) { given.dup.reset(); },
       "mlp_backward: argument 'dup': expected a tensor, which the problem wants, got none"},
      {[](auto& given) { given.workspace = given.workspace.first(16); },
       core::format("mlp_backward: argument 'workspace': expected at least {} bytes, got 16",
                    memory.size.backward)},
  });
  layer.problem.grad_input = false;
  test::refused(backward, layer.backward(memory))({
      {[&](auto& given) { given.dnorm_bias = layer.dnorm_bias.row_vector(); },
       "mlp_backward: argument 'dnorm_bias': expected it to be omitted, as the problem has it, "
       "got one"},
  });
}

}  // namespace
}  // namespace octofold
