// What the CPU backend casts, whatever the shape and the strides of x, and from which scales. Its
// bytes are compared with independent code in tests/python.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "support/error_of.h"
#include "support/granularities.h"
#include "support/random.h"
#include "support/targets.h"

namespace octofold {
namespace {

using testing::HasSubstr;

using test::kGranularities;
constexpr std::array kRules{Rule::kDeepGemm, Rule::kVllm,     Rule::kTransformerEngine,
                            Rule::kTorchAo,  Rule::kDeepSeek, Rule::kCompressedTensors};

class CastsTest : public testing::Test {
 protected:
  static constexpr std::int64_t kRows = 130, kCols = 300;

  CastsTest() : data_(kRows * kCols) {
    std::normal_distribution<float> normal;
    for (float& value : data_) value = normal(random_);
  }

  TensorView x() const { return matrix(data_.data(), DType::kFloat32, kRows, kCols); }

  // Scales of each unit's magnitude, more or less: some codes saturate, some are subnormal.
  void give_scales(ScaledMatrix& out) {
    std::uniform_real_distribution<float> exponent(-12, 0);
    for (float& scale : out.scales()) scale = std::exp2(exponent(random_));
  }

  static std::string error_of(const TensorView& x, const CastTargets& out) {
    return test::error_of([&] { cast(x, out); });
  }

  static void expect_same(const ScaledMatrix& actual, const ScaledMatrix& expected) {
    EXPECT_THAT(actual.codes(), testing::ElementsAreArray(expected.codes()));
    EXPECT_THAT(actual.scales(), testing::ElementsAreArray(expected.scales()));
  }

  std::vector<float> data_;
  test::Random random_;
};

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols) {
  std::vector<float> result(values.size());
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    result[static_cast<std::size_t>(i % cols * rows + i / cols)] =
        values[static_cast<std::size_t>(i)];
  }
  return result;
}

TEST_F(CastsTest, BothTargetsAreTwoCasts) {
  const std::vector<float> data_transposed = transposed(data_, kRows, kCols);
  const TensorView x_transposed = matrix(data_transposed.data(), DType::kFloat32, kCols, kRows);
  for (const Granularity granularity : kGranularities) {
    const Format options{.rule = Rule::kVllm, .power_of_two = true};
    ScaledMatrix rows(kRows, kCols, {.granularity = granularity}),
        columns(kCols, kRows, {.granularity = granularity});
    cast(x(), test::by(options, {.rows = rows.target(), .transposed = columns.target()}));

    ScaledMatrix alone(kRows, kCols, {.granularity = granularity}),
        columns_alone(kCols, kRows, {.granularity = granularity});
    cast(x(), test::by(options, {.rows = alone.target()}));
    expect_same(rows, alone);
    cast(x(), test::by(options, {.transposed = columns_alone.target()}));
    expect_same(columns, columns_alone);
    cast(x_transposed, test::by(options, {.rows = columns_alone.target()}));
    expect_same(columns, columns_alone);
  }
}

