// The places of tensors' elements and of their scales.
#include <ranges>

#include "octofold/cast_targets.h"
#include "octofold/scale_layout.h"

#include "core/check.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

constexpr auto kCuda = DeviceType::kCuda;

TEST(ScaleLayoutTest, RowMajorOnTheHost) {
  EXPECT_THAT(scale_layout(Granularity::kTensor, 300, 500).shape, ElementsAre(1));
  EXPECT_THAT(scale_layout(Granularity::kChannel, 300, 500).shape, ElementsAre(300));
  const ScaleLayout rows = scale_layout(Granularity::kBlock1x128, 300, 500);
  EXPECT_THAT(rows.shape, ElementsAre(300, 4));
  EXPECT_THAT(rows.strides, ElementsAre(4, 1));
  EXPECT_EQ(rows.extent(), 1200);
  const ScaleLayout blocks = scale_layout(Granularity::kBlock128x128, 300, 500);
  EXPECT_THAT(blocks.shape, ElementsAre(3, 4));
  EXPECT_THAT(blocks.strides, ElementsAre(4, 1));
}

TEST(ScaleLayoutTest, OnAGpuColumnsOf1x128AreAligned) {
  const ScaleLayout layout = scale_layout(Granularity::kBlock1x128, 301, 500, kCuda);
  EXPECT_THAT(layout.shape, ElementsAre(301, 4));
  EXPECT_THAT(layout.strides, ElementsAre(1, 304));
  EXPECT_EQ(layout.extent(), 4 * 304);
  EXPECT_THAT(scale_layout(Granularity::kBlock1x128, 1, 128, kCuda).strides, ElementsAre(1, 4));
  EXPECT_THAT(scale_layout(Granularity::kBlock128x128, 301, 500, kCuda).strides, ElementsAre(4, 1));
  EXPECT_THAT(scale_layout(Granularity::kChannel, 301, 500, kCuda).strides, ElementsAre(1));
}

TEST(ScaleLayoutTest, EmptyMatrices) {
  EXPECT_EQ(scale_layout(Granularity::kTensor, 0, 0).extent(), 1);
  EXPECT_EQ(scale_layout(Granularity::kBlock1x128, 0, 500).extent(), 0);
  EXPECT_EQ(scale_layout(Granularity::kBlock1x128, 0, 500, kCuda).extent(), 0);
  EXPECT_EQ(scale_layout(Granularity::kBlock128x128, 500, 0).extent(), 0);
}

TEST(ScaleLayoutTest, BadArgumentsAreErrors) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  EXPECT_THAT(error_of([] { scale_layout(Granularity::kTensor, -1, 3); }),
              HasSubstr("scale_layout: expected sizes of at least 0, got -1×3"));
  EXPECT_THAT(error_of([&] { scale_layout(Granularity::kBlock1x128, kHuge, kHuge); }),
              HasSubstr("sizes that memory can hold, got 4294967296×4294967296"));
  EXPECT_THAT(
      error_of([] { scale_layout(static_cast<Granularity>(9), 1, 1); }),
      HasSubstr("argument 'granularity': expected an enumerator of Granularity, 0 to 3, got 9"));
  EXPECT_THAT(error_of([] { scale_shape(static_cast<Granularity>(99), 1, 1); }),
              HasSubstr("scale_shape: argument 'granularity'"));
  EXPECT_THAT(error_of([] { scale_layout({}, 1, 1, static_cast<DeviceType>(7)); }),
              HasSubstr("argument 'device': expected an enumerator of DeviceType, 0 to 2, got 7"));
}

class RowSliceTest : public testing::Test {
 protected:
  ScaledTensorView view(Granularity granularity, DeviceType device = DeviceType::kCpu) {
    const ScaleLayout layout = scale_layout(granularity, kRows, kCols, device);
    return {matrix<const void>(codes_.data(), DType::kE4M3, kRows, kCols),
            layout.view<const void>(scales_.data()), granularity};
  }
  std::ptrdiff_t first_scale(const ScaledTensorView& slice) {
    return static_cast<const float*>(slice.scale.data) - scales_.data();
  }

