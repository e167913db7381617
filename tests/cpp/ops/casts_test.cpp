// What the CPU backend casts, whatever the shape and the strides of x, and from which scales. Its
// bytes are compared with independent code in tests/python.
#include "octofold/octofold.h"

#include "support/both_casts.h"
#include "support/granularities.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Both;
using test::expect_same;
using test::kGranularities;

constexpr std::array kRules{Rule::kDeepGemm, Rule::kVllmPerToken, Rule::kTransformerEngine,
                            Rule::kTorchAo,  Rule::kDeepSeek,     Rule::kCompressedTensors};

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

  std::vector<float> data_;
  test::Random random_;
};

std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols) {
  std::vector<float> result(values.size());
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    result[as_size(i % cols * rows + i / cols)] = values[as_size(i)];
  }
  return result;
}

TEST_F(CastsTest, BothTargetsAreTwoCasts) {
  const std::vector<float> data_transposed = transposed(data_, kRows, kCols);
  const TensorView x_transposed = matrix(data_transposed.data(), DType::kFloat32, kCols, kRows);
  for (const Granularity granularity : kGranularities) {
    const Format format{.granularity = granularity, .rule = Rule::kVllm, .power_of_two = true};
    Both both(kRows, kCols, format), alone(kRows, kCols, format);
    cast(x(), both.targets());
    cast(x(), {.rows = alone.rows.target()});
    cast(x(), {.transposed = alone.columns.target()});
    expect_same(both, alone);
    cast(x_transposed, {.rows = alone.columns.target()});
    expect_same(both, alone);
  }
}

TEST_F(CastsTest, TheTransposeMayBeOfChannelsBesideRowsOfBlocks) {
  const Format blocks{}, channels{.granularity = Granularity::kChannel};
  ScaledMatrix rows(kRows, kCols, blocks), rows_alone(kRows, kCols, blocks);
  ScaledMatrix columns(kCols, kRows, channels), columns_alone(kCols, kRows, channels);
  cast(x(), {.rows = rows.target(), .transposed = columns.target()});
  cast(x(), {.rows = rows_alone.target()});
  cast(x(), {.transposed = columns_alone.target()});
  expect_same(rows, rows_alone);
  expect_same(columns, columns_alone);
}

TEST_F(CastsTest, NamesTheTargetThatIsWrong) {
  Both both(kRows, kCols, {});
  ScaledMatrix tensor(kCols, kRows, {.granularity = Granularity::kTensor});
  ScaledMatrix e5m2(kCols, kRows, {.dtype = DType::kE5M2});
  const auto refuses = test::refusing<CastTarget>([&](auto&& spoil) {
    CastTargets targets = both.targets();
    spoil(*targets.transposed);
    return error_of(x(), targets);
  });
  refuses({
      {[&](auto& t) { t = both.rows.target(); }, "'out.transposed': expected shape"},
      {[&](auto& t) { t = tensor.target(); },
       "'out.transposed': expected granularity 1x128, as 'out.rows'"},
      {[&](auto& t) { t = e5m2.target(); }, "'out.transposed': expected dtype e4m3"},
      {[&](auto& t) { t.data.data = both.rows.codes().data(); },
       "'out.transposed': expected memory of its own, apart from 'out.rows'"},
      {[&](auto& t) { t.scale.data = both.rows.scales().data(); },
       "'out.transposed.scale': expected memory of its own"},
  });
}

// The scales that a cast computes, given to it, make the same codes where codes are x / scale or
// x · (1 / scale); of a factor that is rounded to a power of two, the reciprocal is exact.
TEST_F(CastsTest, ScalesOfACastGiveItsCodesAgain) {
  for (const Granularity granularity : kGranularities) {
    for (const Rule rule : kRules) {
      const bool power_of_two = rule == Rule::kTransformerEngine || rule == Rule::kTorchAo;
      Both out(kRows, kCols, {.granularity = granularity});
      cast(x(), test::by({.rule = rule, .power_of_two = power_of_two}, out.targets()));
      const ScaledMatrix computed_rows = out.rows.to({}), computed_columns = out.columns.to({});
      std::ranges::fill(out.rows.codes(), std::uint8_t{0xAA});
      std::ranges::fill(out.columns.codes(), std::uint8_t{0xAA});
      cast(x(), test::by({.rule = rule}, test::given(out.targets())));
      expect_same(out.rows, computed_rows);
      expect_same(out.columns, computed_columns);
    }
  }
}

