// Products of FP8 weights and a few rows of every type on the CPU, against FP64; and bad arguments.
#include <array>
#include <cmath>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "octofold/octofold.h"

#include "support/error_of.h"
#include "support/granularities.h"
#include "support/judge.h"
#include "support/matrix.h"
#include "support/operand.h"
#include "support/random.h"

namespace octofold {
namespace {

using test::Matrix;
using testing::HasSubstr;

using test::kGranularities;

// Calls gemm_weight_only() and judges every element; `x_at` is what x is worth.
template <typename At>
void expect_product(test::Operand& w, const DotOperand& x, DType dtype, At&& x_at) {
  const std::int64_t rows = x.data.shape[0];
  const auto product = [&] {
    Matrix out(dtype, rows, w.rows, 3);
    gemm_weight_only({.x = x, .w = w.target(), .out = out.view()});
    return out;
  };
  const Matrix out = product();
  const std::vector<double> weights = w.dequantized();
  test::Judge judge(dtype);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < w.rows; ++j) {
      double expected = 0, terms = 0;
      for (std::int64_t k = 0; k < w.cols; ++k) {
        const double term = x_at(i, k) * weights[static_cast<std::size_t>(j * w.cols + k)];
        expected += term;
        terms += std::abs(term);
      }
      judge.see(out.at(i, j), expected, terms);
    }
  }
  EXPECT_EQ(judge.verdict(), "") << name(w.codes.dtype()) << " " << name(w.granularity) << ", "
                                 << name(x.data.dtype) << ", " << rows << " rows";
  EXPECT_TRUE(out.padding_is_untouched());
  EXPECT_EQ(out.bytes(), product().bytes()) << "the same input gave other bits";
}

constexpr std::array<std::array<std::int64_t, 3>, 5> kSizes{
    {{1, 1, 1}, {1, 300, 300}, {3, 129, 128}, {16, 20, 260}, {2, 5, 0}}};

TEST(GemmWeightOnlyVectorsTest, OfNumbersAsTheyAre) {
  test::Random random;
  for (const auto& [rows, n, k] : kSizes) {
    for (const Granularity granularity : kGranularities) {
      for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        const DType w_type = type == DType::kFloat16 ? DType::kE5M2 : DType::kE4M3;
        test::Operand w(random, w_type, granularity, n, k, 5, false);
        const Matrix x = test::random_addend(random, type, rows, k, 3);
        expect_product(w, {.data = x.view()}, type,
                       [&](std::int64_t i, std::int64_t j) { return x.at(i, j); });
      }
    }
  }
}

TEST(GemmWeightOnlyVectorsTest, OfCodesOfAnyGranularities) {
  test::Random random;
  for (const auto& [rows, n, k] : kSizes) {
    for (const Granularity w_granularity : kGranularities) {
      for (const Granularity x_granularity : kGranularities) {
        test::Operand w(random, DType::kE4M3, w_granularity, n, k, 0, false);
        test::Operand x(random, DType::kE5M2, x_granularity, rows, k, 7, false);
        const ScaledTensorView view = x.target();
        expect_product(w, {view.data, view.scale, view.granularity}, DType::kFloat32,
                       [&](std::int64_t i, std::int64_t j) { return x.at(i, j); });
      }
    }
  }
}

TEST(GemmWeightOnlyVectorsTest, OfCodesWithoutScales) {
  test::Random random;
  test::Operand w(random, DType::kE4M3, Granularity::kBlock128x128, 200, 140, 0, false);
  test::Operand x(random, DType::kE4M3, Granularity::kTensor, 2, 140, 0, false);
  expect_product(w, {.data = x.codes.view()}, DType::kBFloat16,
                 [&](std::int64_t i, std::int64_t j) { return x.codes.at(i, j); });
}

TEST(GemmWeightOnlyVectorsTest, LeadingDimensionsAreCountedTogether) {
  test::Random random;
  test::Operand w(random, DType::kE4M3, Granularity::kBlock1x128, 40, 200, 0, false);
  test::Operand x(random, DType::kE4M3, Granularity::kBlock1x128, 6, 200, 0, false);
  Matrix expected(DType::kFloat32, 6, 40), out(DType::kFloat32, 6, 40);
  const ScaledTensorView flat = x.target();
  gemm_weight_only(
      {.x = {flat.data, flat.scale, flat.granularity}, .w = w.target(), .out = expected.view()});

  const auto stacked = [](auto view, std::int64_t columns) {
    view.rank = 3;
    view.shape = {2, 3, columns};
    view.strides = {3 * columns, columns, 1};
    return view;
  };
  gemm_weight_only({.x = {stacked(flat.data, 200), stacked(flat.scale, 2), flat.granularity},
                    .w = w.target(),
                    .out = stacked(out.view(), 40)});
  EXPECT_EQ(out.bytes(), expected.bytes());

  const Matrix one = test::random_addend(random, DType::kFloat16, 1, 200, 0);
  Matrix row(DType::kFloat32, 1, 40), vector(DType::kFloat32, 1, 40);
  gemm_weight_only({.x = {.data = one.view()}, .w = w.target(), .out = row.view()});
  gemm_weight_only({.x = {.data = one.row_vector()}, .w = w.target(), .out = vector.row_vector()});
  EXPECT_EQ(vector.bytes(), row.bytes());
}

