// Runs the levels of docs/kernels/ladder.md on one problem, checks each and times it:
//
//   nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -I.
//   -Iinclude \
//       -o ladder examples/kernels/ladder.cu
//   ./ladder M N K [LEVEL...]
//
// Exit code 1: a result is wrong, or CUDA failed; 2: an argument is refused.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_fp8.h>
#include <random>
#include <string_view>
#include <vector>

#include "examples/kernels/level_1.h"
#include "examples/kernels/level_2.h"
#include "examples/kernels/level_6.h"

namespace {

using namespace octofold;
using ladder::Launch;
using ladder::Problem;

struct Level {
  int number;
  void (*kernel)(Problem);
  Launch launch;
};

constexpr Level kLevels[] = {{1, ladder::level_1::kernel, ladder::level_1::kLaunch},
                             {2, ladder::level_2::kernel, ladder::level_2::kLaunch},
                             {3, ladder::level_3::kernel, ladder::level_3::kLaunch},
                             {4, ladder::level_4::kernel, ladder::level_4::kLaunch},
                             {5, ladder::level_5::kernel, ladder::level_5::kLaunch},
                             {6, ladder::level_6::kernel, ladder::level_6::kLaunch}};

// Ends the program where a call of the runtime failed.
void expect(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "ladder: %s: %s\n", call, cudaGetErrorString(result));
  std::exit(1);
}
#define CALL(call) expect(call, #call)

// A positive multiple, at most `most`.
int number_of(const char* argument, std::string_view text, int multiple, int most = 65536) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number <= most &&
      number % multiple == 0) {
    return number;
  }
  std::fprintf(stderr, "ladder: %s: expected a multiple of %d from %d to %d, got %s\n", argument,
               multiple, multiple, most, text.data());
  std::exit(2);
}

// Nothing is freed: the program ends with its one problem.
template <typename T>
T* on_device(const std::vector<T>& values) {
  void* memory = nullptr;
  CALL(cudaMalloc(&memory, values.size() * sizeof(T)));
  CALL(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

// Codes as casts make them: normal numbers, the largest magnitudes near e4m3's largest, 448.
std::vector<unsigned char> random_codes(std::mt19937_64& random, std::size_t count) {
  std::vector<unsigned char> drawn(1 << 16), codes(count);
  std::normal_distribution<float> normal(0, 100);
  for (auto& code : drawn) {
    code = __nv_cvt_float_to_fp8(normal(random), __NV_SATFINITE, __NV_E4M3);
  }
  for (auto& code : codes) code = drawn[random() % drawn.size()];
  return codes;
}

std::vector<float> random_scales(std::mt19937_64& random, std::size_t count) {
  std::vector<float> scales(count);
  std::uniform_real_distribution<float> uniform(0.005f, 0.02f);
  for (float& scale : scales) scale = uniform(random);
  return scales;
}

double value_of(unsigned char code) {
  __nv_fp8_e4m3 value;
  value.__x = code;
  return static_cast<float>(value);
}

double value_of_bfloat16(unsigned short bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// A matrix [rows, columns] by boxes of 128 bytes × `box_rows`, swizzled as wgmma and stores have
// it.
config::TensorMap map_of(CUtensorMapDataType type, int bytes, const void* data, int rows,
                         int columns, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                          cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) CALL(cudaErrorSymbolNotFound);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(columns) * bytes};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / bytes),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, 2, const_cast<void*>(data), sizes, stride, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "ladder: cuTensorMapEncodeTiled: error %d\n", static_cast<int>(result));
    std::exit(1);
  }
  config::TensorMap bytes_of_map;
  static_assert(sizeof(map) == sizeof(bytes_of_map));
  std::memcpy(&bytes_of_map, &map, sizeof(map));
  return bytes_of_map;
}

// The problem on the host and on the GPU.
class Run {
 public:
  Run(int m, int n, int k, int multiprocessors)
      : m_(m), n_(n), k_(k), multiprocessors_(multiprocessors) {
    std::mt19937_64 random(1);
    a_ = random_codes(random, std::size_t(m_) * k_);
    b_ = random_codes(random, std::size_t(n_) * k_);
    a_scales_ = random_scales(random, std::size_t(k_blocks()) * m_);
    b_scales_ = random_scales(random, std::size_t(config::ceil_divide(n_, 128)) * k_blocks());
    d_.resize(std::size_t(m_ + kRowsBehind) * n_);
    problem_ = {.m = m_,
                .n = n_,
                .k = k_,
                .a = on_device(a_),
                .b = on_device(b_),
                .a_scales = on_device(a_scales_),
                .b_scales = on_device(b_scales_),
                .d = on_device(d_)};
    problem_.d_map = map_of(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, problem_.d, m_, n_, 16);
    for (int row : {0, m_ - 1}) {
      for (int column : {0, n_ - 1}) samples_.push_back(sample(row, column));
    }
    while (samples_.size() < 4000) {
      samples_.push_back(sample(static_cast<int>(random() % m_), static_cast<int>(random() % n_)));
    }
  }

