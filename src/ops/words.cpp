#include "octofold/words.h"

#include <cstdint>
#include <string_view>

#include "core/check.h"

namespace octofold {
namespace {

constexpr std::int64_t kWordBytes = 4;

template <typename View>
void require_runs_of_words(const core::Arguments& check, std::string_view argument,
                           const View& view) {
  check.require_sizes(argument, view);
  if (view.rank < 1) check.fail(argument, "at least 1 dimension", core::describe(view));
  const std::int32_t last = view.rank - 1;
  if (view.shape[last] > 1 && view.strides[last] != 1) {
    check.fail(argument, "a contiguous last dimension", core::describe(view));
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % kWordBytes != 0) {
    check.fail(argument, "data aligned to words of 4 bytes", "an address that is not aligned");
  }
}

template <typename View>
View words_of(const View& numbers) {
  const core::Arguments check("as_words");
  check.require_sizes("numbers", numbers);
  check.require_dtype("numbers", numbers, {DType::kE4M3, DType::kE5M2, DType::kFloat16});
  require_runs_of_words(check, "numbers", numbers);
  const std::int64_t each = numbers_per_word(numbers.dtype);
  View words = numbers;
  words.dtype = DType::kInt32;
  const std::int32_t last = numbers.rank - 1;
  if (numbers.shape[last] % each != 0) {
    check.fail("numbers",
               core::format("a last dimension that is a multiple of {}, the {} numbers of a word",
                            each, name(numbers.dtype)),
               core::describe(numbers));
  }
  words.shape[last] /= each;
  words.strides[last] = 1;
  for (std::int32_t i = 0; i < last; ++i) {
    if (numbers.shape[i] > 1 && numbers.strides[i] % each != 0) {
      check.fail("numbers", core::format("strides that are multiples of {}, whole words", each),
                 core::describe(numbers));
    }
    words.strides[i] /= each;
  }
  return words;
}

template <typename View>
View numbers_of(const View& words, DType format) {
  const core::Arguments check("from_words");
  check.require_sizes("words", words);
  check.require_dtype("words", words, {DType::kInt32, DType::kFloat32});
  require_runs_of_words(check, "words", words);
  check.require_enumerator("format", format);
  const std::int64_t each = numbers_per_word(format);
  if (each == 0) check.fail("format", "e4m3, e5m2 or float16", name(format));
  View numbers = words;
  numbers.dtype = format;
  const std::int32_t last = words.rank - 1;
  numbers.shape[last] *= each;
  numbers.strides[last] = 1;
  for (std::int32_t i = 0; i < last; ++i) numbers.strides[i] *= each;
  check.require_sizes("words", numbers);
  return numbers;
}

}  // namespace

TensorView as_words(const TensorView& numbers) { return words_of(numbers); }
MutableTensorView as_words(const MutableTensorView& numbers) { return words_of(numbers); }

TensorView from_words(const TensorView& words, DType format) { return numbers_of(words, format); }
MutableTensorView from_words(const MutableTensorView& words, DType format) {
  return numbers_of(words, format);
}

}  // namespace octofold