TEST(GemmWeightOnlyVectorsTest, RowsOfXMayLieAnywhere) {
  test::Random random;
  test::Operand w(random, DType::kE4M3, Granularity::kTensor, 40, 200, 0, false);
  const Matrix x = test::random_addend(random, DType::kFloat16, 1, 200, 0);
  expect_product(w, {.data = matrix(x.data(), DType::kFloat16, 5, 200, 0)}, DType::kFloat32,
                 [&](std::int64_t, std::int64_t j) { return x.at(0, j); });
}

// Where an FP32 sum of all stays at the first.
TEST(GemmWeightOnlyVectorsTest, AddsBlocksInFp64ButThoseOf16BitsInFp32) {
  constexpr std::int64_t kBlocks = 33;
  ScaledMatrix w(1, kBlocks * 128, {.granularity = Granularity::kBlock1x128});
  Matrix x(DType::kFloat32, 1, kBlocks * 128), out(DType::kFloat32, 1, 1);
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    w.scales()[static_cast<std::size_t>(block)] = block == 0 ? 0x1p25f : 1;
    for (std::int64_t i = 0; i < 128; ++i) x.float_at(0, block * 128 + i) = i == 0 ? 1 : 0;
    w.codes()[static_cast<std::size_t>(block * 128)] = 0x38;  // 1
  }
  gemm_weight_only({.x = {.data = x.view()}, .w = w.view(), .out = out.view()});
  EXPECT_EQ(out.at(0, 0), 0x1p25 + kBlocks - 1);
  Matrix half(DType::kFloat16, 1, kBlocks * 128);
  convert_dtype(x.view(), half.view());
  gemm_weight_only({.x = {.data = half.view()}, .w = w.view(), .out = out.view()});
  EXPECT_EQ(out.at(0, 0), 0x1p25);
}

TEST(GemmWeightOnlyVectorsTest, NothingIsDoneForNothing) {
  ScaledMatrix w(4, 8, {.granularity = Granularity::kTensor}),
      without_rows(0, 8, {.granularity = Granularity::kBlock128x128});
  Matrix x(DType::kFloat32, 2, 8), out(DType::kFloat32, 2, 4);
  gemm_weight_only({.x = {.data = matrix(x.data(), DType::kFloat32, 0, 8)},
                    .w = w.view(),
                    .out = matrix(out.data(), DType::kFloat32, 0, 4)});
  gemm_weight_only({.x = {.data = x.view()},
                    .w = without_rows.view(),
                    .out = matrix(out.data(), DType::kFloat32, 2, 0)});
  EXPECT_EQ(out.bytes(), Matrix(DType::kFloat32, 2, 4).bytes());
}

// A scale of what is not there is not looked at.
TEST(GemmWeightOnlyVectorsTest, WithoutDepthTheSumIsZero) {
  ScaledMatrix w(3, 0, {.granularity = Granularity::kTensor});
  w.scales()[0] = std::numeric_limits<float>::quiet_NaN();
  Matrix x(DType::kFloat32, 2, 0), out(DType::kBFloat16, 2, 3);
  gemm_weight_only({.x = {.data = x.view()}, .w = w.view(), .out = out.view()});
  for (int row = 0; row < 2; ++row) {
    for (int col = 0; col < 3; ++col) EXPECT_EQ(out.at(row, col), 0);
  }
}

TEST(GemmWeightOnlyVectorsTest, NanStaysInItsRow) {
  test::Random random;
  test::Operand w(random, DType::kE5M2, Granularity::kBlock128x128, 50, 300, 0, false);
  static_cast<std::uint8_t*>(w.codes.data())[31 * 300 + 222] = 0x7F;
  const Matrix x = test::random_addend(random, DType::kBFloat16, 2, 300, 0);
  Matrix out(DType::kFloat32, 2, 50);
  gemm_weight_only({.x = {.data = x.view()}, .w = w.target(), .out = out.view()});
  for (int row = 0; row < 2; ++row) {
    for (int col = 0; col < 50; ++col) EXPECT_EQ(std::isnan(out.at(row, col)), col == 31);
  }
}

