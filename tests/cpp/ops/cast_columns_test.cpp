// Sums and largest magnitudes of columns, from every cast that gives them, against loops in double.
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;
using test::Matrix;

// Wider than what the backend takes at a time.
constexpr std::int64_t kRows = 130, kCols = 600;

class CastColumnsTest : public testing::Test {
 protected:
  Matrix values(DType dtype, std::int64_t rows = kRows, std::int64_t cols = kCols,
                std::int64_t padding = 0) {
    std::normal_distribution<float> normal(0.5f, 1.0f);
    Matrix wide(DType::kFloat32, rows, cols), result(dtype, rows, cols, padding);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) wide.float_at(row, col) = normal(random_);
    }
    convert_dtype(wide.view(), result.view());
    return result;
  }

  ColumnTargets columns(std::int64_t rows, bool sums = true, bool amax = true) {
    workspace_.resize(as_size(column_workspace_rows(rows, sums, amax) * kCols));
    ColumnTargets targets{.workspace = matrix(workspace_.data(), DType::kFloat32,
                                              column_workspace_rows(rows, sums, amax), kCols)};
    if (sums) targets.sums = vector(sums_.data(), DType::kFloat32, kCols);
    if (amax) targets.amax = vector(amax_.data(), DType::kFloat32, kCols);
    return targets;
  }

  void expect_columns_of(const Matrix& x) const {
    for (std::int64_t col = 0; col < kCols; ++col) {
      double sum = 0, amax = 0;
      for (std::int64_t row = 0; row < x.rows(); ++row) {
        sum += x.at(row, col);
        amax = std::max(amax, std::abs(x.at(row, col)));
      }
      ASSERT_EQ(sums_[as_size(col)], static_cast<float>(sum)) << col;
      ASSERT_EQ(amax_[as_size(col)], static_cast<float>(amax)) << col;
    }
  }

  test::Random random_;
  std::vector<float> sums_ = std::vector<float>(kCols), amax_ = sums_, workspace_;
};

TEST_F(CastColumnsTest, AreTheSumsAndMagnitudesOfX) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const std::int64_t rows : {std::int64_t{1}, kRows}) {
      const Matrix x = values(dtype, rows, kCols, 8);
      ScaledMatrix out(rows, kCols);
      cast(x.view(), {.rows = out.target(), .columns = columns(rows)});
      expect_columns_of(x);
      ScaledMatrix transposed(kCols, rows, {.granularity = Granularity::kTensor});
      std::ranges::fill(sums_, -1.0f);
      std::ranges::fill(amax_, -1.0f);
      cast(x.view(), {.transposed = transposed.target(), .columns = columns(rows)});
      expect_columns_of(x);
    }
  }
}

TEST_F(CastColumnsTest, ChangeNothingInTheCasts) {
  const Matrix x = values(DType::kBFloat16);
  ScaledMatrix alone(kRows, kCols, {.granularity = Granularity::kChannel}),
      beside(kRows, kCols, {.granularity = Granularity::kChannel});
  cast(x.view(), {.rows = alone.target()});
  cast(x.view(), {.rows = beside.target(), .columns = columns(kRows, true, false)});
  EXPECT_THAT(beside.codes(), testing::ElementsAreArray(alone.codes()));
  EXPECT_THAT(beside.scales(), testing::ElementsAreArray(alone.scales()));
}

TEST_F(CastColumnsTest, SpecialValuesStayInTheirColumns) {
  Matrix x = values(DType::kFloat32);
  const float inf = std::numeric_limits<float>::infinity();
  x.float_at(3, 10) = inf;
  x.float_at(5, 11) = std::nanf("");
  x.float_at(6, 12) = inf;
  x.float_at(7, 12) = -inf;
  for (std::int64_t row = 0; row < kRows; ++row) x.float_at(row, 13) = -0.0f;
  ScaledMatrix out(kRows, kCols);
  cast(x.view(), {.rows = out.target(), .columns = columns(kRows)});
  EXPECT_EQ(sums_[10], inf);
  EXPECT_EQ(amax_[10], inf);
  EXPECT_TRUE(std::isnan(sums_[11]));
  EXPECT_TRUE(std::isnan(amax_[11]));
  EXPECT_TRUE(std::isnan(sums_[12]));
  EXPECT_EQ(amax_[12], inf);
  EXPECT_FALSE(std::signbit(sums_[13]));
  EXPECT_TRUE(std::isfinite(sums_[9]) && std::isfinite(sums_[14]));
}

