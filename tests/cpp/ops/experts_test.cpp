// A layer of experts in one call each way: memory that is just enough, rows of tensors that lie
// apart, no more than is wanted, weights that are cast, and bad arguments.
#include "octofold/experts.h"

#include "octofold/octofold.h"

#include "core/format.h"
#include "support/layer_memory.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::kBlockwise, test::kTensorwise;
using test::LayerBytes, test::Matrix;

using Index = std::vector<std::int32_t>;

constexpr std::int64_t kIn = 300, kHidden = 144, kOut = 136, kExperts = 5, kSlots = 3;
constexpr std::int32_t kUnused = 2;  // an expert without tokens

constexpr Format kChannels = test::with(Granularity::kChannel);
const LinearRecipe kRowwise{.output = {.a = kChannels, .b = kChannels},
                            .grad_input = {.a = kChannels, .b = kChannels},
                            .grad_weight = {.a = kChannels, .b = kChannels}};

struct Case {
  const char* name;
  const LinearRecipe* recipe = &kBlockwise;
  Activation activation = Activation::kSwiGlu;
  bool has_biases = true;
  DType y = DType::kBFloat16;
};

template <typename View>
View stacked(View flat) {
  const std::int64_t rows = flat.shape[0] / kExperts, stride = flat.strides[0];
  flat.rank = 3;
  flat.shape = {kExperts, rows, flat.shape[1]};
  flat.strides = {rows * stride, stride, 1};
  return flat;
}

// A cast of each expert's matrix [rows, cols].
class StackedMatrix {
 public:
  StackedMatrix(std::int64_t rows, std::int64_t cols, const Format& format)
      : codes_(as_size(kExperts * rows * cols)) {
    std::vector<std::int64_t> scales{kExperts};
    if (format.granularity != Granularity::kTensor) {
      std::ranges::copy(scale_shape(format.granularity, rows, cols), std::back_inserter(scales));
    }
    scales_.resize(
        as_size(std::reduce(scales.begin(), scales.end(), std::int64_t{1}, std::multiplies())));
    target_ = {.data = test::tensor(codes_.data(), format.dtype, {kExperts, rows, cols}),
               .scale = test::tensor(scales_.data(), DType::kFloat32, scales),
               .format = format};
  }
  StackedMatrix(StackedMatrix&&) = default;
  const CastTarget& target() const { return target_; }
  ScaledTensorView view() const { return target_; }

 private:
  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  CastTarget target_;
};

struct WeightCasts {
  StackedMatrix rows, transposed;
  WeightCasts(const Matrix& weight, const LinearRecipe& recipe)
      : rows(weight.rows() / kExperts, weight.cols(), recipe.output.b),
        transposed(weight.cols(), weight.rows() / kExperts, recipe.grad_input.b) {
    cast(stacked(weight.view()), {.rows = rows.target(), .matrices = kExperts});
    cast(stacked(weight.view()), {.transposed = transposed.target(), .matrices = kExperts});
  }
};

// All tensors of a layer. Rows of its inputs lie `padding` elements apart.
struct Layer {
  test::Random numbers;
  ExpertsProblem problem;
  Index ids;
  Matrix x, weights, up, up_bias, down, down_bias, dy;
  Matrix y, dx, dweights, dup, dup_bias, ddown, ddown_bias;

