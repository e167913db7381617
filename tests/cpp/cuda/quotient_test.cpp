// The quotient that casts of the dividing profiles form on the GPU (kernels/numeric/unit_cast.h):
// one reciprocal, one Newton step. It need not be the correctly rounded one; it must lie on the
// same side of every point at which rounding to FP8 decides, or on it.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace octofold::cuda {
namespace {

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float quotient(float x, float scale, float reciprocal) {
  const float first = x * reciprocal;
  return std::fma(-std::fma(first, scale, -x), reciprocal, first);
}

int side(float value, float point) { return value < point ? -1 : value > point; }

// Exponents do not matter, so x goes through all numbers of [1, 2). The points, halfway between two
// FP8 numbers, are odd numbers of at most 5 bits times powers of two; near one of them x / scale is
// for the scales next to x / point only.
std::int64_t count_wrong_sides(float point) {
  constexpr int kNeighbours = 4;
  std::int64_t wrong = 0;
  for (std::uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const float x = float_of(0x3F800000u | mantissa);
    const std::uint32_t nearest = bits_of(x / point);
    for (int i = -kNeighbours; i <= kNeighbours; ++i) {
      const float scale = float_of(nearest + static_cast<std::uint32_t>(i));
      wrong += side(quotient(x, scale, 1 / scale), point) != side(x / scale, point);
    }
  }
  return wrong;
}

TEST(QuotientTest, OneNewtonStepDecidesEveryRoundingToFp8AsTheQuotientDoes) {
  std::array<std::int64_t, 16> wrong{};
  {
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < 2; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::size_t i = static_cast<std::size_t>(worker); i < wrong.size(); i += 2) {
          wrong[i] = count_wrong_sides(static_cast<float>(2 * i + 1));
        }
      });
    }
  }
  for (std::size_t i = 0; i < wrong.size(); ++i) EXPECT_EQ(wrong[i], 0) << "point " << 2 * i + 1;
}

}  // namespace
}  // namespace octofold::cuda