TEST_F(CastsTest, TheTransposeMayBeOfChannelsBesideRowsOfBlocks) {
  ScaledMatrix rows(kRows, kCols, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix columns(kCols, kRows, {.granularity = Granularity::kChannel});
  ScaledMatrix rows_alone(kRows, kCols, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix columns_alone(kCols, kRows, {.granularity = Granularity::kChannel});
  cast(x(), {.rows = rows.target(), .transposed = columns.target()});
  cast(x(), {.rows = rows_alone.target()});
  cast(x(), {.transposed = columns_alone.target()});
  expect_same(rows, rows_alone);
  expect_same(columns, columns_alone);
}

TEST_F(CastsTest, NamesTheTargetThatIsWrong) {
  const auto block = Granularity::kBlock1x128;
  ScaledMatrix out(kRows, kCols, {.granularity = block}),
      columns(kCols, kRows, {.granularity = block});
  EXPECT_THAT(error_of(x(), {.rows = out.target(), .transposed = out.target()}),
              HasSubstr("'out.transposed': expected shape"));
  ScaledMatrix tensor(kCols, kRows, {.granularity = Granularity::kTensor});
  EXPECT_THAT(error_of(x(), {.rows = out.target(), .transposed = tensor.target()}),
              HasSubstr("'out.transposed': expected granularity 1x128, as 'out.rows'"));
  ScaledMatrix e5m2(kCols, kRows, {.dtype = DType::kE5M2, .granularity = block});
  EXPECT_THAT(error_of(x(), {.rows = out.target(), .transposed = e5m2.target()}),
              HasSubstr("'out.transposed': expected dtype e4m3"));

  CastTarget overlapping = columns.target();
  overlapping.data.data = out.codes().data();
  EXPECT_THAT(error_of(x(), {.rows = out.target(), .transposed = overlapping}),
              HasSubstr("'out.transposed': expected memory of its own, apart from 'out.rows'"));
  overlapping = columns.target();
  overlapping.scale.data = out.scales().data();
  EXPECT_THAT(error_of(x(), {.rows = out.target(), .transposed = overlapping}),
              HasSubstr("'out.transposed.scale': expected memory of its own"));
}

// The scales that a cast computes, given to it, make the same codes where codes are x / scale or
// x · (1 / scale); of a factor that is rounded to a power of two, the reciprocal is exact.
TEST_F(CastsTest, ScalesOfACastGiveItsCodesAgain) {
  for (const Granularity granularity : kGranularities) {
    for (const Rule rule : kRules) {
      const bool power_of_two = rule == Rule::kTransformerEngine || rule == Rule::kTorchAo;
      ScaledMatrix rows(kRows, kCols, {.granularity = granularity}),
          columns(kCols, kRows, {.granularity = granularity});
      const CastTargets out{.rows = rows.target(), .transposed = columns.target()};
      cast(x(), test::by({.rule = rule, .power_of_two = power_of_two}, out));
      const ScaledMatrix computed_rows = rows.to({}), computed_columns = columns.to({});
      std::ranges::fill(rows.codes(), std::uint8_t{0xAA});
      std::ranges::fill(columns.codes(), std::uint8_t{0xAA});
      cast(x(), test::by({.rule = rule}, test::given(out)));
      expect_same(rows, computed_rows);
      expect_same(columns, computed_columns);
    }
  }
}

// What is only read may be read twice; what is written may not overlap itself.
TEST_F(CastsTest, GivenScalesMayBeSharedAndComputedOnesNot) {
  ScaledMatrix rows(kRows, kCols, {.granularity = Granularity::kTensor}),
      columns(kCols, kRows, {.granularity = Granularity::kTensor});
  CastTargets out{.rows = rows.target(), .transposed = columns.target()};
  out.transposed->scale = out.rows->scale;
  rows.scales()[0] = 0.5f;
  cast(x(), test::given(out));
  EXPECT_EQ(columns.codes()[1], rows.codes()[kCols]);
  EXPECT_THAT(error_of(x(), out), testing::HasSubstr("apart from 'out.rows.scale'"));

  ScaledMatrix by_row(kRows, kCols, {.granularity = Granularity::kChannel});
  CastTarget repeated = by_row.target();
  repeated.scale.strides[0] = 0;
  EXPECT_THAT(error_of(x(), {.rows = repeated}),
              testing::HasSubstr("'out.rows.scale': expected scales that do not overlap"));
}

// Where in the scale tensor of [rows, cols] the scale of an element is.
std::size_t unit_of(Granularity granularity, std::int64_t row, std::int64_t col,
                    std::int64_t cols) {
  const std::int64_t across = (cols + 127) / 128;
  switch (granularity) {
    case Granularity::kTensor: return 0;
    case Granularity::kChannel: return static_cast<std::size_t>(row);
    case Granularity::kBlock1x128: return static_cast<std::size_t>(row * across + col / 128);
    case Granularity::kBlock128x128:
      return static_cast<std::size_t>(row / 128 * across + col / 128);
  }
  return 0;
}

// Element by element: convert_dtype() rounds what the scale leaves.
TEST_F(CastsTest, GivenScalesAreUsedAndKept) {
  data_[5] = INFINITY, data_[7] = NAN, data_[11] = -0.0f, data_[13] = 1e38f;
  for (const Granularity granularity : kGranularities) {
    for (const Rule rule : kRules) {
      const bool divides =
          rule == Rule::kVllm || rule == Rule::kDeepSeek || rule == Rule::kCompressedTensors;
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kNan}) {
        ScaledMatrix out(kRows, kCols, {.granularity = granularity});
        give_scales(out);
        const std::vector<float> given(out.scales().begin(), out.scales().end());
        cast(x(),
             test::by({.rule = rule, .overflow = overflow}, test::given({.rows = out.target()})));
        EXPECT_THAT(out.scales(), testing::ElementsAreArray(given));

        std::vector<float> scaled = data_;
        for (std::int64_t i = 0; i < kRows * kCols; ++i) {
          const float scale = given[unit_of(granularity, i / kCols, i % kCols, kCols)];
          float& value = scaled[static_cast<std::size_t>(i)];
          value = divides ? value / scale : value * (1.0f / scale);
          if (rule == Rule::kCompressedTensors) value += 0.0f;  // 0 in place of -0
        }
        std::vector<std::uint8_t> codes(scaled.size());
        convert_dtype(matrix(scaled.data(), DType::kFloat32, kRows, kCols),
                      matrix(codes.data(), DType::kE4M3, kRows, kCols), overflow);
        EXPECT_THAT(out.codes(), testing::ElementsAreArray(codes));
      }
    }
  }
}