  Layer(const Case& given, std::int64_t tokens, std::int64_t padding = 0)
      : problem{.tokens = tokens,
                .slots = kSlots,
                .experts = kExperts,
                .in_features = kIn,
                .hidden_features = kHidden,
                .out_features = kOut,
                .activation = given.activation,
                .recipe = *given.recipe,
                .y = given.y,
                .grad_input = true,
                .grad_topk_weights = true,
                .grad_up = true,
                .grad_up_bias = given.has_biases,
                .grad_down = true,
                .grad_down_bias = given.has_biases,
                .has_up_bias = given.has_biases,
                .has_down_bias = given.has_biases},
        ids(as_size(tokens * kSlots)),
        x(test::random_matrix(numbers, tokens, kIn, padding, DType::kBFloat16)),
        weights(test::random_matrix(numbers, tokens, kSlots)),
        up(test::random_matrix(numbers, kExperts * up_rows(), kIn, padding)),
        up_bias(test::random_matrix(numbers, kExperts, up_rows())),
        down(test::random_matrix(numbers, kExperts * kOut, kHidden, 0, DType::kBFloat16)),
        down_bias(test::random_matrix(numbers, kExperts, kOut, 0, given.y)),
        dy(test::random_matrix(numbers, tokens, kOut, 0, given.y)),
        y(given.y, tokens, kOut),
        dx(DType::kBFloat16, tokens, kIn),
        dweights(DType::kFloat32, tokens, kSlots),
        dup(DType::kFloat32, kExperts * up_rows(), kIn),
        dup_bias(DType::kFloat32, kExperts, up_rows()),
        ddown(DType::kBFloat16, kExperts * kOut, kHidden),
        ddown_bias(DType::kBFloat16, kExperts, kOut) {
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(numbers() % (kExperts + 1)) - 1;
      if (id == kUnused) id = 0;
    }
    if (tokens > 1) std::fill_n(ids.begin() + kSlots, kSlots, -1);  // a token that goes nowhere
  }

  std::int64_t up_rows() const { return kHidden * (is_gated(problem.activation) ? 2 : 1); }
  TensorView ids_view() const { return matrix(ids.data(), DType::kInt32, problem.tokens, kSlots); }

  ExpertsForward forward(LayerBytes& memory) {
    ExpertsForward arguments{.x = x.view(),
                             .topk_ids = ids_view(),
                             .topk_weights = weights.view(),
                             .up_weight = stacked(std::as_const(up).view()),
                             .down_weight = stacked(std::as_const(down).view()),
                             .y = y.view(),
                             .kept = memory.kept.span(),
                             .workspace = memory.forward.span()};
    if (problem.has_up_bias) arguments.up_bias = up_bias.view();
    if (problem.has_down_bias) arguments.down_bias = down_bias.view();
    return arguments;
  }
  ExpertsBackward backward(LayerBytes& memory) {
    ExpertsBackward arguments{.dy = dy.view(),
                              .topk_weights = weights.view(),
                              .kept = memory.kept.span(),
                              .workspace = memory.backward.span()};
    if (problem.grad_topk_weights && problem.has_down_bias) {
      arguments.topk_ids = ids_view();
      arguments.down_bias = down_bias.view();
    }
    if (problem.grad_input) arguments.dx = dx.view();
    if (problem.grad_topk_weights) arguments.dtopk_weights = dweights.view();
    if (problem.grad_up) arguments.dup = stacked(dup.view());
    if (problem.grad_up_bias) arguments.dup_bias = dup_bias.view();
    if (problem.grad_down) arguments.ddown = stacked(ddown.view());
    if (problem.grad_down_bias) arguments.ddown_bias = ddown_bias.view();
    return arguments;
  }

  test::Results results() const {
    return test::values_of({{"y", true, y},
                            {"dx", problem.grad_input, dx},
                            {"dtopk_weights", problem.grad_topk_weights, dweights},
                            {"dup", problem.grad_up, dup},
                            {"dup_bias", problem.grad_up_bias, dup_bias},
                            {"ddown", problem.grad_down, ddown},
                            {"ddown_bias", problem.grad_down_bias, ddown_bias}});
  }
};

const Case kCases[] = {
    {.name = "Gated"},
    {.name = "Plain", .activation = Activation::kGelu, .y = DType::kFloat16},
    {.name = "WithoutBiases", .activation = Activation::kSwiGluOss, .has_biases = false},
    {.name = "OfTensors", .recipe = &kTensorwise},
    {.name = "OfChannels", .recipe = &kRowwise, .y = DType::kFloat32},
};