TEST_F(CastColumnsTest, OfNoRowsAreZero) {
  std::ranges::fill(sums_, -1.0f);
  std::ranges::fill(amax_, -1.0f);
  const Matrix x(DType::kFloat32, 0, kCols);
  ScaledMatrix out(0, kCols);
  cast(x.view(), {.rows = out.target(), .columns = columns(0)});
  EXPECT_THAT(sums_, testing::Each(0.0f));
  EXPECT_THAT(amax_, testing::Each(0.0f));
}

// Of what is worked out, in the type that it is cast from: a cast by a scale of 1 has it, but for
// the rounding to FP8, so the sums are compared with those of a plain cast.
TEST_F(CastColumnsTest, OfGradientsAndNorms) {
  const Matrix x = values(DType::kBFloat16), gradient = values(DType::kBFloat16, kRows, kCols / 2);
  ScaledMatrix out(kRows, kCols);
  cast(ActivationGradient{.gradient = gradient.view(),
                          .x = x.view(),
                          .activation = Activation::kSwiGlu,
                          .layout = GateLayout::kHalves},
       {.rows = out.target(), .columns = columns(kRows)});
  for (const std::int64_t col : {0, 299, 300, 599}) {
    const std::int64_t column = col % 300;
    double sum = 0;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const double gate = x.at(row, column), up = x.at(row, column + 300);
      const double sigmoid = 1 / (1 + std::exp(-gate));
      const double slope = sigmoid * (1 + gate * (1 - sigmoid));
      sum += gradient.at(row, column) * (col < 300 ? slope * up : gate * sigmoid);
    }
    // Each of the 130 values is rounded to BF16.
    EXPECT_NEAR(sums_[as_size(col)], sum, 0.3);
    EXPECT_GT(amax_[as_size(col)], 0);
  }

  std::vector<float> rstd(kRows), ones(kRows, 1.0f);
  const Normed norm{.x = x.view(), .rstd = vector(rstd.data(), DType::kFloat32, kRows)};
  cast(norm, {.rows = out.target(), .columns = columns(kRows)});
  double sum = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    sum += x.at(row, 7) * static_cast<double>(rstd[as_size(row)]);
  }
  EXPECT_NEAR(sums_[7], sum, 0.3);
}

TEST_F(CastColumnsTest, ErrorsNameTheArgument) {
  const Matrix x = values(DType::kFloat32);
  ScaledMatrix out(kRows, kCols);
  const auto error = [&](auto&& spoil) {
    CastTargets targets{.rows = out.target(), .columns = columns(kRows)};
    spoil(targets);
    return error_of([&] { cast(x.view(), targets); });
  };
  EXPECT_EQ(error([](auto&) {}), "no error");
  std::vector<float> both(600, 1.0f);
  const test::Refusals<CastTargets> refusals{
      {[](auto& t) { t.rows.reset(); }, "'out': expected rows"},
      {[](auto& t) { --t.columns.sums->shape[0]; }, "'out.columns.sums': expected shape [600]"},
      {[](auto& t) { t.columns.amax->dtype = DType::kBFloat16; },
       "'out.columns.amax': expected dtype float32"},
      {[](auto& t) { t.columns.amax->data = t.columns.sums->data; },
       "'out.columns.amax': expected memory of its own, apart from 'out.columns.sums'"},
      {[](auto& t) { t.columns.sums->data = t.rows->data.data; }, "apart from 'out.rows'"},
      {[&](auto& t) {
         t.rows->format.granularity = Granularity::kBlock128x128, t.rows->scale.shape = {2, 5};
         t.columns.sums->data = both.data();
         t.rows->channel_scale = vector(both.data(), DType::kFloat32, t.rows->data.shape[0]);
       },
       "'out.columns.sums': expected memory of its own, apart from 'out.rows.channel_scale'"},
      {[](auto& t) { t.columns.workspace.reset(); },
       "'out.columns.workspace': expected one, because sums or amax of columns"},
      {[](auto& t) { t.columns.amax.reset(); }, "'out.columns.workspace': expected shape [2, 600]"},
      {[](auto& t) { t.columns.amax.reset(), t.columns.sums.reset(); },
       "expected none without sums and amax"},
      {[](auto& t) { t.columns.workspace->strides[0] = 700, t.columns.workspace->shape[0] = 4; },
       "'out.columns.workspace': expected contiguous rows"}};
  for (const auto& [spoil, says] : refusals) EXPECT_THAT(error(spoil), HasSubstr(says));
}

}  // namespace
}  // namespace octofold
