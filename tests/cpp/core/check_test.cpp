#include "core/check.h"

#include <ranges>

#include "support/test.h"

namespace octofold::core {
namespace {

// Against the sets of bytes of small views: never false where they share one, and true there alone
// if both are dense rows of which one stride divides the other.
TEST(MemoryOverlapsTest, AsSetsOfBytesDo) {
  struct Case {
    TensorView view;
    std::uint64_t bytes = 0;
    std::int64_t stride = -1;  // of several dense rows, in bytes; 0: it is one row
  };
  std::array<char, 64> memory{};
  std::vector<Case> cases;
  for (const int number : std::views::iota(0, 3 * 4 * 9 * 2 * 2)) {
    const std::int64_t rows = number % 3 + 1, cols = number / 3 % 4;
    const std::int64_t stride = number / 12 % 9 - 4, inner = number / 108 % 2 + 1;
    const DType dtype = number < 216 ? DType::kE4M3 : DType::kBFloat16;
    const std::int64_t size = size_of(dtype);
    Case c{{memory.data(), dtype, 2, {rows, cols}, {stride, inner}}};
    for (std::int64_t i = 0; i < rows * cols * size; ++i) {
      const std::int64_t element = i / size / cols * stride + i / size % cols * inner;
      c.bytes |= std::uint64_t{1} << (20 + element * size + i % size);
    }
    if (inner == 1 || cols == 1) c.stride = rows > 1 ? std::abs(stride) * size : 0;
    cases.push_back(c);
    std::swap(c.view.shape[0], c.view.shape[1]), std::swap(c.view.strides[0], c.view.strides[1]);
    if (cols == 1) c.view.rank = 1, c.view.shape[0] = rows, c.view.strides[0] = stride;
    cases.push_back(c);
  }
  for (const Case& left : cases) {
    for (Case right : cases) {
      const std::int64_t l = left.stride, r = right.stride;
      const bool is_exact = l >= 0 && r >= 0 && (l * r == 0 || l % r == 0 || r % l == 0);
      for (const int shift : {0, 1, 2, 5, 8, 11}) {
        right.view.data = memory.data() + shift;
        const bool share = (left.bytes & right.bytes << shift) != 0;
        const bool said = memory_overlaps(left.view, right.view);
        if (said == share || (said && !is_exact)) continue;
        FAIL() << describe(left.view) << ", " << describe(right.view) << " behind by " << shift;
      }
    }
  }
  TensorView elsewhere = cases.back().view;
  elsewhere.device = {DeviceType::kCuda, 0};
  EXPECT_FALSE(memory_overlaps(cases.back().view, elsewhere));
}

}  // namespace
}  // namespace octofold::core