auto run(Layer& layer) {
  return test::run<experts_memory, experts_forward, experts_backward>(layer);
}

class ExpertsTest : public testing::TestWithParam<Case> {};

TEST_P(ExpertsTest, RunsInTheMemoryThatItAsksForWhereverRowsLie) {
  for (const std::int64_t tokens : {0, 1, 9, 100}) {
    Layer layer(GetParam(), tokens), apart(GetParam(), tokens, 5);
    EXPECT_EQ(run(apart), run(layer)) << tokens;
  }
}

TEST_P(ExpertsTest, ComputesNoMoreThanIsWanted) {
  std::vector<bool ExpertsProblem::*> wanted{&ExpertsProblem::grad_input,
                                             &ExpertsProblem::grad_topk_weights,
                                             &ExpertsProblem::grad_up, &ExpertsProblem::grad_down};
  if (GetParam().has_biases) {
    wanted.push_back(&ExpertsProblem::grad_up_bias);
    wanted.push_back(&ExpertsProblem::grad_down_bias);
  }
  test::expect_each_alone(wanted, [] { return Layer(GetParam(), 9); }, run);
}

// A layer's results with weights that are cast already, of which backward reads the transposes;
// with FP8 weights alone, it reads the same ones.
test::Results run_by_casts(Layer& layer) {
  layer.problem.weights_are_cast = true;
  const bool wide = layer.problem.weight_only.has_value();
  const WeightCasts up(layer.up, layer.problem.recipe), down(layer.down, layer.problem.recipe);
  LayerBytes memory(experts_memory(layer.problem));
  ExpertsForward forward = layer.forward(memory);
  forward.up_weight = up.rows.view();
  forward.down_weight = down.rows.view();
  experts_forward(layer.problem, forward);
  ExpertsBackward backward = layer.backward(memory);
  backward.up_transposed = (wide ? up.rows : up.transposed).view();
  backward.down_transposed = (wide ? down.rows : down.transposed).view();
  experts_backward(layer.problem, backward);
  EXPECT_TRUE(memory.is_sealed());
  return layer.results();
}

TEST_P(ExpertsTest, TakesWeightsThatAreCast) {
  Layer layer(GetParam(), 9), other(GetParam(), 9);
  EXPECT_EQ(run_by_casts(other), run(layer));
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertsTest, testing::ValuesIn(kCases),
                         [](const auto& of) { return std::string(of.param.name); });

// Without gradients and a bias, product, activation and cast are one operation.
TEST(ExpertsFusionTest, WritesNoGateAndUp) {
  Layer layer(kCases[2], 40), unfused(kCases[2], 40);
  ExpertsProblem& problem = layer.problem;
  problem.grad_input = problem.grad_topk_weights = problem.grad_up = problem.grad_down = false;
  problem.has_up_bias = true;
  const LayerMemory with_bias = experts_memory(problem);
  problem.has_up_bias = false;
  const LayerMemory size = experts_memory(problem);
  EXPECT_EQ(size.kept, 0);
  EXPECT_EQ(size.backward, 0);
  EXPECT_EQ(with_bias.forward - size.forward, 40 * kSlots * 2 * kHidden * 2);
  EXPECT_EQ(run(layer).at("y"), run(unfused).at("y"));
}

TEST(ExpertsWeightsTest, AloneMayBeFp8) {
  Layer layer({.name = "", .activation = Activation::kReluSquared}, 9);
  Layer narrow({.name = "", .activation = Activation::kReluSquared}, 9);
  layer.problem.weight_only = DType::kBFloat16;
  layer.problem.weights_are_cast = true;
  EXPECT_THAT(test::error_of([&] { experts_memory(layer.problem); }), HasSubstr("'weight_only'"));
  for (ExpertsProblem* problem : {&layer.problem, &narrow.problem}) {
    problem->grad_up = problem->grad_down = false;
  }
  EXPECT_NE(run_by_casts(layer), run_by_casts(narrow));
}

