// Casts of activations and of their gradients on the CPU: quantize() of values that are worked out
// here, by definition or by differences.
#include "octofold/octofold.h"

#include "support/both_casts.h"
#include "support/granularities.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Both;
using test::expect_same;
using test::Matrix;

constexpr std::array kActivations{
    Activation::kSwiGlu, Activation::kGeGluTanh, Activation::kGeGluErf, Activation::kSwiGluOss,
    Activation::kSilu,   Activation::kGelu,      Activation::kGeluTanh, Activation::kReluSquared};
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
    case Activation::kSwiGluOss:
      return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
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

TEST_F(ActivationsTest, AndGradientsAreCastAsTheyAreDefined) {
  for (const Activation activation : kActivations) {
    for (const GateLayout layout : kLayouts) {
      SCOPED_TRACE(name(activation));
      const bool gated = is_gated(activation);
      const std::int64_t cols = gated ? 2 * kCols : kCols;
      Matrix x = input(cols), gradient = input(kCols);
      Matrix expected(DType::kFloat32, kRows, kCols), by_x(DType::kFloat32, kRows, cols);
      for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t col = 0; col < kCols; ++col) {
          const std::int64_t at_gate = gated ? gate_of(layout, col) : col;
          const double gate = x.at(row, at_gate), by_value = gradient.at(row, col);
          const double given_up = gated ? x.at(row, up_of(layout, col)) : 1;
          const bool is_oss = activation == Activation::kSwiGluOss;
          const double up = is_oss ? std::clamp(given_up, -7.0, 7.0) + 1 : given_up;
          const double value = curve(activation, gate);
          expected.float_at(row, col) = static_cast<float>(value * up);
          by_x.float_at(row, at_gate) = static_cast<float>(by_value * slope(activation, gate) * up);
          if (!gated) continue;
          const bool is_clamped = is_oss && std::abs(given_up) > 7;
          by_x.float_at(row, up_of(layout, col)) =
              static_cast<float>(is_clamped ? 0 : by_value * value);
        }
      }
      ScaledMatrix out = cast_matrix(kRows, kCols), of_x = cast_matrix(kRows, cols);
      cast(Activated{.x = x.view(), .activation = activation, .layout = layout},
           {.rows = out.target()});
      expect_cast(out, expected);
      cast(ActivationGradient{.gradient = gradient.view(),
                              .x = x.view(),
                              .activation = activation,
                              .layout = layout},
           {.rows = of_x.target()});
      expect_cast(of_x, by_x);
    }
  }
}

