// Times what a call costs the processor before the GPU has its work: shapes so small that the GPU
// keeps up. Skipped where there is no GPU.
#include <benchmark/benchmark.h>
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"

namespace octofold::bench {
namespace {

// The few functions of libcuda that the benchmark needs, with GPU 0's primary context current. The
// driver is opened at run time: no CUDA toolkit is needed.
class GpuDriver {
 public:
  // Null where there is no GPU.
  static const GpuDriver* get() {
    static const GpuDriver driver;
    return driver.ready_ ? &driver : nullptr;
  }

  // Bytes that are all 0, and stay until the process ends.
  void* zeros(std::size_t bytes) const {
    std::uint64_t address = 0;
    check(allocate_(&address, bytes), "cuMemAlloc");
    check(fill_(address, 0, bytes), "cuMemsetD8");
    return reinterpret_cast<void*>(address);
  }
  void synchronize() const { check(synchronize_(), "cuCtxSynchronize"); }

 private:
  GpuDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return;
    int (*init)(unsigned) = nullptr;
    int (*retain)(void** context, int device) = nullptr;
    int (*set_current)(void* context) = nullptr;
    find(library, "cuInit", init);
    find(library, "cuDevicePrimaryCtxRetain", retain);
    find(library, "cuCtxSetCurrent", set_current);
    find(library, "cuMemAlloc_v2", allocate_);
    find(library, "cuMemsetD8_v2", fill_);
    find(library, "cuCtxSynchronize", synchronize_);
    void* context = nullptr;
    // A CUdevice is the device's number.
    ready_ = init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0;
  }

  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libcuda has no ") + name);
  }

  static void check(int result, const char* what) {
    if (result != 0) throw std::runtime_error(what + (": CUDA error " + std::to_string(result)));
  }

  int (*allocate_)(std::uint64_t* address, std::size_t bytes) = nullptr;
  int (*fill_)(std::uint64_t address, unsigned char value, std::size_t bytes) = nullptr;
  int (*synchronize_)() = nullptr;
  bool ready_ = false;
};

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
