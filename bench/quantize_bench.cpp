// Casts to FP8, by bytes of input.
#include <benchmark/benchmark.h>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "octofold/cast.h"
#include "octofold/scaled_matrix.h"

namespace octofold::bench {
namespace {

std::vector<float> random_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937 generator(0);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& value : values) value = normal(generator);
  return values;
}

void quantize_float32(benchmark::State& state, Granularity granularity, bool transpose) {
  constexpr std::int64_t kSize = 2048;
  std::vector<float> x = random_matrix(kSize, kSize);
  ScaledMatrix out(kSize, kSize, {.granularity = granularity});
  CastTargets targets;
  (transpose ? targets.transposed : targets.rows) = out.target();
  for (auto _ : state) {
    cast(matrix(x.data(), DType::kFloat32, kSize, kSize), targets);
  }
  state.SetBytesProcessed(state.iterations() * kSize * kSize * size_of(DType::kFloat32));
}

BENCHMARK_CAPTURE(quantize_float32, 1x128, Granularity::kBlock1x128, false)->UseRealTime();
BENCHMARK_CAPTURE(quantize_float32, 1x128_transpose, Granularity::kBlock1x128, true)->UseRealTime();
BENCHMARK_CAPTURE(quantize_float32, 128x128, Granularity::kBlock128x128, false)->UseRealTime();
BENCHMARK_CAPTURE(quantize_float32, tensor, Granularity::kTensor, false)->UseRealTime();

}  // namespace
}  // namespace octofold::bench