// Of what is rounded to BF16 first, each target is what quantize() makes of the same values.
TEST_F(ActivationsTest, BothTargetsAreCastsOfTheSameValues) {
  Matrix wide = input(2 * kCols), x(DType::kBFloat16, kRows, 2 * kCols);
  convert_dtype(wide.view(), x.view());
  const Activated source{
      .x = x.view(), .activation = Activation::kSwiGlu, .layout = GateLayout::kHalves};
  for (const Granularity granularity : test::kGranularities) {
    const Format format{.dtype = DType::kE5M2, .granularity = granularity};
    Both both(kRows, kCols, format);
    cast(source, both.targets());
    ScaledMatrix alone(kCols, kRows, format);
    cast(source, {.transposed = alone.target()});
    expect_same(both.columns, alone);

    // With scales of one, codes are the values themselves, rounded: they agree across targets.
    std::ranges::fill(both.rows.scales(), 1.0f);
    std::ranges::fill(both.columns.scales(), 1.0f);
    cast(source, test::given(both.targets()));
    for (std::size_t i = 0; i < kRows * kCols; ++i) {
      ASSERT_EQ(both.rows.codes()[i], both.columns.codes()[i % kCols * kRows + i / kCols]);
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
    for (const bool back : {false, true}) {
      const std::int64_t cols = back ? values.cols() : gradient.cols();
      Both actual(rows(), cols, {.granularity = granularity});
      Both expected(rows(), cols, {.granularity = granularity});
      ActivationGradient backward{
          .gradient = gradient.view(), .x = x.view(), .activation = activation, .layout = layout};
      Activated forward{
          .x = x.view(), .activation = activation, .layout = layout, .dtype = values.dtype()};
      back ? cast(backward, actual.targets()) : cast(forward, actual.targets());
      backward.x = values.view();
      forward = {.x = values.view(), .activation = activation, .layout = layout};
      back ? cast(backward, expected.targets()) : cast(forward, expected.targets());
      expect_same(actual, expected);
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

class ActivationErrorsTest : public ActivationsTest {
 protected:
  std::string error_of_activated(auto&& spoil) {
    Activated source{.x = x_.view(),
                     .activation = Activation::kSwiGlu,
                     .layout = GateLayout::kHalves,
                     .dtype = DType::kFloat32};
    return error(source, out_, spoil);
  }
  std::string error_of_gradient(auto&& spoil) {
    ActivationGradient source{.gradient = gradient_.view(),
                              .x = x_.view(),
                              .activation = Activation::kSwiGlu,
                              .layout = GateLayout::kHalves};
    return error(source, of_x_, spoil);
  }
  static std::string error(auto source, ScaledMatrix& out, auto&& spoil) {
    CastTargets targets{.rows = out.target()};
    spoil(source, targets);
    return test::error_of([&] { cast(source, targets); });
  }
  ScaledTensorView codes_but(auto&& spoil) const {
    ScaledTensorView flawed = codes_.view();
    spoil(flawed);
    return flawed;
  }

  Matrix x_ = input(2 * kCols), odd_ = input(2 * kCols - 1), gradient_ = input(kCols);
  const Matrix of_e5m2_{DType::kE5M2, kRows, kCols}, of_bfloat16_{DType::kBFloat16, kRows, kCols};
  ScaledMatrix codes_{kRows, 2 * kCols}, out_ = cast_matrix(kRows, kCols),
                                         of_x_ = cast_matrix(kRows, 2 * kCols);
};

TEST_F(ActivationErrorsTest, OfActivationsNameTheArgument) {
  const auto refuses = test::refusing<Activated, CastTargets>(
      [this](auto&& spoil) { return error_of_activated(spoil); });
  refuses({
      {[&](auto& a, auto&) { a.x = odd_.view(); }, "'x': expected an even"},
      {[](auto& a, auto&) { a.activation = Activation::kSilu; }, "'out.rows': expected shape"},
      {[](auto& a, auto&) { a.activation = static_cast<Activation>(40); }, "'activation'"},
      {[](auto& a, auto&) { a.layout = static_cast<GateLayout>(7); }, "'layout'"},
      // Of x in FP8.
      {[&](auto& a, auto&) { a.x = codes_.view(), a.dtype = DType::kE4M3; },
       "'dtype': expected float32, float16"},
      {[&](auto& a, auto&) { a.x = codes_but([&](auto& x) { x.data = x_.view(); }); },
       "'x': expected dtype e4m3"},
      {[&](auto& a, auto&) { a.x = codes_but([](auto& x) { --x.scale.shape[1]; }); },
       "'x.scale': expected shape"},
      {[&](auto& a, auto&) { a.x = codes_but([](auto& x) { x.channel_scale = x.scale; }); },
       "'x.channel_scale': expected none"},
      {[&](auto& a, auto&) { a.x = codes_but([](auto& x) { --x.data.shape[1]; }); },
       "'x': expected an even"},
  });
}

TEST_F(ActivationErrorsTest, OfGradientsNameTheArgument) {
  const auto refuses = test::refusing<ActivationGradient, CastTargets>(
      [this](auto&& spoil) { return error_of_gradient(spoil); });
  refuses({
      {[&](auto& a, auto&) { a.gradient = x_.view(); }, "'gradient': expected shape"},
      {[&](auto& a, auto&) { a.gradient = of_bfloat16_.view(); },
       "'gradient': expected dtype float32"},
      {[&](auto&, auto& out) { out.rows = out_.target(); }, "'out.rows': expected shape"},
      {[](auto&, auto& out) { out = {}; }, "'out': expected rows, transposed or both"},
      // Codes over the gradient that they are worked out from.
      {[&](auto&, auto& out) { out.rows->data.data = gradient_.data(); }, "'out.rows'"},
      // Of x in FP8.
      {[&](auto& a, auto&) { a.x = codes_but([](auto& x) { --x.scale.shape[1]; }); }, "'x.scale'"},
      {[&](auto& a, auto&) { a.x = codes_.view(), a.gradient = x_.view(); },
       "'gradient': expected shape"},
      {[&](auto& a, auto&) { a.x = codes_.view(), a.gradient = of_e5m2_.view(); },
       "'gradient': expected dtype float32 or"},
      // Scales over those that are read.
      {[&](auto& a, auto& out) {
         a.x = codes_.view();
         out.rows->scale.data = codes_.scales().data();
       },
       "'out.rows.scale'"},
  });
}

}  // namespace
}  // namespace octofold
