// Trains a small mixture of experts in FP8 on the CPU: a router in FP32, and one layer of experts,
// which is a call forward and a call backward. Tokens come in four kinds, and what is to be learned
// of a token is another linear map for each kind.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "octofold/octofold.h"

using octofold::DType, octofold::Format, octofold::Granularity, octofold::MutableTensorView;
using Floats = std::vector<float>;

namespace {

constexpr std::int64_t kTokens = 128, kInputs = 32, kHidden = 64, kOutputs = 16;
constexpr std::int64_t kExperts = 4, kSlots = 2, kKinds = 4;
constexpr int kSteps = 200;

constexpr Format kRows{.granularity = Granularity::kBlock1x128};
constexpr Format kSquares{.granularity = Granularity::kBlock128x128};
constexpr Format kChannels{.granularity = Granularity::kChannel};
const octofold::ExpertsProblem kLayer{.tokens = kTokens,
                                      .slots = kSlots,
                                      .experts = kExperts,
                                      .in_features = kInputs,
                                      .hidden_features = kHidden,
                                      .out_features = kOutputs,
                                      .recipe = {.output = {.a = kRows, .b = kSquares},
                                                 .grad_input = {.a = kRows, .b = kSquares},
                                                 .grad_weight = {.a = kRows, .b = kChannels}},
                                      .y = DType::kFloat32,
                                      .grad_topk_weights = true,
                                      .grad_up = true,
                                      .grad_down = true};

std::mt19937 generator(0);

Floats random_numbers(std::int64_t count, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  Floats numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

MutableTensorView rows(Floats& values, std::int64_t count) {
  return octofold::matrix<void>(values.data(), DType::kFloat32, count, std::ssize(values) / count);
}

// Numbers that are learned, and the gradient by them.
struct Parameter {
  Floats value, gradient;

  explicit Parameter(Floats start) : value(std::move(start)), gradient(value.size()) {}
  void step(float rate) {
    for (std::size_t i = 0; i < value.size(); ++i) value[i] -= rate * gradient[i];
  }
};

// y[n, out] = x[n, in] · wᵀ, of plain loops.
Floats multiply(const Floats& x, const float* w, std::int64_t in, std::int64_t out) {
  Floats y;
  for (auto row = x.begin(); row != x.end(); row += in) {
    for (std::int64_t j = 0; j < out; ++j) {
      y.push_back(std::inner_product(row, row + in, w + j * in, 0.0f));
    }
  }
  return y;
}

class Model {
 public:
  // The loss of a batch, after which the parameters are better.
  float train(Floats& x, const Floats& wanted, float rate) {
    route(x);
    octofold::experts_forward(
        kLayer, {.x = rows(x, kTokens),
                 .topk_ids = ids(),
                 .topk_weights = rows(weights_, kTokens),
                 .up_weight = octofold::TensorView(rows(up_.value, kExperts * 2 * kHidden)),
                 .down_weight = octofold::TensorView(rows(down_.value, kExperts * kOutputs)),
                 .y = rows(y_, kTokens),
                 .kept = kept_,
                 .workspace = workspace_});
    float loss = 0;
    for (std::size_t i = 0; i < y_.size(); ++i) {
      const float error = y_[i] - wanted[i];
      loss += error * error / kTokens;
      dy_[i] = 2 * error / kTokens;
    }
    octofold::experts_backward(kLayer, {.dy = rows(dy_, kTokens),
                                        .topk_weights = rows(weights_, kTokens),
                                        .dtopk_weights = rows(dweights_, kTokens),
                                        .dup = rows(up_.gradient, kExperts * 2 * kHidden),
                                        .ddown = rows(down_.gradient, kExperts * kOutputs),
                                        .kept = kept_,
                                        .workspace = workspace_});
    learn_routes(x);
    for (Parameter* parameter : {&router_, &up_, &down_}) parameter->step(rate);
    return loss;
  }

 private:
  void route(const Floats& x) {
    logits_ = multiply(x, router_.value.data(), kInputs, kExperts);
    octofold::top_k(
        {.logits = rows(logits_, kTokens), .ids = ids(), .weights = rows(weights_, kTokens)},
        {.normalize = true});
  }
  void learn_routes(const Floats& x) {
    Floats dlogits(logits_.size());
    octofold::top_k_gradient({.gradient = rows(dweights_, kTokens),
                              .logits = rows(logits_, kTokens),
                              .ids = ids(),
                              .logits_gradient = rows(dlogits, kTokens)},
                             {.normalize = true});
    std::ranges::fill(router_.gradient, 0.0f);
    for (std::int64_t token = 0; token < kTokens; ++token) {
      for (std::int64_t i = 0; i < kExperts * kInputs; ++i) {
        router_.gradient[i] +=
            dlogits[token * kExperts + i / kInputs] * x[token * kInputs + i % kInputs];
      }
    }
  }

  MutableTensorView ids() {
    return octofold::matrix<void>(ids_.data(), DType::kInt32, kTokens, kSlots);
  }

  Parameter router_{random_numbers(kExperts * kInputs, 0.1f)};
  Parameter up_{random_numbers(kExperts * 2 * kHidden * kInputs, 0.18f)};  // gates, then ups
  Parameter down_{random_numbers(kExperts * kOutputs * kHidden, 0.13f)};
  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(kTokens * kSlots);
  Floats logits_, weights_ = Floats(kTokens * kSlots), dweights_ = weights_;
  Floats y_ = Floats(kTokens * kOutputs), dy_ = y_;
  octofold::LayerMemory memory_ = octofold::experts_memory(kLayer);
  std::vector<std::byte> kept_ = std::vector<std::byte>(memory_.kept);
  std::vector<std::byte> workspace_ =
      std::vector<std::byte>(std::max(memory_.forward, memory_.backward));
};

}  // namespace

int main() {
  Floats centres = random_numbers(kKinds * kInputs, 1);
  Floats maps = random_numbers(kKinds * kOutputs * kInputs, 0.18f);
  Model model;
  float first = 0, last = 0;  // means of ten steps
  for (int step = 0; step < kSteps; ++step) {
    Floats x = random_numbers(kTokens * kInputs, 0.5f), wanted;
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const std::int64_t kind = generator() % kKinds;
      const auto begin = x.begin() + token * kInputs;
      for (std::int64_t i = 0; i < kInputs; ++i) begin[i] += centres[kind * kInputs + i];
      const Floats y =
          multiply({begin, begin + kInputs}, &maps[kind * kOutputs * kInputs], kInputs, kOutputs);
      wanted.insert(wanted.end(), y.begin(), y.end());
    }
    const float loss = model.train(x, wanted, 0.05f);
    if (step < 10) first += loss / 10;
    if (step >= kSteps - 10) last += loss / 10;
    if (step % 40 == 0) std::printf("step %3d: loss %.2f\n", step, loss);
  }
  std::printf("the loss fell from %.2f to %.2f\n", first, last);
  return last < first / 2 ? 0 : 1;
}
