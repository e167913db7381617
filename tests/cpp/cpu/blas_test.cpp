#include "cpu/blas.h"

#include "cpu/parallel.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

// Two calls that get the same packing buffer mix up their operands, so each thread's are its own.
// Small products, because the moment at which that can happen is a few instructions long.
TEST(MultiplyTest, IsRightFromManyThreadsAtOnce) {
  constexpr std::int64_t kSize = 8;
  std::atomic<int> next_thread{0}, wrong{0};
  run_on_threads(4, [&] {
    const auto factor = static_cast<float>(1 + next_thread++);
    const std::vector<float> a(kSize * kSize, factor), b(kSize * kSize, 1.0f);
    const std::vector<float> expected(kSize * kSize, factor * kSize);
    std::vector<float> d(kSize * kSize);
    for (int round = 0; round < 200000; ++round) {
      multiply(kSize, kSize, kSize, a.data(), kSize, b.data(), kSize, d.data(), kSize);
      if (d != expected) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace octofold::cpu
