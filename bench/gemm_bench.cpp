// The FP8 product on the CPU. `octofold bench gemm` has it beside NumPy's FP32 product.
#include <benchmark/benchmark.h>

#include "octofold/cast.h"
#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"

#include "matrices.h"

namespace octofold::bench {
namespace {

// Multiply-adds count as two operations, as is usual for GEMM.
void count_operations(benchmark::State& state, std::int64_t size) {
  const double operations = 2.0 * static_cast<double>(size * size * size);
  state.counters["op/s"] =
      benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate);
}

void fp8_gemm(benchmark::State& state, Granularity granularity_a, Granularity granularity_b) {
  const std::int64_t size = state.range(0);
  std::vector<float> x = random_matrix(size, size);
  const TensorView source = matrix(x.data(), DType::kFloat32, size, size);
  ScaledMatrix a(size, size, {.granularity = granularity_a});
  ScaledMatrix b(size, size, {.granularity = granularity_b});
  cast(source, {.rows = a.target()});
  cast(source, {.rows = b.target()});
  std::vector<float> d(x.size());
  for (auto _ : state) {
    gemm({.a = a.view(), .b = b.view(), .out = matrix(d.data(), DType::kFloat32, size, size)});
  }
  count_operations(state, size);
}

BENCHMARK_CAPTURE(fp8_gemm, 1x128_128x128, Granularity::kBlock1x128, Granularity::kBlock128x128)
    ->Arg(256)
    ->Arg(1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(fp8_gemm, tensor_tensor, Granularity::kTensor, Granularity::kTensor)
    ->Arg(256)
    ->Arg(1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace octofold::bench
