// Casts of activations and of their gradients on the CPU: quantize() of values that are worked out
// here, by definition or by differences.
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numbers>
#include <random>
#include <string>

#include "octofold/octofold.h"

#include "support/error_of.h"
#include "support/granularities.h"
#include "support/matrix.h"
#include "support/targets.h"

namespace octofold {
namespace {

using test::error_of;
using test::Matrix;
using testing::HasSubstr;

constexpr std::array kActivations{
    Activation::kSwiGlu, Activation::kGeGluTanh, Activation::kGeGluErf,   Activation::kSilu,
    Activation::kGelu,   Activation::kGeluTanh,  Activation::kReluSquared};
constexpr std::array kLayouts{GateLayout::kHalves, GateLayout::kInterleaved};
constexpr std::int64_t kRows = 130, kCols = 150;  // of the activation

double curve(Activation activation, double x) {
  switch (activation) {
    case Activation::kSwiGlu:
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGeGluTanh:
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3))));
    case Activation::kGeGluErf:
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2)));
    case Activation::kReluSquared: return x > 0 ? x * x : 0;
  }
  return 0;
}

double slope(Activation activation, double x) {
  constexpr double kStep = 1e-5;
  return (curve(activation, x + kStep) - curve(activation, x - kStep)) / (2 * kStep);
}

std::int64_t gate_of(GateLayout layout, std::int64_t col) {
  return layout == GateLayout::kHalves ? col : 2 * col;
}
std::int64_t up_of(GateLayout layout, std::int64_t col) {
  return layout == GateLayout::kHalves ? kCols + col : 2 * col + 1;
}

class ActivationsTest : public testing::Test {
 protected:
  Matrix input(std::int64_t cols) { return test::random_matrix(random_, kRows, cols, 3); }

  // Every value half a step of FP8 from what it stands for, and a little more for what is not
  // rounded here.
  static void expect_cast(const ScaledMatrix& actual, const Matrix& expected) {
    Matrix values(DType::kFloat32, expected.rows(), expected.cols());
    dequantize(actual.view(), values.view());
    double largest = 0;
    for (std::int64_t row = 0; row < values.rows(); ++row) {
      for (std::int64_t col = 0; col < values.cols(); ++col) {
        const double value = expected.at(row, col);
        largest = std::max(largest, std::abs(value));
        const double step = std::max(std::abs(value) / 16, double{actual.scales()[0]} / 1024);
        ASSERT_NEAR(values.at(row, col), value, 1.001 * step) << row << ", " << col;
      }
    }
    EXPECT_NEAR(actual.scales()[0] * 448, largest, 1e-5 * largest);
  }

  std::mt19937 random_{20261122};
};

ScaledMatrix cast_matrix(std::int64_t rows, std::int64_t cols) {
  return ScaledMatrix(rows, cols, {.granularity = Granularity::kTensor});
}

TEST_F(ActivationsTest, AreCastAsTheyAreDefined) {
  for (const Activation activation : kActivations) {
    for (const GateLayout layout : kLayouts) {
      const bool gated = is_gated(activation);
      Matrix x = input(gated ? 2 * kCols : kCols), expected(DType::kFloat32, kRows, kCols);
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t col = 0; col < kCols; ++col) {
          const double gate = x.at(row, gated ? gate_of(layout, col) : col);
          const double up = gated ? x.at(row, up_of(layout, col)) : 1;
          expected.float_at(row, col) = static_cast<float>(curve(activation, gate) * up);
        }
      }
      ScaledMatrix out = cast_matrix(kRows, kCols);
      cast(Activated{.x = x.view(), .activation = activation, .layout = layout},
           {.rows = out.target()});
      SCOPED_TRACE(name(activation));
      expect_cast(out, expected);
    }
  }
}

