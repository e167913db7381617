// The FP8 product beside the FP32 product of the OpenBLAS that it is built on. OpenBLAS here runs
// on one thread: compare with OCTOFOLD_NUM_THREADS=1.
#include <benchmark/benchmark.h>
#include <cblas.h>

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

void fp32_gemm(benchmark::State& state) {
  const std::int64_t size = state.range(0);
  const std::vector<float> x = random_matrix(size, size);
  std::vector<float> d(x.size());
  const auto n = static_cast<blasint>(size);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1.0F, x.data(), n, x.data(), n,
                0.0F, d.data(), n);
  }
  count_operations(state, size);
}

BENCHMARK(fp32_gemm)->Arg(256)->Arg(1024)->UseRealTime()->Unit(benchmark::kMillisecond);
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