TEST_F(CastsTest, LeadingDimensionsAreRows) {
  for (const Granularity granularity : kGranularities) {
    ScaledMatrix expected(kRows, kCols, {.granularity = granularity}),
        columns(kCols, kRows, {.granularity = granularity});
    cast(x(), {.rows = expected.target()});
    cast(x(), {.transposed = columns.target()});

    // [2, 65, 300], with scales that have the leading dimensions, one more, or none.
    TensorView cube = x();
    cube.rank = 3;
    cube.shape = {2, 65, kCols};
    cube.strides = {65 * kCols, kCols, 1};
    for (const int scale_kind : {0, 1, 2}) {
      ScaledMatrix out(kRows, kCols, {.granularity = granularity}),
          out_columns(kCols, kRows, {.granularity = granularity});
      CastTarget target = out.target();
      target.data.rank = 3;
      target.data.shape = cube.shape;
      target.data.strides = cube.strides;
      if (granularity == Granularity::kBlock1x128 && scale_kind != 2) {
        target.scale.rank = 3;
        target.scale.shape = {2, 65, 3};
        target.scale.strides = {195, 3, 1};
      } else if (granularity == Granularity::kChannel && scale_kind != 2) {
        target.scale.rank = 2 + scale_kind;
        target.scale.shape = {2, 65, 1};
        target.scale.strides = {65, 1, 17};
      }
      cast(cube, {.rows = target, .transposed = out_columns.target()});
      expect_same(out, expected);
      expect_same(out_columns, columns);

      std::vector<float> values(data_.size()), expected_values(data_.size());
      dequantize(target, {values.data(), DType::kFloat32, 3, cube.shape, cube.strides});
      dequantize(expected.view(), matrix(expected_values.data(), DType::kFloat32, kRows, kCols));
      EXPECT_EQ(values, expected_values);
    }
  }
}

TEST_F(CastsTest, AVectorIsARow) {
  for (const Granularity granularity : kGranularities) {
    ScaledMatrix expected(1, kCols, {.granularity = granularity}),
        out(1, kCols, {.granularity = granularity});
    cast(matrix(data_.data(), DType::kFloat32, 1, kCols), {.rows = expected.target()});
    const std::int64_t scales = std::ssize(out.scales());
    const CastTarget target{vector(out.codes().data(), DType::kE4M3, kCols),
                            granularity == Granularity::kBlock128x128
                                ? matrix(out.scales().data(), DType::kFloat32, 1, scales)
                                : vector(out.scales().data(), DType::kFloat32, scales),
                            {.granularity = granularity}};
    cast(vector(data_.data(), DType::kFloat32, kCols), {.rows = target});
    expect_same(out, expected);
  }
}

// Rows that are all the same, that go backwards, that overlap: inputs of every operation.
TEST_F(CastsTest, RowsMayLieAnywhere) {
  struct Rows {
    std::int64_t first, stride;
  };
  constexpr std::int64_t kCount = 129, kWidth = 200;
  for (const auto& [first, stride] : {Rows{0, 0}, Rows{(kRows - 1) * kCols, -kCols}, Rows{3, 17}}) {
    const TensorView view{data_.data() + first, DType::kFloat32, 2, {kCount, kWidth}, {stride, 1}};
    std::vector<float> copy(kCount * kWidth);
    for (std::int64_t row = 0; row < kCount; ++row) {
      std::memcpy(copy.data() + row * kWidth, data_.data() + first + row * stride,
                  kWidth * sizeof(float));
    }
    const TensorView contiguous = matrix(copy.data(), DType::kFloat32, kCount, kWidth);
    for (const Granularity granularity : kGranularities) {
      ScaledMatrix out(kCount, kWidth, {.granularity = granularity}),
          expected(kCount, kWidth, {.granularity = granularity});
      ScaledMatrix columns(kWidth, kCount, {.granularity = granularity});
      ScaledMatrix expected_columns(kWidth, kCount, {.granularity = granularity});
      cast(view, {.rows = out.target(), .transposed = columns.target()});
      cast(contiguous, {.rows = expected.target(), .transposed = expected_columns.target()});
      expect_same(out, expected);
      expect_same(columns, expected_columns);
    }
    std::vector<float> converted(copy.size());
    convert_dtype(view, matrix(converted.data(), DType::kFloat32, kCount, kWidth));
    EXPECT_EQ(converted, copy);
  }
}

// A row of scales and codes that is repeated is dequantized as often.
TEST_F(CastsTest, DequantizesRowsThatAreRepeated) {
  ScaledMatrix row(1, kCols, {.granularity = Granularity::kBlock1x128});
  cast(matrix(data_.data(), DType::kFloat32, 1, kCols), {.rows = row.target()});
  std::vector<float> once(kCols), repeated(3 * kCols);
  dequantize(row.view(), matrix(once.data(), DType::kFloat32, 1, kCols));
  ScaledTensorView rows = row.view();
  rows.data.shape[0] = rows.scale.shape[0] = 3;
  rows.data.strides[0] = rows.scale.strides[0] = 0;
  dequantize(rows, matrix(repeated.data(), DType::kFloat32, 3, kCols));
  for (std::size_t i = 0; i < repeated.size(); ++i) EXPECT_EQ(repeated[i], once[i % kCols]);
}

}  // namespace
}  // namespace octofold
