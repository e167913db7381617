// The host's twin of the matrix products of a warp, on which tests of kernels rely: beside products
// of matrices that are laid out by the table of kernels/ptx/mma.h, in places of their own.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "cpu/number_formats.h"
#include "kernels/ptx/mma.h"
#include "support/test.h"

namespace octofold {
namespace {

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

}  // namespace
}  // namespace octofold
