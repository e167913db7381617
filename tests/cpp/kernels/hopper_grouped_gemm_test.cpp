// FP8 products of groups by warpgroups, kernel and all, run on the host beside sums in FP64.
#include "support/sm90_gemm_on_host.h"  // first: it has CUDA's types
//
#include "support/gemm_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::Sm90GemmConfig;
using config::Work;
using enum DType;
using enum Granularity;

struct Groups {
  std::vector<int> sizes;  // of each: rows, or values of K
  int room = 0;            // for rows, all of them together or of each masked one
  int m = 0;               // rows of A, where K is in groups
  int n = 0;
  int k = 0;
};

// Where groups begin in memory, what the kernel is told, and the rows of A and D, and those of B.
// Of K a group has blocks of 128 of its own.
template <Work kWork>
struct Layout {
  explicit Layout(const Groups& given) {
    const auto count = static_cast<int>(given.sizes.size());
    int end = 0;
    for (int group = 0; group < count; ++group) {
      const int size = given.sizes[as_size(group)];
      begins.push_back(kWork == Work::kMaskedRows     ? group * given.room
                       : kWork == Work::kGroupedDepth ? 128 * (end / 128 + group)
                                                      : end);
      numbers.push_back(kWork == Work::kMaskedRows ? size : end);
      end += size;
    }
    if (kWork != Work::kMaskedRows) numbers.push_back(end);
    if (kWork == Work::kGroupedDepth) {
      a_rows = given.m, b_rows = given.n, out_rows = count * given.m;
      depth = 128 * (end / 128 + count);
    } else {
      a_rows = out_rows = given.room * (kWork == Work::kMaskedRows ? count : 1);
      b_rows = count * given.n, depth = given.k;
    }
  }
  std::vector<int> begins, numbers;
  int a_rows, b_rows, out_rows, depth;
};

// With zeros behind each group's own values of K.
template <Work kWork>
void fill_up(const Groups& given, const Layout<kWork>& layout, test::Codes& codes, int rows) {
  for (std::size_t group = 0; group < given.sizes.size(); ++group) {
    const int end = layout.begins[group] + given.sizes[group];
    for (int row = 0; row < rows; ++row) {
      for (int k = end; k < config::round_up(end, 128); ++k) codes.code(row, k) = 0;
    }
  }
}

class HopperGroupedGemmTest : public test::HopperGemm {
 protected:
  template <Sm90GemmConfig kConfig>
  void expect_groups(const Groups& given) {
    constexpr GemmForm kForm = kConfig.form;
    constexpr Work kWork = kConfig.work;
    constexpr bool kOfDepth = kWork == Work::kGroupedDepth;
    const Layout<kWork> layout(given);
    const int n = given.n;
    const test::GemmProblem problem{.k = layout.depth, .padding = 0};
    test::Random random;
    test::Codes a(kForm.a, layout.a_rows, problem, false, false, random);
    test::Codes b(kForm.b, layout.b_rows, problem, false, false, random);
    if (kOfDepth) {
      fill_up(given, layout, a, given.m);
      fill_up(given, layout, b, n);
    }
    test::Numbers out(kForm.out, layout.out_rows, n, 8);
    core::Product product{
        .a = a.view(),
        .b = b.view(),
        .out = out.view(),
        .groups = {
            .work = kWork, .count = std::ssize(given.sizes), .numbers = layout.numbers.data()}};
    if (!kOfDepth) product.groups.scale_stride = kForm.b.scales == kBlock128x128 ? n / 128 : n;
    run<kConfig>(product, 2);

    test::Judge judge(kForm.out);
    std::vector<bool> written(as_size(layout.out_rows), false);
    for (std::size_t group = 0; group < given.sizes.size(); ++group) {
      const int begin = layout.begins[group], size = given.sizes[group];
      const int own = static_cast<int>(group);
      for (int row = 0; row < (kOfDepth ? given.m : size); ++row) {
        const int a_row = kOfDepth ? row : begin + row,
                  out_row = kOfDepth ? own * given.m + row : a_row;
        written[as_size(out_row)] = true;
        for (int column = 0; column < n; ++column) {
          double sum = 0, terms = 0;
          for (int i = kOfDepth ? begin : 0; i < (kOfDepth ? begin + size : given.k); ++i) {
            const double term =
                a.value(a_row, i) * b.value(kOfDepth ? column : own * n + column, i);
            sum += term, terms += std::abs(term);
          }
          judge.see(out.value(out_row, column), sum, terms);
        }
      }
    }
    EXPECT_EQ(judge.verdict(), "");
    for (int row = 0; row < layout.out_rows; ++row) {
      for (int column = written[as_size(row)] ? n : 0; column < n + 8; ++column) {
        EXPECT_TRUE(std::isnan(out.value(row, column))) << row << ", " << column;
      }
    }
  }
};

TEST_F(HopperGroupedGemmTest, RowsOneAfterAnother) {
  expect_groups<{.work = Work::kGroupedRows, .stages = 2}>(
      {.sizes = {70, 0, 1, 150, 3}, .room = 240, .n = 128, .k = 272});
}

TEST_F(HopperGroupedGemmTest, MaskedRowsSwapped) {
  expect_groups<{.form = {.b = {kE4M3, kBlock1x128}},
                 .work = Work::kMaskedRows,
                 .swapped = true,
                 .tile_rows = 64,
                 .tile_columns = 16,
                 .consumer_warpgroups = 1,
                 .stages = 3}>({.sizes = {5, 0, 20}, .room = 24, .n = 72, .k = 144});
}

TEST_F(HopperGroupedGemmTest, OfTheDepth) {
  expect_groups<{.form = {.b = {kE5M2, kBlock1x128}, .out = kFloat32},
                 .work = Work::kGroupedDepth,
                 .tile_columns = 64}>({.sizes = {100, 0, 300, 128}, .m = 136, .n = 40});
}

}  // namespace
}  // namespace octofold