  static constexpr std::int64_t kRows = 300, kCols = 200;
  std::vector<std::uint8_t> codes_ = std::vector<std::uint8_t>(kRows * kCols);
  std::vector<float> scales_ = std::vector<float>(2 * kRows);
};

TEST_F(RowSliceTest, RowsAndTheirScales) {
  const ScaledTensorView channel = row_slice(view(Granularity::kChannel), 7, 12);
  EXPECT_EQ(channel.data.data, codes_.data() + 7 * kCols);
  EXPECT_EQ(channel.data.shape[0], 5);
  EXPECT_EQ(channel.scale.shape[0], 5);
  EXPECT_EQ(first_scale(channel), 7);
  const ScaledTensorView on_host = row_slice(view(Granularity::kBlock1x128), 7, kRows);
  EXPECT_EQ(on_host.scale.shape[0], kRows - 7);
  EXPECT_EQ(first_scale(on_host), 14);
  EXPECT_EQ(first_scale(row_slice(view(Granularity::kBlock1x128, kCuda), 7, 9)), 7);
  const ScaledTensorView tensor = row_slice(view(Granularity::kTensor), 7, 9);
  EXPECT_EQ(tensor.scale.shape[0], 1);
  EXPECT_EQ(first_scale(tensor), 0);
}

TEST_F(RowSliceTest, BlocksOf128Rows) {
  const ScaledTensorView last = row_slice(view(Granularity::kBlock128x128), 256, kRows);
  EXPECT_EQ(last.data.shape[0], 44);
  EXPECT_EQ(last.scale.shape[0], 1);
  EXPECT_EQ(first_scale(last), 4);
  const ScaledTensorView none = row_slice(view(Granularity::kBlock128x128), kRows, kRows);
  EXPECT_EQ(none.data.shape[0], 0);
  EXPECT_EQ(none.scale.shape[0], 0);
}

TEST_F(RowSliceTest, RowsOfATargetHaveItsMagnitudes) {
  const std::vector<float> of_rows(kRows);
  const CastTarget target{.data = matrix(codes_.data(), DType::kE4M3, kRows, kCols),
                          .scale = vector(scales_.data(), DType::kFloat32, kRows),
                          .format = {.granularity = Granularity::kChannel},
                          .amax = vector(of_rows.data(), DType::kFloat32, kRows)};
  EXPECT_EQ(row_slice(target, 30, 40).amax->shape[0], 10);
  EXPECT_EQ(row_slice(target, 30, 40).amax->data, of_rows.data() + 30);
}

TEST_F(RowSliceTest, BoundsInTheMiddleOfAScaleAreErrors) {
  const auto error = [&](Granularity granularity, std::int64_t begin, std::int64_t end) {
    return error_of([&] { row_slice(view(granularity), begin, end); });
  };
  EXPECT_THAT(error(Granularity::kBlock128x128, 64, 128),
              HasSubstr("row_slice: argument 'begin': expected a multiple of 128 up to 300"));
  EXPECT_THAT(error(Granularity::kBlock128x128, 0, 64), HasSubstr("argument 'end'"));
  EXPECT_THAT(error(Granularity::kChannel, -1, 4), HasSubstr("argument 'begin'"));
  EXPECT_THAT(error(Granularity::kChannel, 5, 4), HasSubstr("argument 'end'"));
  EXPECT_THAT(error(Granularity::kChannel, 5, 301), HasSubstr("argument 'end'"));
}

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
        const bool said = core::memory_overlaps(left.view, right.view);
        if (said == share || (said && !is_exact)) continue;
        FAIL() << core::describe(left.view) << ", " << core::describe(right.view) << " behind by "
               << shift;
      }
    }
  }
  TensorView elsewhere = cases.back().view;
  elsewhere.device = {DeviceType::kCuda, 0};
  EXPECT_FALSE(core::memory_overlaps(cases.back().view, elsewhere));
}

}  // namespace
}  // namespace octofold
