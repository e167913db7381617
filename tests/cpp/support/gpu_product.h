// A product on a GPU of which nobody reads the memory: for tests of what reaches the GPU.
#pragma once

#include <cstdint>

#include "octofold/gemm.h"
#include "octofold/scale_layout.h"

namespace octofold::test {

inline constexpr octofold::Device kGpu{DeviceType::kCuda, 0};

inline void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

// Block scales, rows of A next to each other.
inline GemmArguments product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto scale = [](Granularity granularity, std::int64_t rows, std::int64_t cols,
                        std::uintptr_t data) {
    return scale_layout(granularity, rows, cols, DeviceType::kCuda).view(address(data), kGpu);
  };
  return {.a = {matrix<const void>(address(0x1000), DType::kE4M3, m, k, k, kGpu),
                scale(Granularity::kBlock1x128, m, k, 0x3000), Granularity::kBlock1x128},
          .b = {matrix<const void>(address(0x2000), DType::kE5M2, n, k, k, kGpu),
                scale(Granularity::kBlock128x128, n, k, 0x4000), Granularity::kBlock128x128},
          .out = matrix(address(0x5000), DType::kBFloat16, m, n, n, kGpu)};
}

}  // namespace octofold::test
