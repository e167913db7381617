// The reference has to be quick enough to be used: 1024³ with block scales in at most three times
// the time of the same BLAS's FP32 product on as many threads. A ratio of one run, never a time.
#include "octofold/cast.h"
#include "octofold/scaled_matrix.h"

#include "cpu/blas.h"
#include "cpu/parallel.h"
#include "cpu/product.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

constexpr std::int64_t kSize = 1024;

template <typename Call>
double seconds(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Bands of rows over threads, as many as the reference uses.
void float32_product(const float* a, const float* b, float* d) {
  const int threads = thread_count(kSize, kSize * kSize);
  const std::int64_t band = (kSize + threads - 1) / threads;
  parallel_for(threads, kSize * kSize, [&] {
    return [&](std::int64_t i) {
      const std::int64_t first = std::min(kSize, i * band);
      const std::int64_t rows = std::min(kSize, first + band) - first;
      multiply(rows, kSize, kSize, a + first * kSize, kSize, b, kSize, d + first * kSize, kSize);
    };
  });
}

TEST(GemmSpeedTest, BlockScaledIsWithinThreeTimesFloat32) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "times of an instrumented build say nothing";
#endif
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> a(kSize * kSize), b(kSize * kSize), d(kSize * kSize);
  std::ranges::generate(a, [&] { return normal(random); });
  std::ranges::generate(b, [&] { return normal(random); });
  ScaledMatrix a8(kSize, kSize, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix b8(kSize, kSize, {.granularity = Granularity::kBlock128x128});
  cast(matrix(a.data(), DType::kFloat32, kSize, kSize), {.rows = a8.target()});
  cast(matrix(b.data(), DType::kFloat32, kSize, kSize), {.rows = b8.target()});

  double fp8 = 1e9, fp32 = 1e9;  // the quickest of interleaved rounds: other load only adds
  for (int round = 0; round < 7; ++round) {
    fp32 = std::min(fp32, seconds([&] { float32_product(a.data(), b.data(), d.data()); }));
    fp8 = std::min(fp8, seconds([&] {
                     multiply({.a = a8.view(),
                               .b = b8.view(),
                               .out = matrix(d.data(), DType::kFloat32, kSize, kSize)});
                   }));
  }
  RecordProperty("ratio", std::to_string(fp8 / fp32));
  EXPECT_LE(fp8, 3 * fp32) << "FP8 " << fp8 * 1e3 << " ms, FP32 " << fp32 * 1e3 << " ms";
  std::cout << "FP8 / FP32 time: " << fp8 / fp32 << "\n";
}

}  // namespace
}  // namespace octofold::cpu
