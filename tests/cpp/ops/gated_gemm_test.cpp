// Gated products on the CPU: by definition, as the operations one after another, and bad arguments.
#include "octofold/gated_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numbers>
#include <string>
#include <vector>

#include "octofold/cast.h"
#include "octofold/dequantize.h"
#include "octofold/error.h"
#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"
#include "octofold/tuning.h"

#include "support/error_of.h"
#include "support/matrix.h"
#include "support/random.h"

namespace octofold {
namespace {

using test::Matrix;
using testing::HasSubstr;

constexpr std::array kActivations{Activation::kSwiGlu, Activation::kGeGluTanh,
                                  Activation::kGeGluErf};

double curve(Activation activation, double x) {
  if (activation == Activation::kSwiGlu) return x / (1 + std::exp(-x));
  if (activation == Activation::kGeGluErf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * std::pow(x, 3))));
}

// a and b of a product whose gates and ups are about 1.
struct Operands {
  ScaledMatrix a, b;

  Operands(std::mt19937& random, std::int64_t m, std::int64_t n, std::int64_t k)
      : a(m, k), b(2 * n, k, {.dtype = DType::kE5M2, .granularity = Granularity::kBlock128x128}) {
    Matrix x(DType::kFloat32, m, k), w(DType::kFloat32, 2 * n, k);
    std::normal_distribution<float> normal;
    for (std::int64_t col = 0; col < k; ++col) {
      for (std::int64_t row = 0; row < m; ++row) x.float_at(row, col) = normal(random);
      for (std::int64_t row = 0; row < 2 * n; ++row) {
        w.float_at(row, col) = normal(random) / std::sqrt(static_cast<float>(k));
      }
    }
    cast(x.view(), {.rows = a.target()});
    cast(w.view(), {.rows = b.target()});
  }
};

Matrix dequantized(const ScaledMatrix& matrix) {
  Matrix values(DType::kFloat32, matrix.rows(), matrix.cols());
  dequantize(matrix.view(), values.view());
  return values;
}

TEST(GatedGemmTest, IsAsItIsDefined) {
  test::Random random;
  constexpr std::int64_t kM = 37, kN = 200, kK = 300;
  Operands operands(random, kM, kN, kK);
  const Matrix a = dequantized(operands.a), b = dequantized(operands.b);
  for (const Activation activation : kActivations) {
    SCOPED_TRACE(name(activation));
    ScaledMatrix out(kM, kN, {.granularity = Granularity::kBlock1x128});
    gated_gemm({.a = operands.a.view(),
                .b = operands.b.view(),
                .out = out.target(),
                .activation = activation});
    const Matrix values = dequantized(out);
    for (std::int64_t row = 0; row < kM; ++row) {
      for (std::int64_t col = 0; col < kN; ++col) {
        double gate = 0, up = 0;
        for (std::int64_t k = 0; k < kK; ++k) {
          gate += a.at(row, k) * b.at(col, k);
          up += a.at(row, k) * b.at(kN + col, k);
        }
        // Half a step of FP8; and gate, up and the result are rounded to BF16, to 2^-9 each, where
        // no activation is steeper than 1.2.
        const double value = curve(activation, gate) * up;
        const double scale = double{out.scales()[static_cast<std::size_t>(row * 2 + col / 128)]};
        const double step = std::max(std::abs(value) / 16, scale / 1024);
        const double rounded = 0x1.1p-9 * (1.2 * std::abs(gate * up) + 2 * std::abs(value));
        ASSERT_NEAR(values.at(row, col), value, step + rounded) << row << ", " << col;
      }
    }
  }
}

// The reference goes through the rows in bands.
TEST(GatedGemmTest, IsTheProductAndTheCastOfItsActivation) {
  test::Random random;
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {5, 128, 128}, {130, 200, 300}, {1025, 64, 130}}) {
    Operands operands(random, m, n, k);
    for (const Activation activation : kActivations) {
      const Format format{.dtype = DType::kE5M2,
                          .rule = Rule::kVllm,
                          .power_of_two = activation == Activation::kSwiGlu,
                          .overflow = Overflow::kNan};
      ScaledMatrix fused(m, n, format);
      gated_gemm({.a = operands.a.view(),
                  .b = operands.b.view(),
                  .out = fused.target(),
                  .activation = activation});
      Matrix both(DType::kBFloat16, m, 2 * n);
      gemm({.a = operands.a.view(), .b = operands.b.view(), .out = both.view()});
      ScaledMatrix expected(m, n, format);
      cast(Activated{.x = both.view(), .activation = activation, .layout = GateLayout::kHalves},
           {.rows = expected.target()});
      EXPECT_TRUE(std::ranges::equal(fused.codes(), expected.codes())) << m << "×" << n << "×" << k;
      EXPECT_TRUE(std::ranges::equal(fused.scales(), expected.scales()));
    }
  }
}

