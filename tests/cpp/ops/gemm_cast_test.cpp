// gemm() that casts its A, on the CPU: as the operations one after another, and bad arguments.
#include <array>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "octofold/cast.h"
#include "octofold/convert_dtype.h"
#include "octofold/error.h"
#include "octofold/gemm.h"
#include "octofold/scaled_matrix.h"
#include "octofold/tuning.h"

#include "support/error_of.h"
#include "support/granularities.h"
#include "support/matrix.h"
#include "support/random.h"
#include "support/targets.h"

namespace octofold {
namespace {

using test::Matrix;
using testing::HasSubstr;

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

// A valid problem that each test spoils in one place.
std::string error_of(const std::function<void(GemmArguments&, CastOperand&)>& spoil) {
  Matrix x(DType::kBFloat16, 5, 256), out(DType::kBFloat16, 5, 300), bias(DType::kFloat32, 1, 300);
  ScaledMatrix b(300, 256, {.granularity = Granularity::kBlock128x128});
  CastOperand a{x.view()};
  GemmArguments arguments{.a = a, .b = b.view(), .out = out.view(), .bias = bias.row_vector()};
  spoil(arguments, a);
  arguments.a = a;
  return test::error_of([&] { gemm(arguments); });
}

TEST(GemmCastArgumentsTest, EachErrorNamesItsArgument) {
  EXPECT_EQ(error_of([](auto&, auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto&, auto& a) { a.data.dtype = DType::kE4M3; }),
            "gemm: argument 'a': expected dtype float32 or float16 or bfloat16, got e4m3");
  EXPECT_THAT(error_of([](auto&, auto& a) { a.data.strides[1] = 2; }), HasSubstr("argument 'a'"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.data.rank = 1; }), HasSubstr("argument 'a'"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.data.shape[1] = 128; }),
              HasSubstr("argument 'b': expected K = 128 columns as in 'a', got 256"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.b.data.dtype = DType::kBFloat16; }),
              HasSubstr("argument 'b': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.b.scale.shape[0] = 1; }),
              HasSubstr("argument 'b.scale': expected shape"));
  const std::vector<float> factors(300, 1.0f);
  EXPECT_THAT(error_of([&](auto& d, auto&) {
                d.b.channel_scale = vector(factors.data(), DType::kFloat32, 300);
              }),
              HasSubstr("argument 'b.channel_scale': expected none"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.b.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("argument 'b"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.out.shape[1] = 299; }),
              HasSubstr("argument 'out': expected shape [5, 300]"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.out.dtype = DType::kE4M3; }),
              HasSubstr("argument 'out': expected dtype bfloat16 or float16 or float32"));
  EXPECT_THAT(error_of([](auto& d, auto& a) { d.out.data = const_cast<void*>(a.data.data); }),
              HasSubstr("argument 'out'"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.out.data = const_cast<void*>(d.b.data.data); }),
              HasSubstr("argument 'out'"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.bias->shape[0] = 5; }),
              HasSubstr("argument 'bias': expected shape [300]"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.bias->dtype = DType::kFloat16; }),
              HasSubstr("argument 'bias': expected dtype bfloat16 or float32"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.format.dtype = DType::kFloat16; }),
              HasSubstr("argument 'dtype': expected dtype e4m3 or e5m2, got float16"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.format.rule = static_cast<Rule>(99); }),
              HasSubstr("argument 'rule'"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.format.overflow = static_cast<Overflow>(9); }),
              HasSubstr("argument 'overflow'"));
  EXPECT_THAT(error_of([](auto&, auto& a) { a.format.granularity = Granularity::kChannel; }),
              HasSubstr("argument 'granularity': expected 1x128"));
}

TEST(GemmCastArgumentsTest, CAndFastAccumulationAreNotForIt) {
  Matrix c(DType::kBFloat16, 5, 300);
  EXPECT_THAT(error_of([&](auto& d, auto&) { d.c = c.view(); }),
              HasSubstr("argument 'c': expected none beside an 'a' that is cast"));
  EXPECT_THAT(error_of([](auto& d, auto&) { d.fast_accumulation = true; }),
              HasSubstr("argument 'fast_accumulation'"));
}

TEST(GemmCastArgumentsTest, TheCpuHasNoCandidates) {
  Matrix x(DType::kBFloat16, 5, 256), out(DType::kBFloat16, 5, 300);
  ScaledMatrix b(300, 256, {.granularity = Granularity::kBlock128x128});
  const auto names = product_candidates({.cast_from = DType::kBFloat16});
  ASSERT_FALSE(names.empty());
  EXPECT_THAT(test::error_of([&] {
                gemm({.a = CastOperand{x.view()},
                      .b = b.view(),
                      .out = out.view(),
                      .candidate = names.front()});
              }),
              HasSubstr("argument 'candidate': expected none for tensors on the CPU"));
}

}  // namespace
}  // namespace octofold
