// Two-level scales on the CPU: casts against those of the quotients, products and values against
// double loops, and what is refused.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "support/error_of.h"
#include "support/judge.h"
#include "support/random.h"
#include "support/targets.h"

namespace octofold {
namespace {

using test::error_of;
using testing::HasSubstr;

constexpr auto kSquares = Granularity::kBlock128x128;

class TwoLevelTest : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 130, kCols = 300;

  TwoLevelTest() : data_(kRows * kCols) {
    std::normal_distribution<float> normal;
    for (float& value : data_) value = normal(random_);
  }

  TensorView x() const { return matrix(data_.data(), DType::kFloat32, kRows, kCols); }

  // Two of them count as 1.
  std::vector<float> factors(std::int64_t channels) {
    std::vector<float> factors(static_cast<std::size_t>(channels));
    std::normal_distribution<float> normal;
    for (float& factor : factors) factor = std::exp(2 * normal(random_));
    factors.front() = 0;
    factors.back() = std::nanf("");
    return factors;
  }

  static CastTarget with_factors(ScaledMatrix& matrix, const std::vector<float>& factors) {
    CastTarget view = matrix.target();
    view.channel_scale =
        vector(factors.data(), DType::kFloat32, static_cast<std::int64_t>(factors.size()));
    return view;
  }

  // x with each row, or column, multiplied by the reciprocal of what its factor counts as.
  std::vector<float> quotients(const std::vector<float>& factors, bool of_columns) const {
    std::vector<float> values = data_;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const float held = factors[static_cast<std::size_t>(of_columns ? i % kCols : i / kCols)];
      values[static_cast<std::size_t>(i)] *= 1.0f / (held > 0 ? held : 1.0f);
    }
    return values;
  }

  static void expect_same(const ScaledMatrix& actual, const ScaledMatrix& expected) {
    EXPECT_THAT(actual.codes(), testing::ElementsAreArray(expected.codes()));
    EXPECT_THAT(actual.scales(), testing::ElementsAreArray(expected.scales()));
  }

  std::vector<float> data_;
  test::Random random_;
};

TEST_F(TwoLevelTest, CastsAreThoseOfTheQuotients) {
  const std::vector<float> of_rows = factors(kRows), of_columns = factors(kCols);
  const std::vector<float> by_rows = quotients(of_rows, false);
  const std::vector<float> by_columns = quotients(of_columns, true);
  for (const Rule rule : {Rule::kVllm, Rule::kTorchAo}) {
    const Format options{.rule = rule};
    ScaledMatrix rows(kRows, kCols, {.granularity = kSquares}),
        columns(kCols, kRows, {.granularity = kSquares});
    cast(matrix(by_rows.data(), DType::kFloat32, kRows, kCols),
         test::by(options, {.rows = rows.target()}));
    cast(matrix(by_columns.data(), DType::kFloat32, kRows, kCols),
         test::by(options, {.transposed = columns.target()}));

    ScaledMatrix both_rows(kRows, kCols, {.granularity = kSquares}),
        both_columns(kCols, kRows, {.granularity = kSquares});
    cast(x(), test::by(options, {.rows = with_factors(both_rows, of_rows),
                                 .transposed = with_factors(both_columns, of_columns)}));
    expect_same(both_rows, rows);
    expect_same(both_columns, columns);

    ScaledMatrix lines(kRows, kCols, {.granularity = Granularity::kBlock1x128}),
        beside(kCols, kRows, {.granularity = kSquares});
    cast(x(), test::by(options,
                       {.rows = lines.target(), .transposed = with_factors(beside, of_columns)}));
    expect_same(beside, columns);
    ScaledMatrix lines_alone(kRows, kCols, {.granularity = Granularity::kBlock1x128});
    cast(x(), test::by(options, {.rows = lines_alone.target()}));
    expect_same(lines, lines_alone);
  }
}

TEST_F(TwoLevelTest, ValuesAreProductsOfAllThree) {
  const std::vector<float> of_rows = factors(kRows);
  ScaledMatrix codes(kRows, kCols, {.granularity = kSquares});
  const CastTarget view = with_factors(codes, of_rows);
  cast(x(), {.rows = view});
  std::vector<float> values(data_.size()), inner(data_.size());
  const auto out = [&](std::vector<float>& floats) {
    return matrix(floats.data(), DType::kFloat32, kRows, kCols);
  };
  dequantize(view, out(values));
  dequantize(codes.view(), out(inner));
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const float held = of_rows[static_cast<std::size_t>(i / kCols)];
    const auto index = static_cast<std::size_t>(i);
    ASSERT_EQ(values[index], inner[index] * (held > 0 ? held : 1.0f)) << i;
  }
}

