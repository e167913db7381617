// The products of experts: each token with the matrix of its own, all in one call. Where each
// expert's tokens begin is a tensor like others, which on a GPU the host does not read.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "octofold/octofold.h"

using octofold::DType, octofold::Granularity, octofold::ScaledMatrix, octofold::matrix;

namespace {

constexpr std::int64_t kExperts = 4, kTokens = 48, kInputs = 512, kOutputs = 256;
constexpr std::array<std::int32_t, kExperts + 1> kOffsets{0, 5, 5, 41, 48};  // one has no tokens

// [experts · outputs, inputs], cast in one go, as one matrix [outputs, inputs] of each expert.
octofold::ScaledTensorView by_expert(const ScaledMatrix& w) {
  octofold::ScaledTensorView view = w.view();
  view.data.rank = 3;
  view.data.shape = {kExperts, kOutputs, kInputs};
  view.data.strides = {kOutputs * kInputs, kInputs, 1};
  return view;
}

}  // namespace

int main() {
  std::vector<float> x(kTokens * kInputs), w(kExperts * kOutputs * kInputs);
  std::vector<float> y(kTokens * kOutputs);
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(generator);
  for (float& value : w) value = normal(generator);

  ScaledMatrix a(kTokens, kInputs, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix b(kExperts * kOutputs, kInputs, {.granularity = Granularity::kBlock128x128});
  octofold::cast(matrix(x.data(), DType::kFloat32, kTokens, kInputs), {.rows = a.target()});
  octofold::cast(matrix(w.data(), DType::kFloat32, kExperts * kOutputs, kInputs),
                 {.rows = b.target()});
  octofold::grouped_gemm({.a = a.view(),
                          .b = by_expert(b),
                          .groups = octofold::RowGroups{octofold::vector(
                              kOffsets.data(), DType::kInt32, kOffsets.size())},
                          .out = matrix(y.data(), DType::kFloat32, kTokens, kOutputs)});

  double error = 0, norm = 0;
  for (std::int64_t expert = 0; expert < kExperts; ++expert) {
    for (std::int64_t token = kOffsets[expert]; token < kOffsets[expert + 1]; ++token) {
      for (std::int64_t j = 0; j < kOutputs; ++j) {
        const float* x_row = &x[token * kInputs];
        const float* w_row = &w[(expert * kOutputs + j) * kInputs];
        double exact = 0;
        for (std::int64_t k = 0; k < kInputs; ++k) exact += x_row[k] * w_row[k];
        const double difference = y[token * kOutputs + j] - exact;
        error += difference * difference;
        norm += exact * exact;
      }
    }
  }
  std::printf("relative error against FP32: %.3f\n", std::sqrt(error / norm));
}
