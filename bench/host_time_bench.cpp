// What a call costs the processor before the GPU has its work: shapes so small that the GPU keeps
// up. Skipped where there is no GPU.
#include <benchmark/benchmark.h>

#include "octofold/gemm.h"

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
  constexpr std::int64_t kBlocks = kK / 128;
  const GpuMemory a(*driver, kM * kK);
  const GpuMemory b(*driver, kN * kK);
  const GpuMemory scale_a(*driver, kM * kBlocks * 4);
  const GpuMemory scale_b(*driver, kBlocks * 4);
  const GpuMemory out(*driver, kM * kN * 2);
  // Rows next to each other, as casts on the GPU write them.
  TensorView rows_major = matrix(scale_a.get(), DType::kFloat32, kM, kBlocks, kBlocks, kGpu);
  rows_major.strides = {1, kM};
  const GemmArguments arguments{
      .a = {matrix(a.get(), DType::kE4M3, kM, kK, kK, kGpu), rows_major, Granularity::kBlock1x128},
      .b = {matrix(b.get(), DType::kE4M3, kN, kK, kK, kGpu),
            matrix(scale_b.get(), DType::kFloat32, 1, kBlocks, kBlocks, kGpu),
            Granularity::kBlock128x128},
      .out = matrix(out.get(), DType::kBFloat16, kM, kN, kN, kGpu)};
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
