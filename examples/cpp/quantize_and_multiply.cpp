// A linear layer in FP8: cast the activations and the weights, multiply, see what it cost.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "octofold/octofold.h"

using octofold::DType, octofold::Granularity, octofold::ScaledMatrix, octofold::matrix;

int main() {
  const std::int64_t tokens = 64, inputs = 512, outputs = 256;
  std::vector<float> x(tokens * inputs), w(outputs * inputs), y(tokens * outputs);
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(generator);
  for (float& value : w) value = normal(generator);

  ScaledMatrix a(tokens, inputs, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix b(outputs, inputs, {.granularity = Granularity::kBlock128x128});
  octofold::cast(matrix(x.data(), DType::kFloat32, tokens, inputs), {.rows = a.target()});
  octofold::cast(matrix(w.data(), DType::kFloat32, outputs, inputs), {.rows = b.target()});
  octofold::gemm(
      {.a = a.view(), .b = b.view(), .out = matrix(y.data(), DType::kFloat32, tokens, outputs)});

  double error = 0, norm = 0;
  for (std::int64_t i = 0; i < tokens * outputs; ++i) {
    const float *x_row = &x[i / outputs * inputs], *w_row = &w[i % outputs * inputs];
    double exact = 0;
    for (std::int64_t k = 0; k < inputs; ++k) exact += x_row[k] * w_row[k];
    error += (y[i] - exact) * (y[i] - exact);
    norm += exact * exact;
  }
  std::printf("relative error against FP32: %.3f\n", std::sqrt(error / norm));
}
