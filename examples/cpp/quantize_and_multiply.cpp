// A linear layer in FP8: cast the activations and the weights, multiply, see what it cost.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "octofold/octofold.h"

using octofold::DType, octofold::Granularity, octofold::matrix;

struct Fp8Matrix {
  Fp8Matrix(const std::vector<float>& values, std::int64_t rows, std::int64_t cols, Granularity how)
      : codes(values.size()) {
    const auto shape = octofold::scale_shape(how, rows, cols);
    scales.resize(shape[0] * shape[1]);
    view = {.data = matrix(codes.data(), DType::kE4M3, rows, cols),
            .scale = matrix(scales.data(), DType::kFloat32, shape[0], shape[1]),
            .granularity = how};
    octofold::quantize(matrix(values.data(), DType::kFloat32, rows, cols), view);
  }
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  octofold::MutableScaledTensorView view;
};

int main() {
  const std::int64_t tokens = 64, inputs = 512, outputs = 256;
  std::vector<float> x(tokens * inputs), w(outputs * inputs), y(tokens * outputs);
  std::mt19937 generator(0);
  for (float& value : x) value = std::normal_distribution<float>()(generator);
  for (float& value : w) value = std::normal_distribution<float>()(generator);

  const Fp8Matrix a(x, tokens, inputs, Granularity::kBlock1x128);
  const Fp8Matrix b(w, outputs, inputs, Granularity::kBlock128x128);
  octofold::gemm(
      {.a = a.view, .b = b.view, .d = matrix(y.data(), DType::kFloat32, tokens, outputs)});

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
