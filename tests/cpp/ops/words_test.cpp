// Views of packed words, and what has none.
#include "octofold/words.h"

#include "octofold/octofold.h"

#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

class WordsTest : public testing::Test {
 protected:
  alignas(4) std::array<std::uint8_t, 96> memory_{};
};

TEST_F(WordsTest, AreTheSameMemory) {
  for (const DType format : {DType::kE4M3, DType::kE5M2, DType::kFloat16}) {
    const std::int64_t each = numbers_per_word(format);
    MutableTensorView numbers = matrix(memory_.data(), format, 2, 2 * each, 3 * each);
    const MutableTensorView words = as_words(numbers);
    EXPECT_EQ(words.data, memory_.data());
    EXPECT_EQ(words.dtype, DType::kInt32);
    EXPECT_EQ(words.shape[0], 2);
    EXPECT_EQ(words.shape[1], 2);
    EXPECT_EQ(words.strides[0], 3);
    EXPECT_EQ(words.strides[1], 1);
    const TensorView back = from_words(TensorView(words), format);
    EXPECT_EQ(back.data, memory_.data());
    EXPECT_EQ(back.dtype, format);
    EXPECT_EQ(back.shape[1], 2 * each);
    EXPECT_EQ(back.strides[0], 3 * each);
  }
}

TEST_F(WordsTest, HoldTheFirstNumberLowest) {
  const std::array<float, 4> values{1, 2, -1, 0};
  const MutableTensorView codes = vector(memory_.data(), DType::kE5M2, 4);
  convert_dtype(vector(values.data(), DType::kFloat32, 4), codes);
  EXPECT_EQ(*static_cast<const std::uint32_t*>(as_words(codes).data), 0x00BC'403Cu);
}

TEST_F(WordsTest, ContainersOfFloat32AreRead) {
  const MutableTensorView words = vector(memory_.data(), DType::kFloat32, 3);
  EXPECT_EQ(from_words(words, DType::kE4M3).shape[0], 12);
  EXPECT_EQ(from_words(words, DType::kFloat16).shape[0], 6);
}

TEST_F(WordsTest, NamesWhatHasNoWords) {
  const auto error = [&](auto&& spoil) {
    MutableTensorView numbers = matrix(memory_.data(), DType::kE4M3, 2, 8, 12);
    spoil(numbers);
    return error_of([&] { as_words(numbers); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  EXPECT_THAT(
      error([](auto& x) { x.shape[1] = 6; }),
      HasSubstr("as_words: argument 'numbers': expected a last dimension that is a multiple "
                "of 4, the e4m3 numbers of a word, got e4m3 [2, 6]"));
  EXPECT_THAT(error([](auto& x) { x.strides[1] = 2; }), HasSubstr("a contiguous last dimension"));
  EXPECT_THAT(error([](auto& x) { x.strides[0] = 10; }), HasSubstr("multiples of 4, whole words"));
  EXPECT_THAT(error([&](auto& x) { x.data = memory_.data() + 1; }),
              HasSubstr("an address that is not aligned"));
  EXPECT_THAT(error([](auto& x) { x.dtype = DType::kFloat32; }),
              HasSubstr("dtype e4m3 or e5m2 or float16, got float32"));
  EXPECT_THAT(error([](auto& x) { x.rank = 0; }), HasSubstr("at least 1 dimension"));
  EXPECT_EQ(error([](auto& x) { x.shape[0] = 1, x.strides[0] = 9; }), "no error");
}

TEST_F(WordsTest, NamesWhatAreNoWords) {
  const auto error = [&](DType container, DType format, std::int64_t stride = 1) {
    MutableTensorView words = vector(memory_.data(), container, 3);
    words.strides[0] = stride;
    return error_of([&] { from_words(words, format); });
  };
  EXPECT_EQ(error(DType::kInt32, DType::kE4M3), "no error");
  EXPECT_THAT(error(DType::kFloat16, DType::kE4M3),
              HasSubstr("from_words: argument 'words': expected dtype int32 or float32"));
  EXPECT_THAT(error(DType::kInt32, DType::kBFloat16),
              HasSubstr("'format': expected e4m3, e5m2 or float16, got bfloat16"));
  EXPECT_THAT(error(DType::kInt32, DType::kE4M3, 2), HasSubstr("a contiguous last dimension"));
}

}  // namespace
}  // namespace octofold
