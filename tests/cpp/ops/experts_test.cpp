// A layer of experts in one call each way: the bits of the functions that it is made of, one after
// another, memory that is just enough, and bad arguments.
#include "octofold/experts.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octofold/octofold.h"

#include "core/format.h"
#include "support/error_of.h"
#include "support/expert_layer.h"
#include "support/layer_memory.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::kBlockwise, test::kTensorwise, test::kRowwise;
using test::kHidden, test::kSlots, test::kExperts;
using test::LayerBytes, test::Matrix, test::WeightCasts;
using Layer = test::ExpertLayer;
using Case = test::ExpertsCase;

const Case kCases[] = {
    {.name = "Gated"},
    {.name = "Plain", .activation = Activation::kGelu, .y = DType::kFloat16},
    {.name = "WithoutBiases", .activation = Activation::kSwiGluOss, .has_biases = false},
    {.name = "OfTensors", .recipe = &kTensorwise},
    {.name = "OfChannels", .recipe = &kRowwise, .y = DType::kFloat32},
};

void expect_parts(Layer& layer) {
  test::expect_parts<experts_memory, experts_forward, experts_backward>(layer);
}

class ExpertsTest : public testing::TestWithParam<Case> {};

TEST_P(ExpertsTest, HasTheBitsOfItsParts) {
  for (const std::int64_t tokens : {0, 1, 9, 100}) {
    SCOPED_TRACE(tokens);
    Layer layer(GetParam(), tokens);
    expect_parts(layer);
  }
}

// Each gradient alone, and none.
TEST_P(ExpertsTest, ComputesNoMoreThanIsWanted) {
  std::vector<bool ExpertsProblem::*> wanted{&ExpertsProblem::grad_input,
                                             &ExpertsProblem::grad_topk_weights,
                                             &ExpertsProblem::grad_up, &ExpertsProblem::grad_down};
  if (GetParam().has_biases) {
    wanted.push_back(&ExpertsProblem::grad_up_bias);
    wanted.push_back(&ExpertsProblem::grad_down_bias);
  }
  test::with_each_alone(wanted, [&] { return Layer(GetParam(), 9); }, expect_parts);
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertsTest, testing::ValuesIn(kCases),
                         [](const auto& of) { return std::string(of.param.name); });

TEST(ExpertsSumsTest, GradientsOfWeightsMayBeAdded) {
  Layer layer(kCases[0], 40);
  for (Matrix* gradient : {&layer.dup, &layer.ddown}) {
    gradient->fill([&] { return test::draw_number(layer.numbers); });
  }
  layer.dup_before = layer.dup;
  layer.ddown_before = layer.ddown;
  expect_parts(layer);
}

// Without gradients and a bias, product, activation and cast are one operation.
TEST(ExpertsFusionTest, WritesNoGateAndUp) {
  Layer layer(kCases[2], 40);
  ExpertsProblem& problem = layer.problem;
  problem.grad_input = problem.grad_topk_weights = problem.grad_up = problem.grad_down = false;
  problem.has_up_bias = true;
  const LayerMemory with_bias = experts_memory(problem);
  problem.has_up_bias = false;
  const LayerMemory size = experts_memory(problem);
  EXPECT_EQ(size.kept, 0);
  EXPECT_EQ(size.backward, 0);
  EXPECT_EQ(with_bias.forward - size.forward, 40 * kSlots * 2 * kHidden * 2);
  expect_parts(layer);
}

TEST(ExpertsWeightsTest, MayComeAsTheirCasts) {
  for (const Case& of : kCases) {
    SCOPED_TRACE(of.name);
    Layer layer(of, 9);
    layer.problem.weights_are_cast = true;
    const WeightCasts up(layer.up, *of.recipe), down(layer.down, *of.recipe);
    LayerBytes memory(experts_memory(layer.problem));
    ExpertsForward forward = layer.forward(memory);
    forward.up_weight = up.rows.view();
    forward.down_weight = down.rows.view();
    experts_forward(layer.problem, forward);
    ExpertsBackward backward = layer.backward(memory);
    backward.up_transposed = up.transposed.view();
    backward.down_transposed = down.transposed.view();
    experts_backward(layer.problem, backward);
    EXPECT_TRUE(memory.is_sealed());
    test::expect_as_apart(layer);
  }
}

TEST(ExpertsWeightsTest, AloneMayBeFp8) {
  for (const DType y : {DType::kBFloat16, DType::kFloat32}) {
    Layer layer({.name = "", .activation = Activation::kReluSquared, .y = y}, 9);
    ExpertsProblem& problem = layer.problem;
    problem.weight_only = DType::kBFloat16;
    problem.weights_are_cast = true;
    EXPECT_THAT(test::error_of([&] { experts_memory(problem); }), HasSubstr("'weight_only'"));
    problem.grad_up = problem.grad_down = false;
    const WeightCasts up(layer.up, problem.recipe), down(layer.down, problem.recipe);
    LayerBytes memory(experts_memory(problem));
    ExpertsForward forward = layer.forward(memory);
    forward.up_weight = up.rows.view();
    forward.down_weight = down.rows.view();
    experts_forward(problem, forward);
    ExpertsBackward backward = layer.backward(memory);
    backward.up_transposed = up.rows.view();
    backward.down_transposed = down.rows.view();
    experts_backward(problem, backward);
    EXPECT_TRUE(memory.is_sealed());
    const test::Results found = layer.results();
    layer.compute_wide(up, down);
    EXPECT_EQ(found, layer.results());
  }
}