TEST(GatedGemmTest, WithoutKThereIsStillAResult) {
  ScaledMatrix a(3, 0, {.granularity = Granularity::kBlock1x128}),
      b(256, 0, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(3, 128, {.granularity = Granularity::kBlock1x128});
  std::ranges::fill(out.codes(), std::uint8_t{0x38});
  gated_gemm({.a = a.view(), .b = b.view(), .out = out.target()});
  EXPECT_TRUE(std::ranges::all_of(out.codes(), [](std::uint8_t code) { return code == 0; }));
}

TEST(GatedGemmTest, NanAndInfinityAreHandedOn) {
  ScaledMatrix a(3, 128, {.granularity = Granularity::kBlock1x128}),
      b(256, 128, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(3, 128, {.granularity = Granularity::kBlock1x128});
  std::ranges::fill(a.codes(), std::uint8_t{0x38});  // 1
  std::ranges::fill(b.codes(), std::uint8_t{0x38});
  a.scales()[0] = 1, a.scales()[1] = NAN, a.scales()[2] = INFINITY;
  std::ranges::fill(b.scales(), 1.0f);
  gated_gemm({.a = a.view(), .b = b.view(), .out = out.target()});
  EXPECT_NEAR(out.scales()[0] * 448, 128.0 * 128, 1);
  EXPECT_EQ(out.codes()[0], 0x7E);
  EXPECT_EQ(out.codes()[128], 0x7F);  // NaN
  EXPECT_EQ(out.codes()[256], 0x7F);  // infinity, over the infinite scale that it makes
}

// A valid problem that each test spoils in one place.
std::string error_of(const std::function<void(GatedGemmArguments&)>& spoil) {
  ScaledMatrix a(5, 256, {.granularity = Granularity::kBlock1x128}),
      b(400, 256, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(5, 200, {.granularity = Granularity::kBlock1x128});
  GatedGemmArguments arguments{.a = a.view(), .b = b.view(), .out = out.target()};
  spoil(arguments);
  return test::error_of([&] { gated_gemm(arguments); });
}

TEST(GatedGemmArgumentsTest, EachErrorNamesItsArgument) {
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& g) { g.activation = Activation::kSilu; }),
            "gated_gemm: argument 'activation': expected one of swiglu, geglu-tanh, geglu, which "
            "take gate and up, got silu");
  EXPECT_THAT(error_of([](auto& g) { g.activation = static_cast<Activation>(77); }),
              HasSubstr("argument 'activation'"));
  EXPECT_THAT(error_of([](auto& g) { g.a.data.dtype = DType::kBFloat16; }),
              HasSubstr("argument 'a': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error_of([](auto& g) {
                g.a.granularity = Granularity::kTensor;
                g.a.scale.shape = {1, 1};
              }),
              HasSubstr("argument 'a': expected scales of granularity 1x128, got tensor"));
  EXPECT_THAT(error_of([](auto& g) {
                g.b.granularity = Granularity::kTensor;
                g.b.scale.shape = {1, 1};
              }),
              HasSubstr("argument 'b': expected scales of granularity 128x128, got tensor"));
  EXPECT_THAT(error_of([](auto& g) { g.b.data.shape[0] = 399; }),
              HasSubstr("argument 'b': expected an even number of rows"));
  EXPECT_THAT(error_of([](auto& g) {
                g.b.data.shape[1] = 128;
                g.b.scale.shape[1] = 1;
              }),
              HasSubstr("argument 'b': expected K = 256 columns as in 'a', got 128"));
  EXPECT_THAT(error_of([](auto& g) { g.out.data.shape[1] = 400; }),
              HasSubstr("argument 'out': expected shape [5, 200]"));
  EXPECT_THAT(error_of([](auto& g) { g.out.data.dtype = DType::kFloat16; }),
              HasSubstr("argument 'out': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error_of([](auto& g) { g.out.scale.shape[1] = 1; }),
              HasSubstr("argument 'out.scale': expected shape"));
  EXPECT_THAT(error_of([](auto& g) {
                g.out.format.granularity = Granularity::kTensor;
                g.out.scale.shape = {1, 1};
              }),
              HasSubstr("argument 'out': expected scales of granularity 1x128"));
  EXPECT_THAT(error_of([](auto& g) { g.out.data.data = const_cast<void*>(g.b.data.data); }),
              HasSubstr("argument 'out'"));
  EXPECT_THAT(error_of([](auto& g) { g.out.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("argument 'out"));
  EXPECT_THAT(error_of([](auto& g) { g.out.format.rule = static_cast<Rule>(99); }),
              HasSubstr("argument 'rule'"));
  EXPECT_THAT(error_of([](auto& g) { g.out.scales = ScaleSource::kGiven; }),
              HasSubstr("argument 'out.scales'"));
}

TEST(GatedGemmArgumentsTest, TheCpuHasNoCandidates) {
  ScaledMatrix a(5, 256, {.granularity = Granularity::kBlock1x128}),
      b(256, 256, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(5, 128, {.granularity = Granularity::kBlock1x128});
  ProductProblem problem{.gated = Activation::kSwiGlu};
  problem.product.form.out = DType::kE4M3;
  const auto names = product_candidates(problem);
  ASSERT_FALSE(names.empty());
  EXPECT_THAT(
      test::error_of([&] {
        gated_gemm({.a = a.view(), .b = b.view(), .out = out.target(), .candidate = names.front()});
      }),
      HasSubstr("argument 'candidate': expected none for tensors on the CPU"));
}

}  // namespace
}  // namespace octofold