TEST_F(ActivationsTest, GradientsAreThoseOfTheDefinition) {
  for (const Activation activation : kActivations) {
    for (const GateLayout layout : kLayouts) {
      const bool gated = is_gated(activation);
      const std::int64_t cols = gated ? 2 * kCols : kCols;
      Matrix x = input(cols), gradient = input(kCols), expected(DType::kFloat32, kRows, cols);
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t col = 0; col < kCols; ++col) {
          const std::int64_t at_gate = gated ? gate_of(layout, col) : col;
          const double gate = x.at(row, at_gate), by_value = gradient.at(row, col);
          const double up = gated ? x.at(row, up_of(layout, col)) : 1;
          expected.float_at(row, at_gate) =
              static_cast<float>(by_value * slope(activation, gate) * up);
          if (gated) {
            expected.float_at(row, up_of(layout, col)) =
                static_cast<float>(by_value * curve(activation, gate));
          }
        }
      }
      ScaledMatrix out = cast_matrix(kRows, cols);
      cast(ActivationGradient{.gradient = gradient.view(),
                              .x = x.view(),
                              .activation = activation,
                              .layout = layout},
           {.rows = out.target()});
      SCOPED_TRACE(name(activation));
      expect_cast(out, expected);
    }
  }
}

// Of what is rounded to BF16 first, each target is what quantize() makes of the same values.
TEST_F(ActivationsTest, BothTargetsAreCastsOfTheSameValues) {
  Matrix wide = input(2 * kCols), x(DType::kBFloat16, kRows, 2 * kCols);
  convert_dtype(wide.view(), x.view());
  for (const Granularity granularity : test::kGranularities) {
    ScaledMatrix rows(kRows, kCols, {.dtype = DType::kE5M2, .granularity = granularity});
    ScaledMatrix columns(kCols, kRows, {.dtype = DType::kE5M2, .granularity = granularity});
    cast(Activated{.x = x.view(), .activation = Activation::kSwiGlu, .layout = GateLayout::kHalves},
         {.rows = rows.target(), .transposed = columns.target()});
    ScaledMatrix alone(kCols, kRows, {.dtype = DType::kE5M2, .granularity = granularity});
    cast(Activated{.x = x.view(), .activation = Activation::kSwiGlu, .layout = GateLayout::kHalves},
         {.transposed = alone.target()});
    EXPECT_THAT(columns.codes(), testing::ElementsAreArray(alone.codes()));

    // With scales of one, codes are the values themselves, rounded: they agree across targets.
    for (float& scale : rows.scales()) scale = 1;
    for (float& scale : columns.scales()) scale = 1;
    cast(Activated{.x = x.view(), .activation = Activation::kSwiGlu, .layout = GateLayout::kHalves},
         test::given({.rows = rows.target(), .transposed = columns.target()}));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < kCols; ++col) {
        ASSERT_EQ(rows.codes()[static_cast<std::size_t>(row * kCols + col)],
                  columns.codes()[static_cast<std::size_t>(col * kRows + row)]);
      }
    }
  }
}

// x in FP8, its values in a dtype, and casts from either.
struct FromFp8 {
  ScaledMatrix x;
  Matrix values, gradient;
  Activation activation;
  GateLayout layout;

  FromFp8(const Matrix& wide, Granularity granularity, DType codes, DType dtype, Activation of,
          GateLayout in)
      : x(wide.rows(), wide.cols(), {.dtype = codes, .granularity = granularity}),
        values(dtype, wide.rows(), wide.cols(), 3),
        gradient(dtype, wide.rows(), is_gated(of) ? wide.cols() / 2 : wide.cols(), 5),
        activation(of),
        layout(in) {
    cast(wide.view(), {.rows = x.target()});
  }
  std::int64_t rows() const { return values.rows(); }

