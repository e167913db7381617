// A layer of experts of random numbers, and what it is to compute, by public functions one after
// another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "octofold/octofold.h"

#include "support/layer_memory.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::test {

using Index = std::vector<std::int32_t>;

inline constexpr std::int64_t kIn = 300, kHidden = 144, kOut = 136, kExperts = 5, kSlots = 3;
inline constexpr std::int32_t kUnused = 2;  // an expert without tokens

inline constexpr Format kChannels = with(Granularity::kChannel);
inline const LinearRecipe kRowwise{.output = {.a = kChannels, .b = kChannels},
                                   .grad_input = {.a = kChannels, .b = kChannels},
                                   .grad_weight = {.a = kChannels, .b = kChannels}};

struct ExpertsCase {
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
    const auto grid = scale_shape(format.granularity, rows, cols);
    std::int64_t each = 1;
    TensorView scale{.dtype = DType::kFloat32, .rank = 1, .shape = {kExperts}, .strides = {1}};
    if (format.granularity != Granularity::kTensor) {
      for (const std::int64_t size : grid) scale.shape[as_size(scale.rank++)] = size;
      for (int i = scale.rank - 1; i >= 0; --i) {
        scale.strides[as_size(i)] = each;
        each *= scale.shape[as_size(i)];
      }
    }
    scales_.resize(as_size(each * kExperts));
    target_ = {.data = stacked(matrix<void>(codes_.data(), format.dtype, kExperts * rows, cols)),
               .scale = {scales_.data(), scale.dtype, scale.rank, scale.shape, scale.strides},
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

// All tensors of a layer, and what becomes of them by public functions one after another.
struct ExpertLayer {
  Random numbers;
  ExpertsProblem problem;
  Index ids;
  Matrix x, weights, up, up_bias, down, down_bias, dy;
  Matrix y, dx, dweights, dup, dup_bias, ddown, ddown_bias;
  std::optional<Matrix> dup_before{}, ddown_before{};  // to which gradients are added

  ExpertLayer(const ExpertsCase& given, std::int64_t tokens)
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
        x(random_matrix(numbers, tokens, kIn, 3, DType::kBFloat16)),
        weights(random_matrix(numbers, tokens, kSlots)),
        up(random_matrix(numbers, kExperts * up_rows(), kIn, 5)),
        up_bias(random_matrix(numbers, kExperts, up_rows())),
        down(random_matrix(numbers, kExperts * kOut, kHidden, 0, DType::kBFloat16)),
        down_bias(random_matrix(numbers, kExperts, kOut, 0, given.y)),
        dy(random_matrix(numbers, tokens, kOut, 0, given.y)),
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
    arguments.adds_to_dup = dup_before.has_value();
    arguments.adds_to_ddown = ddown_before.has_value();
    return arguments;
  }

  // The order of rows, as it is found by itself.
  struct Order {
    explicit Order(const ExpertLayer& layer)
        : offsets(kExperts + 1), sources(layer.ids.size()), places(layer.ids.size()) {
      Index counts(as_size(sort_workspace_size(std::ssize(sources), kExperts)));
      sort_by_expert(layer.ids_view(), kExperts,
                     {.offsets = vector_of(offsets),
                      .sources = vector_of(sources),
                      .positions = positions(),
                      .workspace = vector_of(counts)});
    }
    static MutableTensorView vector_of(Index& index) {
      return vector<void>(index.data(), DType::kInt32, std::ssize(index));
    }
    MutableTensorView positions() {
      return matrix<void>(places.data(), DType::kInt32, std::ssize(places) / kSlots, kSlots);
    }
    GatheredRows gathered(const Matrix& given) {
      return {.x = given.view(), .sources = vector_of(sources), .slots = kSlots};
    }
    Index offsets, sources, places;
  };

  // Overwrites the results with those of public functions one after another.
  void compute_apart() {
    const auto& [output, grad_input, grad_weight] = problem.recipe;
    const std::int64_t rows = problem.tokens * kSlots;
    Order order(*this);
    const auto positions = order.positions();
    const RowGroups groups{Order::vector_of(order.offsets)};
    const DepthGroups depth{groups.offsets};
    const std::int64_t columns = group_columns(rows, kExperts);
    const auto rows_of = [&](const Matrix& given, const Format& format) {
      ScaledMatrix result(rows, given.cols(), format);
      cast(order.gathered(given), {.rows = result.target()});
      return result;
    };
    const auto weighted = [&](const Matrix& given, const Format& format) {
      ScaledMatrix result(given.cols(), columns, format);
      GatheredRows gathered = order.gathered(given);
      gathered.factors = weights.view();
      cast(gathered, {.transposed = result.target(), .offsets = groups.offsets});
      return result;
    };
    const auto transposed = [&](const CastSource& source, std::int64_t cols, const Format& format) {
      ScaledMatrix result(cols, columns, format);
      cast(source, {.transposed = result.target(), .offsets = groups.offsets});
      return result;
    };
    const auto product = [&](const ScaledMatrix& a, const StackedMatrix& b,
                             std::optional<TensorView> bias = {}) {
      Matrix result(problem.y, rows, b.view().data.shape[1]);
      result.fill([] { return 0.0f; });
      grouped_gemm({.a = a.view(),
                    .b = b.view(),
                    .groups = groups,
                    .out = result.view(),
                    .bias = problem.has_up_bias ? bias : std::nullopt});
      return result;
    };
    const auto sum_over_rows = [&](const ScaledMatrix& a, const ScaledMatrix& b, Matrix& out,
                                   const std::optional<Matrix>& before) {
      GroupedGemmArguments arguments{
          .a = a.view(), .b = b.view(), .groups = depth, .out = stacked(out.view())};
      if (before) arguments.c = stacked(before->view());
      grouped_gemm(arguments);
    };
    const WeightCasts of_up(up, problem.recipe), of_down(down, problem.recipe);

    const Matrix between = product(rows_of(x, output.a), of_up.rows, up_bias.view());
    const Activated activated{.x = between.view(), .activation = problem.activation};
    ScaledMatrix h(rows, kHidden, output.a);
    cast(activated, {.rows = h.target()});
    const Matrix of_rows = product(h, of_down.rows, down_bias.view());
    combine(
        {.y = of_rows.view(), .positions = positions, .weights = weights.view(), .out = y.view()});

    sum_over_rows(weighted(dy, grad_weight.a), transposed(activated, kHidden, grad_weight.b), ddown,
                  ddown_before);
    const Matrix dh = product(rows_of(dy, grad_input.a), of_down.transposed);
    compute_sums(dh, between, order);
    const ActivationGradient by_between{
        .gradient = dh.view(), .x = between.view(), .activation = problem.activation};
    sum_over_rows(transposed(by_between, up_rows(), grad_weight.a), weighted(x, grad_weight.b), dup,
                  dup_before);
    ScaledMatrix d(rows, up_rows(), grad_input.a);
    cast(by_between, {.rows = d.target()});
    const Matrix dx_rows = product(d, of_up.transposed);
    combine(
        {.y = dx_rows.view(), .positions = positions, .weights = weights.view(), .out = dx.view()});
  }
  // The same of kReluSquared where the weights alone are FP8.
  void compute_wide(const WeightCasts& of_up, const WeightCasts& of_down) {
    const DType type = *problem.weight_only;
    const std::int64_t rows = problem.tokens * kSlots;
    Order order(*this);
    const RowGroups groups{Order::vector_of(order.offsets)};
    const auto positions = order.positions();
    const auto made = [&](std::int64_t cols, DType dtype, auto&& at) {
      Matrix result(dtype, rows, cols);
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        result.set(i / cols, i % cols, static_cast<float>(at(i / cols, i % cols)));
      }
      return result;
    };
    const auto product = [&](const RowsOfGroups& given, const WeightCasts& w, const Matrix& bias,
                             DType dtype) {
      const std::int64_t cols = w.rows.view().data.shape[1];
      Matrix result = made(cols, dtype, [](auto...) { return 0.0; });
      grouped_gemm_weight_only({.x = given,
                                .w = w.rows.view(),
                                .groups = groups,
                                .out = result.view(),
                                .bias = bias.view()});
      return result;
    };
    const auto gradient = [&](const RowsOfGroups& given, const WeightCasts& w) {
      const std::int64_t cols = w.rows.view().data.shape[2];
      Matrix result = made(cols, type, [](auto...) { return 0.0; });
      grouped_gemm_weight_only_gradient(
          {.gradient = given, .w = w.rows.view(), .groups = groups, .out = result.view()});
      return result;
    };
    const Matrix between = product(order.gathered(x), of_up, up_bias, type);
    const Matrix h = made(kHidden, type, [&](std::int64_t row, std::int64_t col) {
      return std::pow(std::max(between.at(row, col), 0.0), 2);
    });
    const Matrix of_rows = product(h.view(), of_down, down_bias, problem.y);
    combine(
        {.y = of_rows.view(), .positions = positions, .weights = weights.view(), .out = y.view()});
    Matrix wide_dy(type, problem.tokens, kOut);
    convert_dtype(dy.view(), wide_dy.view());
    const Matrix dh = gradient(order.gathered(wide_dy), of_down);
    compute_sums(dh, between, order);
    const Matrix d = made(kHidden, type, [&](std::int64_t row, std::int64_t col) {
      return dh.at(row, col) * (2 * std::max(between.at(row, col), 0.0));
    });
    const Matrix dx_rows = gradient(d.view(), of_up);
    combine(
        {.y = dx_rows.view(), .positions = positions, .weights = weights.view(), .out = dx.view()});
  }
  // The gradients by biases, and by the weights of the routing.
  void compute_sums(const Matrix& dh, const Matrix& between, Order& order) {
    sum_experts({.gradient = dy.view()}, order, ddown_bias);
    sum_experts({.gradient = dh.view(), .x = between.view(), .activation = problem.activation},
                order, dup_bias);
    activation_dots({.gradient = dh.view(),
                     .x = between.view(),
                     .positions = order.positions(),
                     .activation = problem.activation,
                     .dots = dweights.view()});
    if (!problem.has_down_bias) return;
    Matrix dots(DType::kFloat32, problem.tokens, kSlots);
    combine_gradient({.gradient = dy.view(),
                      .y = down_bias.view(),
                      .positions = ids_view(),
                      .weights_gradient = dots.view()});
    for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
      const std::int64_t token = i / kSlots, slot = i % kSlots;
      dweights.set(
          token, slot,
          static_cast<float>(dots.at(token, slot)) + static_cast<float>(dweights.at(token, slot)));
    }
  }
  void sum_experts(ExpertSumsArguments arguments, Order& order, Matrix& out) const {
    Matrix sums(DType::kFloat32, out.rows(), out.cols());
    arguments.offsets = Order::vector_of(order.offsets);
    arguments.sources = Order::vector_of(order.sources);
    arguments.weights = weights.view();
    arguments.sums = sums.view();
    expert_sums(arguments);
    convert_dtype(sums.view(), out.view());
  }

  Results results() const {
    return bytes_of({{"y", true, y},
                     {"dx", problem.grad_input, dx},
                     {"dtopk_weights", problem.grad_topk_weights, dweights},
                     {"dup", problem.grad_up, dup},
                     {"dup_bias", problem.grad_up_bias, dup_bias},
                     {"ddown", problem.grad_down, ddown},
                     {"ddown_bias", problem.grad_down_bias, ddown_bias}});
  }
};

}  // namespace octofold::test
