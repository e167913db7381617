// Two-level scales on the CPU: casts against those of the quotients, products and values against
// double loops, and what is refused.
#include "octofold/octofold.h"

#include "support/both_casts.h"
#include "support/judge.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;
using test::expect_same;

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
    std::vector<float> factors(as_size(channels));
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
      const float held = factors[as_size(of_columns ? i % kCols : i / kCols)];
      values[as_size(i)] *= 1.0f / (held > 0 ? held : 1.0f);
    }
    return values;
  }

  std::vector<float> data_;
  test::Random random_;
};

TEST_F(TwoLevelTest, CastsAreThoseOfTheQuotients) {
  const std::vector<float> of_rows = factors(kRows), of_columns = factors(kCols);
  const std::vector<float> by_rows = quotients(of_rows, false);
  const std::vector<float> by_columns = quotients(of_columns, true);
  for (const Rule rule : {Rule::kVllm, Rule::kTorchAo}) {
    const Format squares{.granularity = kSquares, .rule = rule}, lines{.rule = rule};
    ScaledMatrix rows(kRows, kCols, squares), columns(kCols, kRows, squares);
    cast(matrix(by_rows.data(), DType::kFloat32, kRows, kCols), {.rows = rows.target()});
    cast(matrix(by_columns.data(), DType::kFloat32, kRows, kCols),
         {.transposed = columns.target()});

    test::Both both(kRows, kCols, squares);
    cast(x(), {.rows = with_factors(both.rows, of_rows),
               .transposed = with_factors(both.columns, of_columns)});
    expect_same(both.rows, rows);
    expect_same(both.columns, columns);

    ScaledMatrix of_lines(kRows, kCols, lines), beside(kCols, kRows, squares);
    cast(x(), {.rows = of_lines.target(), .transposed = with_factors(beside, of_columns)});
    expect_same(beside, columns);
    ScaledMatrix lines_alone(kRows, kCols, lines);
    cast(x(), {.rows = lines_alone.target()});
    expect_same(of_lines, lines_alone);
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
    const float held = of_rows[as_size(i / kCols)];
    const auto index = as_size(i);
    ASSERT_EQ(values[index], inner[index] * (held > 0 ? held : 1.0f)) << i;
  }
}

TEST_F(TwoLevelTest, ProductsMatchFp64) {
  constexpr std::int64_t kM = 37;
  const std::vector<float> of_rows = factors(kRows);
  ScaledMatrix a(kM, kCols), b(kRows, kCols, {.granularity = kSquares});
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
      const double held = of_rows[as_size(j)];
      const double factor = held > 0 ? held : 1;
      const auto index = as_size(i * kRows + j);
      double sum = c[index] + static_cast<double>(bias[as_size(j)]);
      double terms = std::abs(c[index]) + std::abs(bias[as_size(j)]);
      for (std::int64_t k = 0; k < kCols; ++k) {
        const double term = factor * left[as_size(i * kCols + k)] * right[as_size(j * kCols + k)];
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
  ScaledMatrix lines(kRows, kCols), squares(kRows, kCols, {.granularity = kSquares});
  ScaledMatrix columns(kCols, kRows, {.granularity = kSquares});
  const auto cast_error = [&](const CastTargets& out) { return error_of([&] { cast(x(), out); }); };
  EXPECT_THAT(cast_error({.rows = with_factors(lines, of_rows)}),
              HasSubstr("'out.rows.channel_scale': expected none, except beside 128x128 scales, "
                        "got one beside 1x128 scales"));
  EXPECT_THAT(cast_error({.rows = with_factors(squares, of_columns)}),
              HasSubstr("'out.rows.channel_scale': expected shape [130], got [300]"));
  const auto refuses = test::refusing<CastTarget>([&](auto&& spoil) {
    CastTarget view = with_factors(squares, of_rows);
    spoil(view);
    return cast_error({.rows = view});
  });
  refuses({
      {[](auto& v) { v.channel_scale->dtype = DType::kFloat16; },
       "'out.rows.channel_scale': expected dtype float32"},
      {[](auto& v) { v.channel_scale->strides[0] = 2; },
       "'out.rows.channel_scale': expected a contiguous vector"},
      {[](auto& v) { v.channel_scale->device = {DeviceType::kCuda, 0}; },
       "'out.rows.channel_scale': expected a tensor on"},
      {[](auto& v) { v.channel_scale->data = v.data.data; }, "apart from 'out.rows.channel_scale'"},
  });
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
  std::vector<float> values(kRows * kCols);
  const MutableTensorView numbers = matrix(values.data(), DType::kFloat32, kRows, kCols);
  ScaledTensorView two_levels = with_factors(squares, of_rows);
  two_levels.channel_scale->data = values.data();
  EXPECT_THAT(error_of([&] { dequantize(two_levels, numbers); }),
              HasSubstr("'out': expected memory of its own, apart from 'x.channel_scale'"));
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