// A valid problem that each test spoils in one place.
std::string error_of(auto&& spoil) {
  ScaledMatrix w(300, 256, {.granularity = Granularity::kBlock128x128}),
      x(5, 256, {.granularity = Granularity::kBlock1x128});
  Matrix out(DType::kBFloat16, 5, 300);
  const ScaledTensorView vectors = x.view();
  GemmWeightOnlyArguments arguments{
      .x = {vectors.data, vectors.scale, vectors.granularity}, .w = w.view(), .out = out.view()};
  spoil(arguments);
  return test::error_of([&] { gemm_weight_only(arguments); });
}

TEST(GemmWeightOnlyVectorsArgumentsTest, EachErrorNamesItsArgument) {
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& d) {
              d.x.scale.reset();
              d.x.data.shape[1] = 128;
            }),
            "gemm_weight_only: argument 'x': expected K = 256 columns as in 'w', got 128");
  EXPECT_THAT(error_of([](auto& d) { d.w.data.dtype = DType::kFloat16; }),
              HasSubstr("argument 'w': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error_of([](auto& d) { d.w.data.strides[1] = 2; }),
              HasSubstr("argument 'w': expected contiguous columns"));
  EXPECT_THAT(error_of([](auto& d) { d.w.data.rank = 1; }), HasSubstr("argument 'w'"));
  EXPECT_THAT(error_of([](auto& d) { d.w.scale.shape[0] = 1; }),
              HasSubstr("argument 'w.scale': expected shape [3, 2]"));
  EXPECT_THAT(error_of([](auto& d) { d.w.granularity = static_cast<Granularity>(9); }),
              HasSubstr("argument 'w.granularity'"));
  const std::vector<float> factors(300, 1.0f);
  EXPECT_THAT(
      error_of([&](auto& d) { d.w.channel_scale = vector(factors.data(), DType::kFloat32, 300); }),
      HasSubstr("argument 'w.channel_scale': expected none"));
  EXPECT_THAT(
      error_of([](auto& d) { d.w.data.device = d.w.scale.device = {DeviceType::kCuda, 0}; }),
      HasSubstr("argument 'w': expected a tensor on cpu"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.dtype = DType::kInt32; }),
              HasSubstr("argument 'x': expected dtype"));
  EXPECT_THAT(error_of([](auto& d) {
                d.x.scale.reset();
                d.x.data.dtype = DType::kInt32;
              }),
              HasSubstr("argument 'x': expected dtype float32 or float16 or bfloat16 or e4m3"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.strides[1] = 2; }),
              HasSubstr("argument 'x': expected contiguous columns"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.rank = 0; }),
              HasSubstr("argument 'x': expected at least 1 dimension"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.data = nullptr; }),
              HasSubstr("argument 'x': expected data"));
  EXPECT_THAT(error_of([](auto& d) {
                d.x.scale.reset();
                d.x.data.shape[0] = 17;
              }),
              HasSubstr("argument 'x': expected at most 16 rows of e4m3 (of float16 and bfloat16 "
                        "any number), got 17"));
  const Matrix bias(DType::kFloat32, 1, 300);
  EXPECT_THAT(error_of([&](auto& d) { d.bias = bias.row_vector(); }),
              HasSubstr("argument 'bias': expected none beside an 'x' of e4m3, got float32 [300]"));
  EXPECT_THAT(error_of([](auto& d) { d.x.scale->shape[1] = 1; }),
              HasSubstr("argument 'x.scale': expected shape [5, 2]"));
  EXPECT_THAT(error_of([](auto& d) { d.x.scale->device = {DeviceType::kCuda, 1}; }),
              HasSubstr("argument 'x.scale': expected a tensor on cpu"));
  EXPECT_THAT(error_of([](auto& d) { d.x.granularity = static_cast<Granularity>(7); }),
              HasSubstr("argument 'x.granularity'"));
  EXPECT_THAT(error_of([](auto& d) { d.out.shape[1] = 299; }),
              HasSubstr("argument 'out': expected shape [5, 300]"));
  EXPECT_THAT(error_of([](auto& d) { d.out.dtype = DType::kE4M3; }),
              HasSubstr("argument 'out': expected dtype bfloat16 or float16 or float32"));
  EXPECT_THAT(error_of([](auto& d) { d.out.strides[0] = 200; }),
              HasSubstr("argument 'out': expected rows that do not overlap"));
  EXPECT_THAT(error_of([](auto& d) { d.out.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("argument 'out': expected a tensor on cpu"));
  EXPECT_THAT(error_of([](auto& d) { d.out.data = const_cast<void*>(d.w.data.data); }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'w'"));
  EXPECT_THAT(error_of([](auto& d) { d.w.scale.data = d.out.data; }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'w.scale'"));
  EXPECT_THAT(error_of([](auto& d) { d.x.scale->data = d.out.data; }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'x.scale'"));
}

}  // namespace
}  // namespace octofold
