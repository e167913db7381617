// What a call costs the processor before the GPU has its work: shapes so small that the GPU keeps
// up. Skipped where there is no GPU.
#include <benchmark/benchmark.h>

#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"

#include "gpu_memory.h"

namespace octofold::bench {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

// Fewer calls than a stream's queue holds, so that none waits for the GPU.
constexpr int kCalls = 200;

void host_time_gemm(benchmark::State& state) {
  const GpuDriver* driver = GpuDriver::get();
  if (driver == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  constexpr std::int64_t kM = 64;
  constexpr std::int64_t kN = 128;
  constexpr std::int64_t kK = 512;
  const ScaledMatrix a(kM, kK, Granularity::kBlock1x128, DType::kE4M3, kGpu);
  const ScaledMatrix b(kN, kK, Granularity::kBlock128x128, DType::kE4M3, kGpu);
  const GpuMemory out(*driver, kM * kN * 2);
  const GemmArguments arguments{
      .a = a.view(), .b = b.view(), .out = matrix(out.get(), DType::kBFloat16, kM, kN, kN, kGpu)};
  gemm(arguments);  // compiles or loads the kernel
  driver->synchronize();
  int queued = 0;
  for (auto _ : state) {
    gemm(arguments);
    if (++queued == kCalls) {
      state.PauseTiming();
      driver->synchronize();
      queued = 0;
      state.ResumeTiming();
    }
  }
  driver->synchronize();
}

BENCHMARK(host_time_gemm)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace octofold::bench
