// Gated products, and gemm() that casts its A, on the CPU: by definition, as the operations one
// after another, and bad arguments.
#include "octofold/cast.h"
#include "octofold/octofold.h"

#include "support/granularities.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::Matrix;

constexpr std::array kActivations{Activation::kSwiGlu, Activation::kGeGluTanh,
                                  Activation::kGeGluErf, Activation::kSwiGluOss};

double curve(Activation activation, double x) {
  if (activation == Activation::kSwiGlu) return x / (1 + std::exp(-x));
  if (activation == Activation::kSwiGluOss) {
    x = std::min(x, 7.0);
    return x / (1 + std::exp(-1.702 * x));
  }
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
    ScaledMatrix out(kM, kN);
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
        // Half a step of FP8; and gate, up and the result are rounded to BF16, to 2^-8 each, where
        // no activation is steeper than 1.2.
        const bool is_oss = activation == Activation::kSwiGluOss;
        const double factor = is_oss ? std::clamp(up, -7.0, 7.0) + 1 : up;
        const double value = curve(activation, gate) * factor;
        const double scale = double{out.scales()[as_size(row * 2 + col / 128)]};
        const double step = std::max(std::abs(value) / 16, scale / 1024);
        const double of_up = std::abs(curve(activation, gate) * up);
        const double rounded = 0x1.1p-8 * (1.2 * std::abs(gate * factor) + of_up + std::abs(value));
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
  const ScaledMatrix a(3, 0), b(256, 0, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(3, 128);
  std::ranges::fill(out.codes(), std::uint8_t{0x38});
  gated_gemm({.a = a.view(), .b = b.view(), .out = out.target()});
  EXPECT_TRUE(std::ranges::all_of(out.codes(), [](std::uint8_t code) { return code == 0; }));
}

TEST(GatedGemmTest, NanAndInfinityAreHandedOn) {
  ScaledMatrix a(3, 128), b(256, 128, {.granularity = Granularity::kBlock128x128}), out(3, 128);
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

TEST(GatedGemmArgumentsTest, EachErrorNamesItsArgument) {
  const ScaledMatrix a(5, 256), b(400, 256, {.granularity = Granularity::kBlock128x128});
  ScaledMatrix out(5, 200);
  std::vector<std::int32_t> offsets{0, 5};
  const auto refuses = test::refusing<GatedGemmArguments>([&](auto&& spoil) {
    GatedGemmArguments arguments{.a = a.view(), .b = b.view(), .out = out.target()};
    spoil(arguments);
    return test::error_of([&] { gated_gemm(arguments); });
  });
  refuses({
      {[](auto& g) { g.activation = Activation::kSilu; },
       "gated_gemm: argument 'activation': expected one of swiglu, geglu-tanh, geglu, swiglu-oss, "
       "which take "
       "gate and up, got silu"},
      {[](auto& g) { g.activation = static_cast<Activation>(77); }, "argument 'activation'"},
      {[](auto& g) { g.a.data.dtype = DType::kBFloat16; },
       "argument 'a': expected dtype e4m3 or e5m2"},
      {[](auto& g) {
         g.a.granularity = Granularity::kTensor;
         g.a.scale.shape = {1, 1};
       },
       "argument 'a': expected scales of granularity 1x128, got tensor"},
      {[](auto& g) {
         g.b.granularity = Granularity::kTensor;
         g.b.scale.shape = {1, 1};
       },
       "argument 'b': expected scales of granularity 128x128, got tensor"},
      {[](auto& g) { g.b.data.shape[0] = 399; }, "argument 'b': expected an even number of rows"},
      {[](auto& g) {
         g.b.data.shape[1] = 128;
         g.b.scale.shape[1] = 1;
       },
       "argument 'b': expected K = 256 columns as in 'a', got 128"},
      {[](auto& g) { g.out.data.shape[1] = 400; }, "argument 'out': expected shape [5, 200]"},
      {[](auto& g) { g.out.data.dtype = DType::kFloat16; },
       "argument 'out': expected dtype e4m3 or e5m2"},
      {[](auto& g) { g.out.scale.shape[1] = 1; }, "argument 'out.scale': expected shape"},
      {[](auto& g) {
         g.out.format.granularity = Granularity::kTensor;
         g.out.scale.shape = {1, 1};
       },
       "argument 'out': expected scales of granularity 1x128"},
      {[](auto& g) { g.out.data.data = const_cast<void*>(g.b.data.data); }, "argument 'out'"},
      {[&](auto& g) {
         g.b.data = {g.b.data.data, DType::kE4M3, 3, {1, 400, 256}, {400 * 256, 256, 1}};
         g.b.scale = {g.b.scale.data, DType::kFloat32, 3, {1, 4, 2}, {8, 2, 1}};
         g.groups = RowGroups{vector<const void>(offsets.data(), DType::kInt32, 2)};
         g.out.scale.data = offsets.data();
       },
       "argument 'out.scale': expected memory of its own, apart from 'groups.offsets'"},
      {[](auto& g) { g.out.data.device = {DeviceType::kCuda, 0}; }, "argument 'out"},
      {[](auto& g) { g.out.format.rule = static_cast<Rule>(99); }, "argument 'rule'"},
      {[](auto& g) { g.out.scales = ScaleSource::kGiven; }, "argument 'out.scales'"},
  });
}

Matrix rounded(test::Random& random, DType dtype, std::int64_t rows, std::int64_t cols) {
  const Matrix values = test::random_matrix(random, rows, cols);
  Matrix result(dtype, rows, cols, 8);
  convert_dtype(values.view(), result.view());
  return result;
}

// The reference goes through the rows in bands.
TEST(GemmCastTest, IsTheCastAndTheProduct) {
  test::Random random;
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {5, 128, 128}, {130, 200, 300}, {1100, 17, 130}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Granularity granularity : test::kGranularities) {
        const bool other = granularity == Granularity::kChannel;
        const Format format{.dtype = other ? DType::kE5M2 : DType::kE4M3,
                            .rule = other ? Rule::kVllm : Rule::kDeepGemm,
                            .power_of_two = granularity == Granularity::kTensor,
                            .overflow = other ? Overflow::kNan : Overflow::kSaturate};
        const DType out = other ? DType::kFloat32 : DType::kBFloat16;
        const Matrix x = rounded(random, dtype, m, k), w = rounded(random, dtype, n, k);
        const Matrix bias = rounded(random, DType::kFloat32, 1, n);
        ScaledMatrix a(m, k, format), b(n, k, {.granularity = granularity});
        cast(x.view(), {.rows = a.target()});
        cast(w.view(), {.rows = b.target()});
        Matrix expected(out, m, n), result(out, m, n, 3);
        gemm({.a = a.view(), .b = b.view(), .out = expected.view(), .bias = bias.row_vector()});
        gemm({.a = CastOperand{x.view(), format},
              .b = b.view(),
              .out = result.view(),
              .bias = bias.row_vector()});
        EXPECT_TRUE(result.padding_is_untouched());
        for (std::int64_t row = 0; row < m; ++row) {
          for (std::int64_t col = 0; col < n; ++col) {
            ASSERT_EQ(result.at(row, col), expected.at(row, col))
                << name(dtype) << " " << name(granularity) << " " << m << "×" << n << "×" << k;
          }
        }
      }
    }
  }
}

