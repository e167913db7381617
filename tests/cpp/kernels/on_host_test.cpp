// Tests of kernels rely on this: how the host runs threads that wait for each other, in turns that
// no order is known of; its twin of the matrix products of a warp; and the judge of products.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/number_formats.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/mma.h"
#include "support/judge.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::launch;

TEST(LaunchTest, TurnsComeInNoOrderOfThreads) {
  std::mutex mutex;
  std::vector<unsigned> turns;
  launch(1, 128, [&] {
    const std::lock_guard lock(mutex);
    turns.push_back(threadIdx.x);
  });
  EXPECT_FALSE(std::ranges::is_sorted(turns));
  EXPECT_THAT(turns, testing::UnorderedElementsAreArray([] {
                std::vector<unsigned> all(128);
                std::iota(all.begin(), all.end(), 0u);
                return all;
              }()));
}

using LaunchDeathTest = testing::Test;

TEST(LaunchDeathTest, WhoeverWaitsInVainIsNamed) {
  EXPECT_DEATH(launch(1, 64,
                      [] {
                        if (threadIdx.x == 0) ptx::mbarrier_init(64, 2);
                        __syncthreads();
                        if (threadIdx.x == 1) ptx::mbarrier_arrive(64);
                        ptx::mbarrier_wait(64, 0);
                      }),
               "mbarrier 64 is waited for by 64");
  EXPECT_DEATH(launch(1, 64,
                      [] {
                        if (threadIdx.x < 32) __syncthreads();
                      }),
               "barrier of threads 64 is waited for by 64");
}

// ---- Products of a warp, beside products of matrices that are laid out by the table of
// kernels/ptx/mma.h, in places of their own.

// A [16, k] and B [k, 8] of small whole numbers, so that every sum is exact.
float a_at(int row, int k) { return static_cast<float>((row * 5 + k * 3) % 9 - 4); }
float b_at(int k, int column) { return static_cast<float>((column * 7 + k * 2) % 5 - 2); }
float expected_at(int row, int column, int depth) {
  float sum = static_cast<float>(row - column);
  for (int k = 0; k < depth; ++k) sum += a_at(row, k) * b_at(k, column);
  return sum;
}

template <typename Format, typename At>
unsigned word_of(int first, At&& at) {
  constexpr int kBits = 8 * sizeof(typename Format::Storage);
  unsigned word = 0;
  for (int i = 0; i < 32 / kBits; ++i) {
    word |= unsigned{Format::encode(at(first + i), Overflow::kNan)} << kBits * i;
  }
  return word;
}

template <typename FormatA, typename FormatB, typename Multiply>
void expect_product(Multiply&& multiply) {
  constexpr int kPerWord = 4 / sizeof(typename FormatA::Storage), kDepth = 8 * kPerWord;
  std::array<std::array<float, 4>, 64> results{};
  test::launch(1, 64, [&] {
    const int lane = static_cast<int>(threadIdx.x % 32), group = lane / 4, member = lane % 4;
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) {
      a[i] = word_of<FormatA>((member + i / 2 * 4) * kPerWord,
                              [&](int k) { return a_at(group + i % 2 * 8, k); });
    }
    for (int i = 0; i < 2; ++i) {
      b[i] = word_of<FormatB>((member + i * 4) * kPerWord, [&](int k) { return b_at(k, group); });
    }
    float sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = static_cast<float>(group + i / 2 * 8 - (2 * member + i % 2));
    }
    multiply(sums, a, b);
    for (std::size_t i = 0; i < 4; ++i) results[threadIdx.x][i] = sums[i];
  });
  for (int thread = 0; thread < 64; ++thread) {
    for (int i = 0; i < 4; ++i) {
      const int lane = thread % 32, row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      EXPECT_EQ(results[as_size(thread)][as_size(i)], expected_at(row, column, kDepth))
          << row << " " << column;
    }
  }
}

TEST(MmaTest, SixteenBitProductsAreThoseOfTheTable) {
  expect_product<cpu::Float16, cpu::Float16>(
      [](auto& sums, auto& a, auto& b) { ptx::multiply_add<DType::kFloat16>(sums, a, b); });
  expect_product<cpu::BFloat16, cpu::BFloat16>(
      [](auto& sums, auto& a, auto& b) { ptx::multiply_add<DType::kBFloat16>(sums, a, b); });
}

TEST(MmaTest, Fp8ProductsAreThoseOfTheTable) {
  expect_product<cpu::E4M3, cpu::E5M2>([](auto& sums, auto& a, auto& b) {
    ptx::multiply_add_fp8<DType::kE4M3, DType::kE5M2>(sums, a, b);
  });
}

TEST(MmaTest, MatricesAreLoadedAsTheyLieAndTransposed) {
  constexpr unsigned kStride = 80;  // of the rows of 32 16-bit elements
  for (std::uint16_t i = 0; i < 8 * 32; ++i) {
    const std::uint16_t value = static_cast<std::uint16_t>(i % 32 * 100 + i / 32);
    std::memcpy(&ptx::shared[i / 32 * kStride + i % 32 * 2], &value, 2);
  }
  std::array<std::array<unsigned, 8>, 32> loaded{};
  test::launch(1, 32, [&] {
    const unsigned lane = threadIdx.x, address = lane % 8 * kStride + lane / 8 * 16;
    unsigned plain[4], transposed[4];
    ptx::load_matrices(address, plain);
    ptx::load_matrices_transposed(address, transposed);
    for (std::size_t i = 0; i < 4; ++i) {
      loaded[lane][i] = plain[i];
      loaded[lane][4 + i] = transposed[i];
    }
  });
  const auto element = [](unsigned row, unsigned column) { return column * 100 + row; };
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane / 4, member = lane % 4;
    for (unsigned i = 0; i < 4; ++i) {
      EXPECT_EQ(loaded[lane][i],
                element(group, 8 * i + 2 * member) | element(group, 8 * i + 2 * member + 1) << 16);
      EXPECT_EQ(loaded[lane][4 + i],
                element(2 * member, 8 * i + group) | element(2 * member + 1, 8 * i + group) << 16);
    }
  }
}

// ---- The judge.

class JudgeTest : public testing::TestWithParam<DType> {
 protected:
  // 64 × 64 numbers, each a sum of terms of this magnitude; all but one as close as rounding gets.
  std::string verdict_with(double wrong) {
    std::normal_distribution<double> normal;
    test::Judge judge(GetParam());
    for (int i = 0; i < 4096; ++i) {
      const double expected = i == 1234 ? 0.1 : 8 * normal(random);
      const double rounded = expected + 0.45 * test::half_ulp(expected, GetParam());
      judge.see(i == 1234 ? wrong : rounded, expected, 40);
    }
    return judge.verdict();
  }

  test::Random random;
};

TEST_P(JudgeTest, TakesWhatIsRoundedWell) { EXPECT_EQ(verdict_with(0.1), ""); }

TEST_P(JudgeTest, SeesOneWrongElement) {
  for (const double wrong : {0.0, 0.2, -0.1, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(verdict_with(wrong), HasSubstr("element 1234")) << wrong;
  }
}

TEST_P(JudgeTest, KnowsNeighbours) {
  const test::Format format = test::format_of(GetParam());
  EXPECT_EQ(test::half_ulp(-1.5, GetParam()), std::ldexp(0.5, -format.mantissa_bits));
  const double subnormal = std::ldexp(1.0, format.smallest_exponent - 3);
  EXPECT_EQ(test::half_ulp(subnormal, GetParam()), test::half_ulp(0, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Formats, JudgeTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16));

}  // namespace
}  // namespace octofold
