// The levels of docs/kernels/ladder.md, run on the host beside sums in FP64.
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "examples/kernels/level_1.h"
#include "examples/kernels/level_2.h"
#include "examples/kernels/level_6.h"
#include "support/judge.h"
#include "support/matrix.h"
#include "support/tensor_map_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using ladder::Launch;

std::vector<float> random_scales(test::Random& random, int count) {
  std::vector<float> scales(as_size(count));
  for (float& scale : scales) scale = 0.5f + static_cast<float>(random() % 1000) / 1000;
  return scales;
}

config::TensorMap map_of(const void* data, unsigned element_bytes, int rows, int columns,
                         unsigned box_rows) {
  const std::int64_t row_bytes = std::int64_t{columns} * element_bytes;
  return test::tensor_map({.data = static_cast<unsigned char*>(const_cast<void*>(data)),
                           .element_bytes = element_bytes,
                           .columns = columns,
                           .rows = rows,
                           .matrices = 1,
                           .row_bytes = row_bytes,
                           .matrix_bytes = rows * row_bytes,
                           .box_columns = 128 / element_bytes,
                           .box_rows = box_rows});
}

// `clusters`: of blocks that stay.
void expect_product(void (*kernel)(ladder::Problem), const Launch& launch, int m, int n, int k,
                    int clusters = 0) {
  test::Random random;
  const int k_blocks = config::ceil_divide(k, 128);
  const test::Matrix a = test::drawn(DType::kE4M3, m, k), b = test::drawn(DType::kE4M3, n, k);
  const auto a_scales = random_scales(random, k_blocks * m);
  const auto b_scales = random_scales(random, config::ceil_divide(n, 128) * k_blocks);
  test::Matrix d(DType::kBFloat16, m + 5, n);  // rows behind it, which nobody may write
  ladder::Problem problem{.m = m,
                          .n = n,
                          .k = k,
                          .a = a.data(),
                          .b = b.data(),
                          .a_scales = a_scales.data(),
                          .b_scales = b_scales.data(),
                          .d = reinterpret_cast<unsigned short*>(d.data()),
                          .a_map = {},
                          .b_map = {},
                          .d_map = map_of(d.data(), 2, m, n, 16)};
  if (launch.a_box_rows > 0) {
    problem.a_map = map_of(a.data(), 1, m, k, static_cast<unsigned>(launch.a_box_rows));
    problem.b_map = map_of(b.data(), 1, n, k, static_cast<unsigned>(launch.b_box_rows));
  }
  const int tiles =
      config::ceil_divide(m, launch.tile_rows) * config::ceil_divide(n, launch.tile_columns);
  ptx::shared.fill(0xFF);
  test::launch(
      launch.stays ? clusters * launch.cluster : tiles, launch.threads, [&] { kernel(problem); },
      launch.cluster);
  EXPECT_TRUE(ptx::shared.is_filled_behind(launch.shared_bytes, 0xFF));

  test::Judge judge(DType::kBFloat16);
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double expected = 0, terms = 0;
      for (int i = 0; i < k; ++i) {
        const double term =
            a.at(row, i) * b.at(column, i) *
            static_cast<double>(a_scales[as_size(i / 128 * m + row)]) *
            static_cast<double>(b_scales[as_size(column / 128 * k_blocks + i / 128)]);
        expected += term;
        terms += std::abs(term);
      }
      judge.see(d.at(row, column), expected, terms);
    }
  }
  EXPECT_EQ(judge.verdict(), "");
  for (int row = m; row < m + 5; ++row) {
    for (int column = 0; column < n; ++column) EXPECT_TRUE(std::isnan(d.at(row, column)));
  }
}

TEST(LadderTest, EachLevelIsRight) {
  using namespace ladder;
  expect_product(level_1::kernel, level_1::kLaunch, 19, 24, 272);
  expect_product(level_2::kernel, level_2::kLaunch, 72, 72, 784);
  expect_product(level_3::kernel, level_3::kLaunch, 72, 136, 656);
  expect_product(level_4::kernel, level_4::kLaunch, 200, 72, 784);
  expect_product(level_5::kernel, level_5::kLaunch, 264, 136, 144, 1);
  // Side by side are three tiles, so that the second cluster tile has a block outside of D.
  expect_product(level_6::kernel, level_6::kLaunch, 200, 264, 272, 1);
}

TEST(LadderTest, TheWalkMeetsEachTileOnce) {
  ladder::Problem problem{};
  problem.m = 19 * 256 - 5, problem.n = 3 * 128 - 8;
  std::map<std::pair<int, int>, int> times;
  for (int block = 0; block < 5; ++block) {
    for (ladder::level_5::Tiles tiles(problem, 256, 128, block, 5); tiles.has_tile();
         tiles.advance()) {
      ++times[{tiles.row(), tiles.column()}];
    }
  }
  EXPECT_EQ(times.size(), 19u * 3);
  for (const auto& [place, count] : times) {
    EXPECT_EQ(count, 1);
    EXPECT_LT(place.first, problem.m);
    EXPECT_LT(place.second, problem.n);
  }
}

}  // namespace
}  // namespace octofold