// What is only read may be read twice; what is written may not overlap itself.
TEST_F(CastsTest, GivenScalesMayBeSharedAndComputedOnesNot) {
  Both tensors(kRows, kCols, {.granularity = Granularity::kTensor});
  CastTargets out = tensors.targets();
  out.transposed->scale = out.rows->scale;
  tensors.rows.scales()[0] = 0.5f;
  cast(x(), test::given(out));
  EXPECT_EQ(tensors.columns.codes()[1], tensors.rows.codes()[kCols]);
  EXPECT_THAT(error_of(x(), out), HasSubstr("apart from 'out.rows.scale'"));

  ScaledMatrix by_row(kRows, kCols, {.granularity = Granularity::kChannel});
  CastTarget repeated = by_row.target();
  repeated.scale.strides[0] = 0;
  EXPECT_THAT(error_of(x(), {.rows = repeated}),
              HasSubstr("'out.rows.scale': expected scales that do not overlap"));
}

// Where in the scale tensor of [rows, cols] the scale of an element is.
std::size_t unit_of(Granularity granularity, std::int64_t row, std::int64_t col,
                    std::int64_t cols) {
  const std::int64_t across = (cols + 127) / 128;
  switch (granularity) {
    case Granularity::kTensor: return 0;
    case Granularity::kChannel: return as_size(row);
    case Granularity::kBlock1x128: return as_size(row * across + col / 128);
    case Granularity::kBlock128x128: return as_size(row / 128 * across + col / 128);
  }
  return 0;
}

// Element by element: convert_dtype() rounds what the scale leaves.
TEST_F(CastsTest, GivenScalesAreUsedAndKept) {
  data_[5] = INFINITY, data_[7] = NAN, data_[11] = -0.0f, data_[13] = 1e38f;
  for (const Granularity granularity : kGranularities) {
    for (const Rule rule : kRules) {
      const bool divides = rule == Rule::kVllmPerToken || rule == Rule::kDeepSeek ||
                           rule == Rule::kCompressedTensors;
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
          float& value = scaled[as_size(i)];
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
    Both expected(kRows, kCols, {.granularity = granularity});
    cast(x(), expected.targets());

    // [2, 65, 300], with scales that have the leading dimensions, one more, or none.
    TensorView cube = x();
    cube.rank = 3;
    cube.shape = {2, 65, kCols};
    cube.strides = {65 * kCols, kCols, 1};
    for (const int scale_kind : {0, 1, 2}) {
      Both out(kRows, kCols, {.granularity = granularity});
      CastTarget target = out.rows.target();
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
      cast(cube, {.rows = target, .transposed = out.columns.target()});
      expect_same(out, expected);

      std::vector<float> values(data_.size()), expected_values(data_.size());
      dequantize(target, {values.data(), DType::kFloat32, 3, cube.shape, cube.strides});
      dequantize(expected.rows.view(),
                 matrix(expected_values.data(), DType::kFloat32, kRows, kCols));
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
      Both out(kCount, kWidth, {.granularity = granularity}),
          expected(kCount, kWidth, {.granularity = granularity});
      cast(view, out.targets());
      cast(contiguous, expected.targets());
      expect_same(out, expected);
    }
    std::vector<float> converted(copy.size());
    convert_dtype(view, matrix(converted.data(), DType::kFloat32, kCount, kWidth));
    EXPECT_EQ(converted, copy);
  }
}

// A row of scales and codes that is repeated is dequantized as often.
TEST_F(CastsTest, DequantizesRowsThatAreRepeated) {
  ScaledMatrix row(1, kCols);
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
