// Transposes of FP8 codes: each element, and what is refused.
#include "octofold/transpose.h"

#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

constexpr std::int64_t kRows = 130, kCols = 70, kStride = 75;

class TransposeOpTest : public testing::Test {
 protected:
  TransposeOpTest() {
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = static_cast<std::uint8_t>(i * 2'654'435'761u >> 16);
    }
  }

  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(6 * kRows * kStride);
  std::vector<std::uint8_t> out_ = std::vector<std::uint8_t>(6 * kRows * kCols);
};

TEST_F(TransposeOpTest, OfStacks) {
  const TensorView x{.data = codes_.data(),
                     .dtype = DType::kE5M2,
                     .rank = 4,
                     .shape = {2, 3, kRows, kCols},
                     .strides = {3 * kRows * kStride, kRows * kStride, kStride, 1}};
  const MutableTensorView out{.data = out_.data(),
                              .dtype = DType::kE5M2,
                              .rank = 4,
                              .shape = {2, 3, kCols, kRows},
                              .strides = {3 * kRows * kCols, kRows * kCols, kRows, 1}};
  transpose(x, out);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < kCols; ++col) {
        ASSERT_EQ(out_[as_size((i * kCols + col) * kRows + row)],
                  codes_[as_size((i * kRows + row) * kStride + col)]);
      }
    }
  }
}

TEST_F(TransposeOpTest, OfNothing) {
  transpose(matrix<const void>(nullptr, DType::kE4M3, 0, 5),
            matrix<void>(nullptr, DType::kE4M3, 5, 0));
  const TensorView none{.dtype = DType::kE4M3, .rank = 3, .shape = {0, 2, 3}, .strides = {6, 3, 1}};
  transpose(none, {.dtype = DType::kE4M3, .rank = 3, .shape = {0, 3, 2}, .strides = {6, 2, 1}});
}

TEST_F(TransposeOpTest, NamesWhatItDoesNotTake) {
  const auto error = [&](auto&& spoil) {
    TensorView x = matrix<const void>(codes_.data(), DType::kE4M3, kRows, kCols, kStride);
    MutableTensorView out = matrix<void>(out_.data(), DType::kE4M3, kCols, kRows);
    spoil(x, out);
    return error_of([&] { transpose(x, out); });
  };
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto& x, auto&) { x.dtype = DType::kFloat16; }),
              HasSubstr("transpose: argument 'x': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error([](auto& x, auto&) { x = vector(x.data, DType::kE4M3, 5); }),
              HasSubstr("transpose: argument 'x': expected at least 2 dimensions"));
  EXPECT_THAT(error([](auto& x, auto&) { x.strides[1] = 2; }), HasSubstr("argument 'x'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.dtype = DType::kE5M2; }),
              HasSubstr("transpose: argument 'out': expected dtype e4m3"));
  EXPECT_THAT(error([](auto&, auto& out) { std::swap(out.shape[0], out.shape[1]); }),
              HasSubstr("transpose: argument 'out': expected shape"));
  EXPECT_THAT(error([&](auto&, auto& out) { out.data = codes_.data(); }),
              HasSubstr("argument 'out'"));
}

}  // namespace
}  // namespace octofold
