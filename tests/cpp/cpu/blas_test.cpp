#include "cpu/blas.h"

#include <atomic>
#include <gtest/gtest.h>
#include <vector>

#include "cpu/parallel.h"

namespace octofold::cpu {
namespace {

// More threads than the BLAS has packing buffers. Unlocked, some of these products came out wrong.
TEST(MultiplyTest, IsRightFromManyThreadsAtOnce) {
  constexpr std::int64_t kSize = 96;
  std::vector<float> a(kSize * kSize), b(kSize * kSize);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 7) - 3;
    b[i] = static_cast<float>(i % 5) - 2;
  }
  std::vector<float> expected(kSize * kSize);  // whole numbers: exact in any order of summation
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    for (std::int64_t k = 0; k < kSize; ++k) {
      expected[i] += a[i / kSize * kSize + k] * b[i % kSize * kSize + k];
    }
  }
  std::atomic<int> wrong{0};
  run_on_threads(64, [&] {
    std::vector<float> d(kSize * kSize);
    for (int round = 0; round < 100; ++round) {
      multiply(kSize, kSize, kSize, a.data(), kSize, b.data(), kSize, d.data(), kSize);
      if (d != expected) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace octofold::cpu