  void expect_same_bits(Granularity granularity) {
    dequantize(x.view(), values.view());
    const std::int64_t width = gradient.cols();
    for (const bool back : {false, true}) {
      const std::int64_t cols = back ? values.cols() : width;
      ScaledMatrix of_rows(rows(), cols, {.granularity = granularity}),
          want_rows(rows(), cols, {.granularity = granularity});
      ScaledMatrix of_columns(cols, rows(), {.granularity = granularity}),
          want_columns(cols, rows(), {.granularity = granularity});
      const CastTargets out{.rows = of_rows.target(), .transposed = of_columns.target()};
      const CastTargets wanted{.rows = want_rows.target(), .transposed = want_columns.target()};
      if (back) {
        cast(ActivationGradient{.gradient = gradient.view(),
                                .x = x.view(),
                                .activation = activation,
                                .layout = layout},
             out);
        cast(ActivationGradient{.gradient = gradient.view(),
                                .x = values.view(),
                                .activation = activation,
                                .layout = layout},
             wanted);
      } else {
        cast(
            Activated{
                .x = x.view(), .activation = activation, .layout = layout, .dtype = values.dtype()},
            out);
        cast(Activated{.x = values.view(), .activation = activation, .layout = layout}, wanted);
      }
      EXPECT_THAT(of_rows.codes(), testing::ElementsAreArray(want_rows.codes()));
      EXPECT_THAT(of_columns.codes(), testing::ElementsAreArray(want_columns.codes()));
      EXPECT_EQ(std::memcmp(of_rows.scales().data(), want_rows.scales().data(),
                            want_rows.scales().size_bytes()),
                0);
      EXPECT_EQ(std::memcmp(of_columns.scales().data(), want_columns.scales().data(),
                            want_columns.scales().size_bytes()),
                0);
    }
  }
};

TEST_F(ActivationsTest, FromFp8AreThoseOfWhatItStandsFor) {
  for (const Granularity granularity : test::kGranularities) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const GateLayout layout : kLayouts) {
        for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
          const Matrix wide = input(is_gated(activation) ? 2 * kCols : kCols);
          FromFp8 case_(wide, granularity, dtype == DType::kFloat16 ? DType::kE5M2 : DType::kE4M3,
                        dtype, activation, layout);
          convert_dtype(input(case_.gradient.cols()).view(), case_.gradient.view());
          SCOPED_TRACE(std::string(name(granularity)) + " " + std::string(name(dtype)) + " " +
                       std::string(name(activation)));
          case_.expect_same_bits(Granularity::kBlock1x128);
        }
      }
    }
  }
}

TEST_F(ActivationsTest, NanInFp8IsHandedOn) {
  Matrix wide = input(2 * kCols);
  for (const GateLayout layout : kLayouts) {
    FromFp8 case_(wide, Granularity::kBlock1x128, DType::kE4M3, DType::kBFloat16,
                  Activation::kSwiGlu, layout);
    convert_dtype(input(kCols).view(), case_.gradient.view());
    constexpr std::uint8_t kNan = 0x7F;
    case_.x.codes()[5] = kNan;
    case_.x.scales()[3] = std::numeric_limits<float>::quiet_NaN();
    case_.expect_same_bits(Granularity::kTensor);
    ScaledMatrix out = cast_matrix(kRows, kCols);
    cast(Activated{.x = case_.x.view(),
                   .activation = Activation::kSwiGlu,
                   .layout = layout,
                   .dtype = DType::kBFloat16},
         {.rows = out.target()});
    EXPECT_EQ(out.codes()[layout == GateLayout::kHalves ? 5 : 2] & kNan, kNan);
  }
}

