// Casts whose units' largest magnitudes are given, through the public API: parts have the bytes of
// the whole, and what is refused.
#include "octofold/octofold.h"

#include "kernels/shared/cast_rule.h"
#include "support/both_casts.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Both;
using enum Granularity;

constexpr std::int64_t kRows = 130, kCols = 300;

class GivenAmaxTest : public testing::Test {
 protected:
  GivenAmaxTest() : data_(kRows * kCols), of_rows_(kRows), of_columns_(kCols) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const float value = std::ldexp(normal(random_), static_cast<int>(i % 11));
      data_[as_size(i)] = value;
      for (float* amax :
           {&of_rows_[as_size(i / kCols)], &of_columns_[as_size(i % kCols)], &of_all_}) {
        *amax = std::max(*amax, std::abs(value));
      }
    }
  }

  TensorView x() const { return matrix<const void>(data_.data(), DType::kFloat32, kRows, kCols); }
  // Rows from 30 on.
  TensorView part() const {
    return matrix<const void>(data_.data() + kFirst * kCols, DType::kFloat32, kRows - kFirst,
                              kCols);
  }

  TensorView amax_of(Granularity granularity, const std::vector<float>& lines) const {
    if (granularity == kTensor) return vector(&of_all_, DType::kFloat32, 1);
    return vector(lines.data(), DType::kFloat32, std::ssize(lines));
  }

  static constexpr std::int64_t kFirst = 30;
  test::Random random_;
  std::vector<float> data_, of_rows_, of_columns_;
  float of_all_ = 0;
};

// Rows of a part are rows of the whole; its transpose is of columns of the whole's.
TEST_F(GivenAmaxTest, PartsHaveTheBytesOfTheWhole) {
  const std::vector<float> rows_of_part(of_rows_.begin() + kFirst, of_rows_.end());
  for (const config::CastRuleRow& row : config::kCastRules) {
    for (const Granularity granularity : {kTensor, kChannel}) {
      const Format format{.granularity = granularity, .rule = row.rule};
      Both whole(kRows, kCols, format), some(kRows - kFirst, kCols, format);
      cast(x(), test::by(format, whole.targets()));
      CastTargets targets = test::by(format, some.targets());
      targets.rows->amax = amax_of(granularity, rows_of_part);
      targets.transposed->amax = amax_of(granularity, of_columns_);
      cast(part(), targets);
      const auto codes = whole.rows.codes().subspan(kFirst * kCols);
      EXPECT_THAT(some.rows.codes(), testing::ElementsAreArray(codes));
      for (std::int64_t col = 0; col < kCols; ++col) {
        const auto column = whole.columns.codes().subspan(as_size(col * kRows + kFirst), 100);
        EXPECT_THAT(some.columns.codes().subspan(as_size(col * 100), 100),
                    testing::ElementsAreArray(column));
      }
      EXPECT_THAT(some.columns.scales(), testing::ElementsAreArray(whole.columns.scales()));
    }
  }
}

TEST_F(GivenAmaxTest, RowSlicesTakeTheirs) {
  const Format format{.granularity = kChannel};
  ScaledMatrix whole(kRows, kCols, format), sliced(kRows, kCols, format);
  CastTarget target = whole.target();
  target.amax = amax_of(kChannel, of_rows_);
  cast(x(), {.rows = target});
  target = sliced.target();
  target.amax = amax_of(kChannel, of_rows_);
  cast(part(), {.rows = row_slice(target, kFirst, kRows)});
  const auto rest = [](const ScaledMatrix& matrix) {
    return matrix.codes().subspan(kFirst * kCols);
  };
  EXPECT_THAT(rest(sliced), testing::ElementsAreArray(rest(whole)));
}

TEST_F(GivenAmaxTest, WhatDoesNotGoTogether) {
  const Format format{.granularity = kChannel};
  Both out(kRows, kCols, format);
  ScaledMatrix blocks(kRows, kCols, {.granularity = kBlock1x128});
  std::vector<float> factors(kRows, 1.0f);
  const auto error = [&](const std::function<void(CastTargets&)>& spoil) {
    CastTargets targets = out.targets();
    targets.rows->amax = amax_of(kChannel, of_rows_);
    targets.transposed->amax = amax_of(kChannel, of_columns_);
    spoil(targets);
    return test::error_of([&] { cast(x(), targets); });
  };
  test::refusing<CastTargets>(error)({
      {[](auto& t) { t = test::given(t); },
       "'out.rows.amax': expected none beside given scales, which are taken as they are, got one"},
      {[](auto& t) { t.rows->amax.reset(); },
       "'out.rows.amax': expected one, as 'out.transposed' has, got none"},
      {[](auto& t) { t.transposed->amax.reset(); },
       "'out.transposed.amax': expected one, as 'out.rows' has"},
      {[&](auto& t) {
         t.rows = blocks.target();
         t.rows->amax = amax_of(kChannel, of_rows_);
       },
       "'out.rows.amax': expected none, except for units as long as the matrix: tensor, channel, "
       "got one beside 1x128 scales"},
      {[&](auto& t) { t.rows->channel_scale = vector(factors.data(), DType::kFloat32, kRows); },
       "'out.rows.amax': expected none, except for units as long"},
      {[&](auto& t) { t.rows->amax = amax_of(kChannel, of_columns_); },
       "'out.rows.amax': expected shape [130] for granularity channel"},
      {[](auto& t) { t.rows->amax->dtype = DType::kFloat16; }, "'out.rows.amax': expected dtype"},
      {[](auto& t) { t.rows->amax->device = {DeviceType::kCuda, 0}; }, "'out.rows.amax'"},
      {[](auto& t) { t.rows->amax->data = nullptr; }, "'out.rows.amax': expected data"},
      {[](auto& t) { t.rows->amax->data = t.rows->scale.data; },
       "'out.rows.scale': expected memory of its own, apart from 'out.rows.amax'"},
      {[](auto& t) { t.rows->amax->data = t.transposed->data.data; },
       "'out.transposed': expected memory of its own, apart from 'out.rows.amax'"},
  });
  // Beside rows that find their own.
  CastTargets mixed{.rows = blocks.target(), .transposed = out.columns.target()};
  mixed.transposed->amax = amax_of(kChannel, of_columns_);
  EXPECT_EQ(test::error_of([&] { cast(x(), mixed); }), "no error");
}

}  // namespace
}  // namespace octofold