TEST(GemmCastTest, WithoutKThereIsTheBias) {
  Matrix x(DType::kBFloat16, 3, 0), out(DType::kFloat32, 3, 2), bias(DType::kFloat32, 1, 2);
  bias.float_at(0, 0) = 5, bias.float_at(0, 1) = -7;
  ScaledMatrix b(2, 0, {.granularity = Granularity::kBlock128x128});
  gemm({.a = CastOperand{x.view()}, .b = b.view(), .out = out.view(), .bias = bias.row_vector()});
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(out.at(row, 0), 5);
    EXPECT_EQ(out.at(row, 1), -7);
  }
}

TEST(GemmCastTest, NanAndInfinityAreHandedOn) {
  Matrix x(DType::kFloat32, 3, 128), out(DType::kFloat32, 3, 1);
  for (int row = 0; row < 3; ++row) {
    for (int col = 0; col < 128; ++col) x.float_at(row, col) = 1;
  }
  x.float_at(1, 7) = NAN, x.float_at(2, 7) = INFINITY;
  ScaledMatrix b(1, 128, {.granularity = Granularity::kBlock128x128});
  for (std::uint8_t& code : b.codes()) code = 0x38;  // 1
  b.scales()[0] = 1;
  gemm({.a = CastOperand{x.view()}, .b = b.view(), .out = out.view()});
  EXPECT_NEAR(out.at(0, 0), 128, 0.01);
  EXPECT_TRUE(std::isnan(out.at(1, 0)));
  EXPECT_TRUE(std::isnan(out.at(2, 0)));
}

