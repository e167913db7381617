#include "cpu/vector_kernels.h"

#include "octofold/types.h"

#include "cpu/number_formats.h"
#include "support/test.h"

namespace octofold::cpu {
namespace {

// The kernels of the processor that runs the test: the widest, and all others that it can run.
class VectorKernelsTest : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (GetParam() >= all_vector_kernels().size()) GTEST_SKIP() << "this processor has no others";
  }
  const VectorKernels& kernels() const { return all_vector_kernels()[GetParam()]; }
};
INSTANTIATE_TEST_SUITE_P(, VectorKernelsTest, testing::Range<std::size_t>(0, 3));

std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  // Whole numbers, of which FP32 sums 128 products without an error.
  std::ranges::generate(values, [&] { return static_cast<float>(random() % 65) - 32.0f; });
  return values;
}

template <typename Sum>
void expect_blocks_are_right(const VectorKernels& kernels,
                             void (*add)(const BlockProduct<Sum>& block)) {
  constexpr std::int64_t kColumns = 96;
  const std::vector<float> b = numbers(kColumns * kScaleBlock, 2);
  std::vector<float> packed(b.size());
  kernels.pack(b.data(), kColumns, packed.data());
  const std::vector<float> scale_b = numbers(kColumns, 4);
  for (const std::int64_t columns : {1, 31, 33, 96}) {
    for (std::int64_t rows = 1; rows <= 26; ++rows) {
      for (const std::int64_t depth : {1, 127, 128}) {
        const std::vector<float> a = numbers(rows * kScaleBlock, 1), scale_a = numbers(rows, 3);
        const bool is_first = rows % 2 == 0;
        const Sum before = is_first ? std::numeric_limits<Sum>::quiet_NaN() : Sum{5};
        std::vector<Sum> sum(static_cast<std::size_t>(rows * kColumns), before);
        add({rows, columns, depth, a.data(), packed.data(), scale_a.data(), scale_b.data(),
             sum.data(), is_first, kColumns});
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < columns; ++j) {
            double partial = 0;
            for (std::int64_t k = 0; k < depth; ++k) {
              partial += static_cast<double>(a[static_cast<std::size_t>(i * kScaleBlock + k)]) *
                         static_cast<double>(b[static_cast<std::size_t>(j * kScaleBlock + k)]);
            }
            const double scale = static_cast<double>(scale_a[static_cast<std::size_t>(i)]) *
                                 static_cast<double>(scale_b[static_cast<std::size_t>(j)]);
            ASSERT_EQ(static_cast<Sum>((is_first ? 0 : 5) + partial * scale),
                      sum[static_cast<std::size_t>(i * kColumns + j)])
                << kernels.name << " " << rows << " " << columns << " " << depth << " at " << i
                << ", " << j;
          }
        }
      }
    }
  }
}

TEST_P(VectorKernelsTest, BlocksAreRight) {
  expect_blocks_are_right<float>(kernels(), kernels().add_block);
  expect_blocks_are_right<double>(kernels(), kernels().add_block_in_double);
}

// A row's bits are those that it has alone, whatever the tile that it lies in.
TEST_P(VectorKernelsTest, RowsDoNotDependOnOthers) {
  constexpr std::int64_t kRows = 25;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> a(kRows * kScaleBlock), b(kMostPanel * kScaleBlock), packed(b.size());
  std::ranges::generate(a, [&] { return normal(random); });
  std::ranges::generate(b, [&] { return normal(random); });
  kernels().pack(b.data(), kMostPanel, packed.data());
  const std::vector<float> scales(kMostPanel, 0.3f);
  bool is_first = true;
  const auto sums = [&](std::int64_t row, std::int64_t rows) {
    std::vector<float> result(static_cast<std::size_t>(rows * kMostPanel), 0.7f);
    kernels().add_block({rows, kMostPanel, kScaleBlock, a.data() + row * kScaleBlock, packed.data(),
                         scales.data(), scales.data(), result.data(), is_first, kMostPanel});
    return result;
  };
  for (const bool first : {true, false}) {
    is_first = first;
    const std::vector<float> all = sums(0, kRows);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto begin = all.begin() + row * kMostPanel;
      ASSERT_EQ(sums(row, 1), std::vector<float>(begin, begin + kMostPanel)) << row;
    }
  }
}

template <typename Format>
void expect_codes_are_decoded(void (*decode)(const std::uint8_t*, std::int64_t, float*)) {
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  for (const std::int64_t count : {256, 255, 7, 1}) {
    for (std::size_t first = 0; first + static_cast<std::size_t>(count) <= 256; ++first) {
      std::vector<float> values(static_cast<std::size_t>(count) + 1, 42.0f);
      decode(codes.data() + first, count, values.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]),
                  std::bit_cast<std::uint32_t>(Format::decode(codes[first + i])))
            << "code " << first + i;
      }
      ASSERT_EQ(values.back(), 42.0f) << "written behind the last";
    }
  }
}

TEST_P(VectorKernelsTest, CodesAreDecoded) {
  expect_codes_are_decoded<E4M3>(kernels().decode_e4m3);
  expect_codes_are_decoded<E5M2>(kernels().decode_e5m2);
}

template <typename Format>
void expect_numbers_are_encoded(void (*encode)(const float*, std::int64_t, std::uint16_t*)) {
  std::vector<float> values;  // each number of 16 bits, and what lies on and about the ties
  for (std::uint32_t code = 0; code < 1 << 16; ++code) {
    const auto bits =
        std::bit_cast<std::uint32_t>(Format::decode(static_cast<std::uint16_t>(code)));
    for (const std::uint32_t more : {0x0u, 0xFFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u}) {
      values.push_back(std::bit_cast<float>(bits + more));
    }
  }
  values.push_back(1);  // a last vector that is not whole
  std::vector<std::uint16_t> codes(values.size() + 1, 42);
  encode(values.data(), std::ssize(values), codes.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(codes[i], Format::encode(values[i], Overflow::kSaturate)) << values[i];
  }
  ASSERT_EQ(codes.back(), 42) << "written behind the last";
}

TEST_P(VectorKernelsTest, NumbersAreEncoded) {
  expect_numbers_are_encoded<BFloat16>(kernels().encode_bfloat16);
  expect_numbers_are_encoded<Float16>(kernels().encode_float16);
}

}  // namespace
}  // namespace octofold::cpu
