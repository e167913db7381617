// Products of groups on the CPU: each kind is gemm() of each of its groups, to the bit. Python's
// tests have more of them, and all errors of arguments.
#include "octofold/grouped_gemm.h"

#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/operand.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

constexpr std::int64_t kGroups = 3, kRows = 40, kN = 128, kK = 200;
constexpr std::int32_t kOffsets[] = {0, 17, 17, 40}, kCounts[] = {40, 0, 11};

class GroupedGemmTest : public testing::Test {
 protected:
  ScaledTensorView b() { return in_groups(b_.target(), kGroups); }
  static ScaledTensorView in_groups(ScaledTensorView view, std::int64_t groups) {
    const std::int64_t rows = view.data.shape[0] / groups, columns = view.data.shape[1];
    view.data.rank = 3;
    view.data.shape = {groups, rows, columns};
    view.data.strides = {rows * columns, columns, 1};
    return view;
  }
  static MutableTensorView in_groups(MutableTensorView view, std::int64_t groups) {
    const std::int64_t rows = view.shape[0] / groups, columns = view.shape[1];
    view.rank = 3;
    view.shape = {groups, rows, columns};
    view.strides = {rows * columns, columns, 1};
    return view;
  }
  // Rows from `begin` on, by the matrix of their group.
  void expect_rows(const Matrix& out, ScaledTensorView a, std::int64_t group, std::int64_t begin,
                   std::int64_t end) {
    Matrix expected(DType::kFloat32, end - begin, kN);
    gemm({.a = row_slice(a, begin, end),
          .b = row_slice(ScaledTensorView(b_.target()), group * kN, (group + 1) * kN),
          .out = expected.view()});
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < kN; ++col) {
        ASSERT_EQ(out.at(row, col), expected.at(row - begin, col)) << row << "," << col;
      }
    }
  }

  test::Random random_;
  test::Operand b_{random_, DType::kE4M3, Granularity::kBlock128x128, kGroups * kN, kK, 0, false};
};

TEST_F(GroupedGemmTest, RowsOfGroups) {
  test::Operand a(random_, DType::kE4M3, Granularity::kBlock1x128, kRows, kK, 0, false);
  Matrix out(DType::kFloat32, kRows, kN);
  grouped_gemm({.a = a.target(),
                .b = b(),
                .groups = RowGroups{vector<const void>(kOffsets, DType::kInt32, kGroups + 1)},
                .out = out.view()});
  for (std::int64_t g = 0; g < kGroups; ++g) {
    if (kOffsets[g] == kOffsets[g + 1]) continue;
    expect_rows(out, a.target(), g, kOffsets[g], kOffsets[g + 1]);
  }
}

TEST_F(GroupedGemmTest, MaskedRows) {
  test::Operand a(random_, DType::kE4M3, Granularity::kBlock1x128, kGroups * kRows, kK, 0, false);
  Matrix out(DType::kFloat32, kGroups * kRows, kN);
  GroupedGemmArguments arguments{
      .a = in_groups(ScaledTensorView(a.target()), kGroups),
      .b = b(),
      .groups = MaskedGroups{vector<const void>(kCounts, DType::kInt32, kGroups)},
      .out = in_groups(out.view(), kGroups)};
  grouped_gemm(arguments);
  for (std::int64_t g = 0; g < kGroups; ++g) {
    if (kCounts[g] == 0) continue;
    expect_rows(out, a.target(), g, g * kRows, g * kRows + kCounts[g]);
  }
  arguments.c = arguments.out;
  EXPECT_THAT(test::error_of([&] { grouped_gemm(arguments); }),
              HasSubstr("grouped_gemm: argument 'c': expected none beside MaskedGroups"));
  arguments.c.reset();
  arguments.groups = MaskedGroups{vector<const void>(kCounts, DType::kInt32, kGroups), 41};
  EXPECT_THAT(test::error_of([&] { grouped_gemm(arguments); }),
              HasSubstr("argument 'groups.expected_rows': expected from 0 to 40, got 41"));
}

TEST_F(GroupedGemmTest, DepthHasNoBias) {
  const std::int32_t offsets[] = {0, 100};
  test::Operand a(random_, DType::kE4M3, Granularity::kBlock1x128, 16, 128, 0, false);
  test::Operand w(random_, DType::kE4M3, Granularity::kBlock1x128, 24, 128, 0, false);
  Matrix out(DType::kFloat32, 16, 24), expected(DType::kFloat32, 16, 24);
  const std::vector<float> bias(24);
  GroupedGemmArguments arguments{
      .a = a.target(),
      .b = w.target(),
      .groups = DepthGroups{vector<const void>(offsets, DType::kInt32, 2)},
      .out = in_groups(out.view(), 1)};
  grouped_gemm(arguments);
  ScaledTensorView first = a.target(), second = w.target();
  first.data.shape[1] = second.data.shape[1] = 100;
  gemm({.a = first, .b = second, .out = expected.view()});
  EXPECT_EQ(out.at(15, 23), expected.at(15, 23));
  arguments.bias = vector<const void>(bias.data(), DType::kFloat32, 24);
  EXPECT_THAT(test::error_of([&] { grouped_gemm(arguments); }),
              HasSubstr("grouped_gemm: argument 'bias': expected none beside DepthGroups"));
}

}  // namespace
}  // namespace octofold
