// Times what a call costs the processor before the GPU has its work: shapes so small that the GPU
// keeps up. Skipped where there is no GPU.
#include <benchmark/benchmark.h>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"

#include "gpu_memory.h"

namespace octofold::bench {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

// Fewer calls than a stream's queue holds, so that none waits for the GPU.
constexpr int kCalls = 200;

// So many products of 1 row, 2 rows and so on, in turn: each call is another problem than the last.
void host_time_gemm(benchmark::State& state) {
  const GpuDriver* driver = GpuDriver::get();
  if (driver == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  const std::int64_t products = state.range(0);
  constexpr std::int64_t kN = 128;
  constexpr std::int64_t kK = 512;
  const ScaledMatrix b(kN, kK, {.granularity = Granularity::kBlock128x128}, kGpu);
  void* const out = driver->zeros(products * kN * 2);
  std::vector<ScaledMatrix> as;
  std::vector<GemmArguments> arguments;
  for (std::int64_t m = 1; m <= products; ++m) {
    as.emplace_back(m, kK, Format{.granularity = Granularity::kBlock1x128}, kGpu);
    arguments.push_back({.a = as.back().view(),
                         .b = b.view(),
                         .out = matrix(out, DType::kBFloat16, m, kN, kN, kGpu)});
  }
  for (const GemmArguments& product : arguments) gemm(product);  // compiles or loads kernels
  driver->synchronize();
  int queued = 0;
  std::size_t next = 0;
  for (auto _ : state) {
    gemm(arguments[next]);
    next = next + 1 == arguments.size() ? 0 : next + 1;
    if (++queued == kCalls) {
      state.PauseTiming();
      driver->synchronize();
      queued = 0;
      state.ResumeTiming();
    }
  }
  driver->synchronize();
}

BENCHMARK(host_time_gemm)->Arg(1)->Arg(200)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace octofold::bench