TEST(GemmCastArgumentsTest, EachErrorNamesItsArgument) {
  const Matrix x(DType::kBFloat16, 5, 256), c(DType::kBFloat16, 5, 300);
  Matrix out(DType::kBFloat16, 5, 300), bias(DType::kFloat32, 1, 300);
  const ScaledMatrix b(300, 256, {.granularity = Granularity::kBlock128x128});
  const std::vector<float> factors(300, 1.0f);
  const auto refuses = test::refusing<GemmArguments, CastOperand>([&](auto&& spoil) {
    CastOperand a{x.view()};
    GemmArguments arguments{.a = a, .b = b.view(), .out = out.view(), .bias = bias.row_vector()};
    spoil(arguments, a);
    arguments.a = a;
    return test::error_of([&] { gemm(arguments); });
  });
  refuses({
      {[](auto&, auto& a) { a.data.dtype = DType::kE4M3; },
       "gemm: argument 'a': expected dtype float32 or float16 or bfloat16, got e4m3"},
      {[](auto&, auto& a) { a.data.strides[1] = 2; }, "argument 'a'"},
      {[](auto&, auto& a) { a.data.rank = 1; }, "argument 'a'"},
      {[](auto&, auto& a) { a.data.shape[1] = 128; },
       "argument 'b': expected K = 128 columns as in 'a', got 256"},
      {[](auto& d, auto&) { d.b.data.dtype = DType::kBFloat16; },
       "argument 'b': expected dtype e4m3 or e5m2"},
      {[](auto& d, auto&) { d.b.scale.shape[0] = 1; }, "argument 'b.scale': expected shape"},
      {[&](auto& d, auto&) { d.b.channel_scale = vector(factors.data(), DType::kFloat32, 300); },
       "argument 'b.channel_scale': expected none"},
      {[](auto& d, auto&) { d.b.data.device = {DeviceType::kCuda, 0}; }, "argument 'b"},
      {[](auto& d, auto&) { d.out.shape[1] = 299; }, "argument 'out': expected shape [5, 300]"},
      {[](auto& d, auto&) { d.out.dtype = DType::kE4M3; },
       "argument 'out': expected dtype bfloat16 or float16 or float32"},
      {[](auto& d, auto& a) { d.out.data = const_cast<void*>(a.data.data); }, "argument 'out'"},
      {[](auto& d, auto&) { d.out.data = const_cast<void*>(d.b.data.data); }, "argument 'out'"},
      {[](auto& d, auto&) { d.bias->shape[0] = 5; }, "argument 'bias': expected shape [300]"},
      {[](auto& d, auto&) { d.bias->dtype = DType::kFloat16; },
       "argument 'bias': expected dtype bfloat16 or float32"},
      {[](auto&, auto& a) { a.format.dtype = DType::kFloat16; },
       "argument 'dtype': expected dtype e4m3 or e5m2, got float16"},
      {[](auto&, auto& a) { a.format.rule = static_cast<Rule>(99); }, "argument 'rule'"},
      {[](auto&, auto& a) { a.format.overflow = static_cast<Overflow>(9); }, "argument 'overflow'"},
      {[](auto&, auto& a) { a.format.granularity = Granularity::kChannel; },
       "argument 'granularity': expected 1x128"},
      {[&](auto& d, auto&) { d.c = c.view(); },
       "argument 'c': expected none beside an 'a' that is cast"},
      {[](auto& d, auto&) { d.fast_accumulation = true; }, "argument 'fast_accumulation'"},
  });
}

// Candidates of the GPU's are none of the CPU's.
TEST(FusedGemmArgumentsTest, TheCpuHasNoCandidates) {
  const Matrix x(DType::kBFloat16, 5, 256);
  const ScaledMatrix a(5, 256), b(256, 256, {.granularity = Granularity::kBlock128x128});
  Matrix out(DType::kBFloat16, 5, 256);
  ScaledMatrix h(5, 128);
  ProductProblem gated{.gated = Activation::kSwiGlu}, of_cast{.cast_from = DType::kBFloat16};
  gated.product.form.out = DType::kE4M3;
  const std::string error_of_gated = test::error_of([&] {
    gated_gemm({.a = a.view(),
                .b = b.view(),
                .out = h.target(),
                .candidate = product_candidates(gated).at(0)});
  });
  const std::string error_of_cast = test::error_of([&] {
    gemm({.a = CastOperand{x.view()},
          .b = b.view(),
          .out = out.view(),
          .candidate = product_candidates(of_cast).at(0)});
  });
  for (const std::string& error : {error_of_gated, error_of_cast}) {
    EXPECT_THAT(error, HasSubstr("argument 'candidate': expected none for tensors on the CPU"));
  }
}

}  // namespace
}  // namespace octofold