TEST_F(ActivationsTest, ErrorsNameTheArgument) {
  Matrix x = input(2 * kCols), odd = input(2 * kCols - 1), by_output = input(kCols);
  ScaledMatrix out = cast_matrix(kRows, kCols), of_x = cast_matrix(kRows, 2 * kCols);
  const auto activate = [&](const Matrix& input, Activation activation, GateLayout layout) {
    return error_of([&] {
      cast(Activated{.x = input.view(), .activation = activation, .layout = layout},
           {.rows = out.target()});
    });
  };
  const auto halves = GateLayout::kHalves;
  EXPECT_THAT(activate(odd, Activation::kSwiGlu, halves), HasSubstr("'x': expected an even"));
  EXPECT_THAT(activate(x, Activation::kSilu, halves), HasSubstr("'out.rows': expected shape"));
  EXPECT_THAT(activate(x, static_cast<Activation>(40), halves), HasSubstr("'activation'"));
  EXPECT_THAT(activate(x, Activation::kSwiGlu, static_cast<GateLayout>(7)), HasSubstr("'layout'"));

  const auto go_back = [&](const Matrix& gradient, const CastTargets& targets) {
    return error_of([&] {
      cast(ActivationGradient{.gradient = gradient.view(),
                              .x = x.view(),
                              .activation = Activation::kSwiGlu,
                              .layout = halves},
           targets);
    });
  };
  EXPECT_THAT(go_back(x, {.rows = of_x.target()}), HasSubstr("'gradient': expected shape"));
  EXPECT_THAT(go_back(Matrix(DType::kBFloat16, kRows, kCols), {.rows = of_x.target()}),
              HasSubstr("'gradient': expected dtype float32"));
  EXPECT_THAT(go_back(by_output, {.rows = out.target()}), HasSubstr("'out.rows': expected shape"));
  EXPECT_THAT(go_back(by_output, {}), HasSubstr("'out': expected rows, transposed or both"));
  // Codes over the gradient that they are worked out from.
  CastTarget over = of_x.target();
  over.data.data = by_output.data();
  EXPECT_THAT(go_back(by_output, {.rows = over}), HasSubstr("'out.rows'"));
}

TEST_F(ActivationsTest, ErrorsOfFp8NameTheArgument) {
  Matrix wide = input(2 * kCols), by_output = input(kCols);
  ScaledMatrix x(kRows, 2 * kCols, {.granularity = Granularity::kBlock1x128});
  ScaledMatrix out = cast_matrix(kRows, kCols), of_x = cast_matrix(kRows, 2 * kCols);
  const auto activate = [&](const ScaledTensorView& input, DType dtype) {
    return error_of([&] {
      cast(Activated{.x = input,
                     .activation = Activation::kSwiGlu,
                     .layout = GateLayout::kHalves,
                     .dtype = dtype},
           {.rows = out.target()});
    });
  };
  const auto go_back = [&](const Matrix& gradient, const ScaledTensorView& input,
                           const CastTargets& targets) {
    return error_of([&] {
      cast(ActivationGradient{.gradient = gradient.view(),
                              .x = input,
                              .activation = Activation::kSwiGlu,
                              .layout = GateLayout::kHalves},
           targets);
    });
  };
  const ScaledTensorView codes = x.view();
  EXPECT_THAT(activate(codes, DType::kE4M3), HasSubstr("'dtype': expected float32, float16"));
  ScaledTensorView flawed = codes;
  flawed.data = wide.view();
  EXPECT_THAT(activate(flawed, DType::kBFloat16), HasSubstr("'x': expected dtype e4m3"));
  flawed = codes;
  flawed.scale.shape[1] -= 1;
  EXPECT_THAT(activate(flawed, DType::kBFloat16), HasSubstr("'x.scale': expected shape"));
  EXPECT_THAT(go_back(by_output, flawed, {.rows = of_x.target()}), HasSubstr("'x.scale'"));
  flawed = codes;
  flawed.channel_scale = codes.scale;
  EXPECT_THAT(activate(flawed, DType::kBFloat16), HasSubstr("'x.channel_scale': expected none"));
  flawed = codes;
  flawed.data.shape[1] -= 1;
  EXPECT_THAT(activate(flawed, DType::kBFloat16), HasSubstr("'x': expected an even"));
  EXPECT_THAT(go_back(wide, codes, {.rows = of_x.target()}),
              HasSubstr("'gradient': expected shape"));
  EXPECT_THAT(go_back(Matrix(DType::kE5M2, kRows, kCols), codes, {.rows = of_x.target()}),
              HasSubstr("'gradient': expected dtype float32 or"));
  // Scales over those that are read.
  CastTarget over = of_x.target();
  over.scale.data = x.scales().data();
  EXPECT_THAT(go_back(by_output, codes, {.rows = over}), HasSubstr("'out.rows.scale'"));
}

}  // namespace
}  // namespace octofold
