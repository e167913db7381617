// Products of groups of 16-bit rows and FP8 weights on the CPU: those of gemm_weight_only() of each
// group, to the bit. Python's tests have more of them, and more errors of arguments.
#include "octofold/grouped_gemm_weight_only.h"

#include <algorithm>
#include <cstring>

#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/operand.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

constexpr std::int64_t kGroups = 3, kRows = 40, kN = 128, kK = 200;
constexpr std::int32_t kOffsets[] = {0, 17, 17, 40}, kCounts[] = {11, 0, 13};

template <typename View>
View in_groups(View view) {
  const std::int64_t rows = view.shape[0] / kGroups, columns = view.shape[1];
  view.rank = 3;
  view.shape = {kGroups, rows, columns};
  view.strides = {rows * columns, columns, 1};
  return view;
}

class GroupedGemmWeightOnlyTest : public testing::Test {
 protected:
  ScaledTensorView w() {
    ScaledTensorView view = w_.target();
    view.data = in_groups(view.data);
    return view;
  }
  static RowGroups rows() { return {vector<const void>(kOffsets, DType::kInt32, kGroups + 1)}; }
  static MaskedGroups masked() { return {vector<const void>(kCounts, DType::kInt32, kGroups), 4}; }

  // Rows from `begin` on, by the matrix of their group.
  void expect_rows(const Matrix& out, TensorView x, std::int64_t group, std::int64_t begin,
                   std::int64_t end, bool gradient = false) {
    Matrix expected(DType::kFloat32, end - begin, out.cols());
    x.data = static_cast<const std::uint16_t*>(x.data) + begin * x.strides[0];
    x.shape[0] = end - begin;
    const ScaledTensorView own =
        row_slice(ScaledTensorView(w_.target()), group * kN, (group + 1) * kN);
    if (gradient) {
      gemm_weight_only_gradient({.gradient = x, .w = own, .out = expected.view()});
    } else {
      gemm_weight_only({.x = {x}, .w = own, .out = expected.view()});
    }
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < out.cols(); ++col) {
        ASSERT_EQ(out.at(row, col), expected.at(row - begin, col)) << row << "," << col;
      }
    }
  }

  test::Random random_;
  test::Operand w_{random_, DType::kE4M3, Granularity::kBlock128x128, kGroups * kN, kK, 0, false};
};

TEST_F(GroupedGemmWeightOnlyTest, RowsOfGroups) {
  Matrix x = test::random_addend(random_, DType::kBFloat16, kRows, kK, 0);
  Matrix out(DType::kFloat32, kRows, kN);
  grouped_gemm_weight_only({.x = x.view(), .w = w(), .groups = rows(), .out = out.view()});
  expect_rows(out, x.view(), 0, 0, 17);
  expect_rows(out, x.view(), 2, 17, 40);

  Matrix gradient = test::random_addend(random_, DType::kFloat16, kRows, kN, 0);
  Matrix back(DType::kFloat32, kRows, kK);
  grouped_gemm_weight_only_gradient(
      {.gradient = gradient.view(), .w = w(), .groups = rows(), .out = back.view()});
  expect_rows(back, gradient.view(), 0, 0, 17, true);
  expect_rows(back, gradient.view(), 2, 17, 40, true);
}

TEST_F(GroupedGemmWeightOnlyTest, MaskedRows) {
  constexpr std::int64_t kEach = 13;
  Matrix x = test::random_addend(random_, DType::kFloat16, kGroups * kEach, kK, 0);
  Matrix out(DType::kFloat32, kGroups * kEach, kN);
  const double before = out.at(11, 0);
  grouped_gemm_weight_only(
      {.x = in_groups(x.view()), .w = w(), .groups = masked(), .out = in_groups(out.view())});
  expect_rows(out, x.view(), 0, 0, 11);
  expect_rows(out, x.view(), 2, 26, 39);
  EXPECT_EQ(std::isnan(out.at(11, 0)) ? 0 : out.at(11, 0), std::isnan(before) ? 0 : before);
}

TEST_F(GroupedGemmWeightOnlyTest, GatheredRows) {
  std::vector<std::int32_t> sources;
  for (std::int32_t row = 0; row < kRows; ++row) sources.push_back(row == 5 ? -1 : row * 11 % 30);
  Matrix tokens = test::random_addend(random_, DType::kBFloat16, 15, kK, 0);
  Matrix copied(DType::kBFloat16, kRows, kK);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int32_t source = std::max(sources[as_size(row)], 0);
    std::memcpy(static_cast<std::uint16_t*>(copied.view().data) + row * kK,
                static_cast<const std::uint16_t*>(tokens.view().data) + source / 2 * kK, 2 * kK);
  }
  Matrix out(DType::kFloat32, kRows, kN), weighted(DType::kFloat32, kRows, kN);
  const double before = out.at(5, 1);
  GatheredRows gathered{.x = tokens.view(),
                        .sources = vector<const void>(sources.data(), DType::kInt32, kRows),
                        .slots = 2};
  GroupedGemmWeightOnlyArguments arguments{
      .x = gathered, .w = w(), .groups = rows(), .out = out.view()};
  grouped_gemm_weight_only(arguments);
  EXPECT_EQ(std::isnan(out.at(5, 1)) ? 0 : out.at(5, 1), std::isnan(before) ? 0 : before);
  expect_rows(out, copied.view(), 0, 0, 5);
  expect_rows(out, copied.view(), 0, 6, 17);
  expect_rows(out, copied.view(), 2, 17, 40);

  const std::vector<float> factors(30, -2);
  gathered.factors = matrix<const void>(factors.data(), DType::kFloat32, 15, 2);
  arguments.x = gathered;
  arguments.out = weighted.view();
  grouped_gemm_weight_only(arguments);
  for (std::int64_t col = 0; col < kN; ++col) {
    EXPECT_EQ(weighted.at(7, col), -2 * out.at(7, col));
  }

  arguments.groups = masked();
  EXPECT_THAT(test::error_of([&] { grouped_gemm_weight_only(arguments); }),
              HasSubstr("argument 'x': expected a tensor beside MaskedGroups, got gathered rows"));
}

TEST_F(GroupedGemmWeightOnlyTest, SaysWhatIsWrong) {
  Matrix x = test::random_addend(random_, DType::kBFloat16, kRows, kK, 0);
  Matrix out(DType::kFloat32, kRows, kN);
  GroupedGemmWeightOnlyArguments arguments{
      .x = x.view(), .w = w(), .groups = rows(), .out = out.view()};
  arguments.candidate = "64x16";
  EXPECT_THAT(test::error_of([&] { grouped_gemm_weight_only(arguments); }),
              HasSubstr("argument 'candidate': expected none for tensors on the CPU"));
  arguments.candidate.clear();
  arguments.w = w_.target();
  EXPECT_THAT(test::error_of([&] { grouped_gemm_weight_only(arguments); }),
              HasSubstr("grouped_gemm_weight_only: argument 'w': expected 3 dimensions, [groups"));
  EXPECT_THAT(test::error_of([&] {
                grouped_gemm_weight_only_gradient(
                    {.gradient = x.view(), .w = w(), .groups = rows(), .out = out.view()});
              }),
              HasSubstr("argument 'gradient': expected N = 128 columns, the rows of 'w', got 200"));
}

}  // namespace
}  // namespace octofold