TEST(ExpertsErrorsTest, NameTheArgument) {
  Layer layer(kCases[0], 9);
  LayerBytes memory(experts_memory(layer.problem));
  const auto of_problem = [&](auto spoil) {
    ExpertsProblem problem = layer.problem;
    spoil(problem);
    return test::error_of([&] { experts_memory(problem); });
  };
  EXPECT_EQ(of_problem([](auto& problem) { problem.slots = 0; }),
            "experts_memory: argument 'slots': expected 1 to 2^28, got 0");
  EXPECT_EQ(of_problem([](auto& problem) { problem.experts = 0; }),
            "experts_memory: argument 'experts': expected 1 to 2^16, got 0");
  EXPECT_EQ(of_problem([](auto& problem) { problem.in_features = 1 << 27; }),
            "experts_memory: argument 'experts': expected so few that their weights are 2^28 rows "
            "at most, got 5 times 134217728");
  EXPECT_EQ(of_problem([](auto& problem) { problem.slots = problem.tokens = 1 << 15; }),
            "experts_memory: argument 'tokens': expected 0 to 2^28, got 1073741824");
  EXPECT_THAT(of_problem([](auto& problem) { problem.activation = static_cast<Activation>(77); }),
              HasSubstr("experts_memory: argument 'activation'"));
  EXPECT_THAT(of_problem([](auto& problem) { problem.y = DType::kInt32; }),
              HasSubstr("experts_memory: argument 'y': expected dtype"));
  EXPECT_EQ(of_problem([](auto& problem) {
              problem.recipe.output.a.granularity = Granularity::kBlock128x128;
            }),
            "experts_memory: argument 'recipe.output.a': expected scales of 1x128, channel or "
            "tensor, as squares have rows of several experts, got 128x128");
  const auto of_forward = [&](auto spoil) {
    ExpertsForward arguments = layer.forward(memory);
    spoil(arguments);
    return test::error_of([&] { experts_forward(layer.problem, arguments); });
  };
  EXPECT_EQ(of_forward([](auto&) {}), "no error");
  EXPECT_EQ(of_forward([](auto& given) { given.topk_ids.dtype = DType::kFloat32; }),
            "experts_forward: argument 'topk_ids': expected dtype int32, got float32");
  EXPECT_EQ(of_forward([](auto& given) { given.topk_weights.shape[1] = 2; }),
            "experts_forward: argument 'topk_weights': expected shape [9, 3], got [9, 2]");
  EXPECT_EQ(of_forward([](auto& given) { given.up_bias.reset(); }),
            "experts_forward: argument 'up_bias': expected a tensor, which the problem wants, got "
            "none");
  EXPECT_EQ(of_forward([&](auto& given) { given.down_weight = given.up_weight; }),
            "experts_forward: argument 'down_weight': expected shape [680, 144], got [1440, 300]");
  EXPECT_EQ(of_forward([&](auto& given) { given.up_weight = ScaledTensorView{}; }),
            "experts_forward: argument 'up_weight': expected numbers, which are cast here, got its "
            "cast");
  EXPECT_THAT(of_forward([](auto& given) { given.y.data = const_cast<void*>(given.x.data); }),
              HasSubstr("expected memory of its own, apart from '"));
  EXPECT_EQ(of_forward([](auto& given) { given.kept = given.kept.first(16); }),
            core::format("experts_forward: argument 'kept': expected at least {} bytes, got 16",
                         memory.size.kept));
  layer.ids[4] = kExperts;
  EXPECT_THAT(of_forward([](auto&) {}),
              HasSubstr("argument 'ids': expected numbers from -1 to 4, got 5 at [1, 1]"));
  layer.ids[4] = -1;
  EXPECT_EQ(of_forward([](auto&) {}), "no error");
  const auto of_backward = [&](auto spoil) {
    ExpertsBackward arguments = layer.backward(memory);
    spoil(arguments);
    return test::error_of([&] { experts_backward(layer.problem, arguments); });
  };
  EXPECT_EQ(of_backward([](auto&) {}), "no error");
  EXPECT_EQ(of_backward([](auto& given) { given.topk_ids.reset(); }),
            "experts_backward: argument 'topk_ids': expected a tensor, which the problem wants, "
            "got none");
  EXPECT_EQ(of_backward([](auto& given) { given.dup->shape[0] = 4; }),
            "experts_backward: argument 'dup': expected shape [1440, 300], got [1152, 300]");
  EXPECT_THAT(of_backward([](auto& given) { given.dtopk_weights->dtype = DType::kFloat16; }),
              HasSubstr("argument 'dtopk_weights': expected dtype float32, got float16"));
  EXPECT_EQ(of_backward([](auto& given) { given.workspace = given.workspace.first(16); }),
            core::format("experts_backward: argument 'workspace': expected at least {} bytes, got "
                         "16",
                         memory.size.backward));
  layer.problem.weights_are_cast = true;
  EXPECT_EQ(of_backward([](auto&) {}),
            "experts_backward: argument 'up_transposed': expected a tensor, which the problem "
            "wants, got none");
}

}  // namespace
}  // namespace octofold