TEST_F(TwoLevelTest, ProductsMatchFp64) {
  constexpr std::int64_t kM = 37;
  const std::vector<float> of_rows = factors(kRows);
  ScaledMatrix a(kM, kCols, {.granularity = Granularity::kBlock1x128}),
      b(kRows, kCols, {.granularity = kSquares});
  cast(matrix(data_.data(), DType::kFloat32, kM, kCols), {.rows = a.target()});
  const CastTarget two_level = with_factors(b, of_rows);
  cast(x(), {.rows = two_level});
  std::vector<float> left(kM * kCols), right(kRows * kCols);
  dequantize(a.view(), matrix(left.data(), DType::kFloat32, kM, kCols));
  dequantize(b.view(), matrix(right.data(), DType::kFloat32, kRows, kCols));

  std::vector<float> d(kM * kRows), bias(kRows);
  std::normal_distribution<float> normal;
  for (float& value : d) value = 100 * normal(random_);
  for (float& value : bias) value = 100 * normal(random_);
  const std::vector<float> c = d;
  const MutableTensorView out = matrix(d.data(), DType::kFloat32, kM, kRows);
  gemm({.a = a.view(),
        .b = two_level,
        .out = out,
        .c = out,
        .bias = vector<const float>(bias.data(), DType::kFloat32, kRows)});
  test::Judge judge(DType::kFloat32);
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kRows; ++j) {
      const double held = of_rows[static_cast<std::size_t>(j)];
      const double factor = held > 0 ? held : 1;
      const auto index = static_cast<std::size_t>(i * kRows + j);
      double sum = c[index] + static_cast<double>(bias[static_cast<std::size_t>(j)]);
      double terms = std::abs(c[index]) + std::abs(bias[static_cast<std::size_t>(j)]);
      for (std::int64_t k = 0; k < kCols; ++k) {
        const double term = factor * left[static_cast<std::size_t>(i * kCols + k)] *
                            right[static_cast<std::size_t>(j * kCols + k)];
        sum += term;
        terms += std::abs(term);
      }
      judge.see(d[index], sum, terms);
    }
  }
  EXPECT_EQ(judge.verdict(), "");
}

TEST_F(TwoLevelTest, NamesWhatIsWrong) {
  const std::vector<float> of_rows(kRows, 1.0f), of_columns(kCols, 1.0f);
  ScaledMatrix lines(kRows, kCols, {.granularity = Granularity::kBlock1x128}),
      squares(kRows, kCols, {.granularity = kSquares});
  ScaledMatrix columns(kCols, kRows, {.granularity = kSquares});
  const auto cast_error = [&](const CastTargets& out) { return error_of([&] { cast(x(), out); }); };
  EXPECT_THAT(cast_error({.rows = with_factors(lines, of_rows)}),
              HasSubstr("'out.rows.channel_scale': expected none, except beside 128x128 scales, "
                        "got one beside 1x128 scales"));
  EXPECT_THAT(cast_error({.rows = with_factors(squares, of_columns)}),
              HasSubstr("'out.rows.channel_scale': expected shape [130], got [300]"));
  CastTarget view = with_factors(squares, of_rows);
  view.channel_scale->dtype = DType::kFloat16;
  EXPECT_THAT(cast_error({.rows = view}),
              HasSubstr("'out.rows.channel_scale': expected dtype float32"));
  view = with_factors(squares, of_rows);
  view.channel_scale->strides[0] = 2;
  EXPECT_THAT(cast_error({.rows = view}),
              HasSubstr("'out.rows.channel_scale': expected a contiguous vector"));
  view = with_factors(squares, of_rows);
  view.channel_scale->device = {DeviceType::kCuda, 0};
  EXPECT_THAT(cast_error({.rows = view}),
              HasSubstr("'out.rows.channel_scale': expected a tensor on"));
  view = with_factors(squares, of_rows);
  view.channel_scale->data = view.data.data;
  EXPECT_THAT(cast_error({.rows = view}), HasSubstr("apart from 'out.rows.channel_scale'"));
  EXPECT_THAT(cast_error(test::given({.rows = with_factors(squares, of_rows)})),
              HasSubstr("'out.rows.channel_scale': expected none beside given scales, because"));
  EXPECT_THAT(
      cast_error(test::given({.rows = lines.target(), .transposed = columns.target()})),
      HasSubstr(
          "granularity 1x128, as 'out.rows', or channel (squares are computed with the codes)"));
  EXPECT_THAT(
      cast_error({.rows = squares.target(), .transposed = with_factors(columns, of_columns)}),
      HasSubstr("'out.rows.channel_scale': expected one, as 'out.transposed' has, got none"));

  std::vector<float> d(kRows * kRows);
  GemmArguments product{.a = with_factors(squares, of_rows),
                        .b = lines.view(),
                        .out = matrix(d.data(), DType::kFloat32, kRows, kRows)};
  EXPECT_THAT(error_of([&] { gemm(product); }, ErrorCode::kUnsupported),
              HasSubstr("gemm: argument 'a.channel_scale': expected none"));
  product.b = with_factors(squares, of_rows);
  product.a = lines.view();
  product.b.channel_scale->data = d.data();
  EXPECT_THAT(error_of([&] { gemm(product); }),
              HasSubstr("'out': expected memory of its own, apart from 'b.channel_scale'"));
  GemmProblem form{.m = 1, .n = 1, .k = 1};
  form.form.b_channel_scale = true;
  EXPECT_FALSE(product_candidates({.product = form}).empty());
  form.form.b.scales = Granularity::kChannel;
  EXPECT_THAT(error_of([&] { product_candidates({.product = form}); }),
              HasSubstr("'b_channel_scale': expected false"));
}

TEST_F(TwoLevelTest, SlicesOfRowsHaveTheirFactors) {
  const std::vector<float> of_columns = factors(kCols);
  ScaledMatrix codes(kCols, kRows, {.granularity = kSquares});
  const CastTarget slice = row_slice(with_factors(codes, of_columns), 128, kCols);
  ASSERT_TRUE(slice.channel_scale.has_value());
  EXPECT_EQ(slice.channel_scale->shape[0], kCols - 128);
  EXPECT_EQ(slice.channel_scale->data, of_columns.data() + 128);
}

}  // namespace
}  // namespace octofold