  // The time of a launch in µs, by the median of 15 times of several; wrong results end the
  // program.
  double time(const Level& level) {
    const Launch& launch = level.launch;
    if (launch.a_box_rows > 0) {
      constexpr auto kType = CU_TENSOR_MAP_DATA_TYPE_UINT8;
      problem_.a_map = map_of(kType, 1, problem_.a, m_, k_, launch.a_box_rows);
      problem_.b_map = map_of(kType, 1, problem_.b, n_, k_, launch.b_box_rows);
    }
    CALL(cudaFuncSetAttribute(level.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              launch.shared_bytes));
    CALL(cudaMemset(problem_.d, 0xFF, d_.size() * 2));  // NaN
    start(level);
    fetch();
    check(level.number);
    const std::vector<unsigned short> first = d_;

    cudaEvent_t begin, end;
    CALL(cudaEventCreate(&begin));
    CALL(cudaEventCreate(&end));
    const auto time_of = [&](int launches) {
      CALL(cudaEventRecord(begin));
      for (int i = 0; i < launches; ++i) start(level);
      CALL(cudaEventRecord(end));
      CALL(cudaEventSynchronize(end));
      float milliseconds = 0;
      CALL(cudaEventElapsedTime(&milliseconds, begin, end));
      return 1000.0 * milliseconds / launches;
    };
    const int launches = std::clamp(static_cast<int>(10'000 / time_of(1)), 1, 100);
    std::vector<double> times(15);
    for (double& time : times) time = time_of(launches);
    std::ranges::nth_element(times, times.begin() + 7);
    fetch();
    if (d_ != first) fail(level.number, "a later launch gave other bits");
    return times[7];
  }

 private:
  static constexpr int kRowsBehind = 256;  // of D: none of their bytes may change

  struct Sample {
    int row, column;
    double expected, terms;  // the sum, and that of all magnitudes
  };

  int k_blocks() const { return config::ceil_divide(k_, 128); }

  Sample sample(int row, int column) const {
    Sample sample{row, column, 0, 0};
    for (int i = 0; i < k_; ++i) {
      const double term = value_of(a_[std::size_t(row) * k_ + i]) *
                          value_of(b_[std::size_t(column) * k_ + i]) *
                          a_scales_[std::size_t(i / 128) * m_ + row] *
                          b_scales_[std::size_t(column / 128) * k_blocks() + i / 128];
      sample.expected += term;
      sample.terms += std::abs(term);
    }
    return sample;
  }

  void start(const Level& level) const {
    const Launch& launch = level.launch;
    const int groups = config::ceil_divide(m_, launch.tile_rows) *
                       config::ceil_divide(n_, launch.cluster * launch.tile_columns);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim.x = static_cast<unsigned>(
        launch.cluster *
        (launch.stays ? std::min(groups, multiprocessors_ / launch.cluster) : groups));
    config.blockDim.x = static_cast<unsigned>(launch.threads);
    config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
    config.attrs = &cluster;
    config.numAttrs = launch.cluster > 1 ? 1 : 0;
    CALL(cudaLaunchKernelEx(&config, level.kernel, problem_));
  }

  void fetch() { CALL(cudaMemcpy(d_.data(), problem_.d, d_.size() * 2, cudaMemcpyDeviceToHost)); }

  // Half an ulp of bfloat16, and what tensor cores lose, who keep about 14 bits of a sum.
  void check(int level) const {
    for (const auto& [row, column, expected, terms] : samples_) {
      const double got = value_of_bfloat16(d_[std::size_t(row) * n_ + column]);
      if (!(std::abs(got - expected) <= std::abs(expected) / 256 + terms / 4096)) {
        std::fprintf(stderr, "ladder: level %d: D[%d, %d]: expected %g, got %g\n", level, row,
                     column, expected, got);
        std::exit(1);
      }
    }
    const auto end = d_.begin() + std::ptrdiff_t(m_) * n_;
    if (std::find(d_.begin(), end, 0xFFFF) != end) fail(level, "an element was not written");
    if (std::any_of(end, d_.end(), [](auto bits) { return bits != 0xFFFF; })) {
      fail(level, "memory behind D was written");
    }
  }

  [[noreturn]] static void fail(int level, const char* what) {
    std::fprintf(stderr, "ladder: level %d: %s\n", level, what);
    std::exit(1);
  }

  int m_, n_, k_, multiprocessors_;
  std::vector<unsigned char> a_, b_;
  std::vector<float> a_scales_, b_scales_;
  std::vector<unsigned short> d_;
  std::vector<Sample> samples_;
  Problem problem_{};
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: ladder M N K [LEVEL...]\n");
    return 2;
  }
  const int m = number_of("M", arguments[1], 1);
  const int n = number_of("N", arguments[2], 8);  // rows of D, which TMA stores, in bytes: of 16
  const int k = number_of("K", arguments[3], 16);
  std::vector<int> levels;
  for (int i = 4; i < count; ++i) levels.push_back(number_of("LEVEL", arguments[i], 1, 6));
  if (levels.empty()) levels = {1, 2, 3, 4, 5, 6};

  cudaDeviceProp device;
  CALL(cudaGetDeviceProperties(&device, 0));
  if (device.major != 9 || device.minor != 0) {
    std::fprintf(stderr, "ladder: GPU: expected compute capability 9.0 (Hopper), got %d.%d\n",
                 device.major, device.minor);
    return 1;
  }
  std::printf("%s, M %d, N %d, K %d\n\n| level | µs | TFLOPS |\n|---|---|---|\n", device.name, m, n,
              k);
  Run run(m, n, k, device.multiProcessorCount);
  for (const int number : levels) {
    const double time = run.time(kLevels[number - 1]);
    std::printf("| %d | %.1f | %.1f |\n", number, time, 2.0 * m * n * k / time / 1e6);
    std::fflush(stdout);
  }
  return 0;
}