TEST(ExpertsErrorsTest, NameTheArgument) {
  Layer layer(kCases[0], 9);
  LayerBytes memory(experts_memory(layer.problem));
  test::refused([](auto& problem) { experts_memory(problem); }, layer.problem)({
      {[](auto& problem) { problem.slots = 0; },
       "experts_memory: argument 'slots': expected 1 to 2^28, got 0"},
      {[](auto& problem) { problem.experts = 0; },
       "experts_memory: argument 'experts': expected 1 to 2^16, got 0"},
      {[](auto& problem) { problem.in_features = 1 << 27; },
       "experts_memory: argument 'experts': expected so few that their weights are 2^28 rows at "
       "most, got 5 times 134217728"},
      {[](auto& problem) { problem.slots = problem.tokens = 1 << 15; },
       "experts_memory: argument 'tokens': expected 0 to 2^28, got 1073741824"},
      {[](auto& problem) { problem.activation = static_cast<Activation>(77); },
       "experts_memory: argument 'activation'"},
      {[](auto& problem) { problem.y = DType::kInt32; },
       "experts_memory: argument 'y': expected dtype"},
      {[](auto& problem) { problem.recipe.output.a.granularity = Granularity::kBlock128x128; },
       "experts_memory: argument 'recipe.output.a': expected scales of 1x128, channel or tensor, "
       "as squares have rows of several experts, got 128x128"},
  });
  const auto forward = [&](auto&& given) { experts_forward(layer.problem, given); };
  test::refused(forward, layer.forward(memory))({
      {[](auto& given) { given.topk_ids.dtype = DType::kFloat32; },
       "experts_forward: argument 'topk_ids': expected dtype int32, got float32"},
      {[](auto& given) { given.topk_weights.shape[1] = 2; },
       "experts_forward: argument 'topk_weights': expected shape [9, 3], got [9, 2]"},
      {[](auto& given) { given.up_bias.reset(); },
       "experts_forward: argument 'up_bias': expected a tensor, which the problem wants, got none"},
      {[](auto& given) { given.down_weight = given.up_weight; },
       "experts_forward: argument 'down_weight': expected shape [680, 144], got [1440, 300]"},
      {[](auto& given) { given.up_weight = ScaledTensorView{}; },
       "experts_forward: argument 'up_weight': expected numbers, which are cast here, got its "
       "cast"},
      {[](auto& given) { given.y.data = const_cast<void*>(given.x.data); },
       "expected memory of its own, apart from '"},
      {[](auto& given) { given.kept = given.kept.first(16); },
       core::format("experts_forward: argument 'kept': expected at least {} bytes, got 16",
                    memory.size.kept)},
      {[&](auto&) { layer.ids[4] = kExperts; },
       "argument 'ids': expected numbers from -1 to 4, got 5 at [1, 1]"},
  });
  layer.ids[4] = -1;
  const auto backward = [&](auto& given) { experts_backward(layer.problem, given); };
  forward(layer.forward(memory));
  test::refused(backward, layer.backward(memory))({
      {[](auto& given) { given.topk_ids.reset(); },
       "experts_backward: argument 'topk_ids': expected a tensor, which the problem wants, got "
       "none"},
      {[](auto& given) { given.dup->shape[0] = 4; },
       "experts_backward: argument 'dup': expected shape [1440, 300], got [1152, 300]"},
      {[](auto& given) { given.dtopk_weights->dtype = DType::kFloat16; },
       "argument 'dtopk_weights': expected dtype float32, got float16"},
      {[](auto& given) { given.workspace = given.workspace.first(16); },
       core::format("experts_backward: argument 'workspace': expected at least {} bytes, got 16",
                    memory.size.backward)},
      {[&](auto&) { layer.problem.weights_are_cast = true; },
       "experts_backward: argument 'up_transposed': expected a tensor, which the problem wants, "
       "got none"},
  });
}

}  // namespace
}  // namespace octofold
