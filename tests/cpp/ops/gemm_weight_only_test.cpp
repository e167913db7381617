// Products whose weights alone are FP8 on the CPU, and their gradients, against FP64; and bad
// arguments.
#include "octofold/gemm_weight_only.h"

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
// Of x and out; beyond one tile of either, ragged, without depth.
constexpr std::array<std::array<std::int64_t, 3>, 6> kSizes{
    {{1, 1, 1}, {1, 300, 270}, {5, 129, 128}, {130, 40, 260}, {33, 260, 300}, {3, 4, 0}}};

// Judges out [M, N] = x [M, K] · weights [N, K]ᵀ (+ bias), weight(n, k) being one of them.
template <typename Weight>
std::string verdict(const Matrix& out, const Matrix& x, const std::optional<Matrix>& bias,
                    Weight&& weight) {
  test::Judge judge(out.dtype());
  for (std::int64_t i = 0; i < out.rows(); ++i) {
    std::vector<double> row;
    for (std::int64_t k = 0; k < x.cols(); ++k) row.push_back(x.at(i, k));
    for (std::int64_t j = 0; j < out.cols(); ++j) {
      double expected = bias ? bias->at(0, j) : 0, terms = std::abs(expected);
      for (std::int64_t k = 0; k < x.cols(); ++k) {
        const double term = row[static_cast<std::size_t>(k)] * weight(j, k);
        expected += term;
        terms += std::abs(term);
      }
      judge.see(out.at(i, j), expected, terms);
    }
  }
  return judge.verdict();
}

TEST(GemmWeightOnlyTest, MatchesFp64) {
  test::Random random;
  int index = 0;
  for (const auto& [m, n, k] : kSizes) {
    for (const Granularity granularity : kGranularities) {
      for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
        const int variant = index++;
        const DType out_type = variant % 3 == 0 ? DType::kFloat32 : type;
        test::Operand w(random, variant % 2 == 0 ? DType::kE4M3 : DType::kE5M2, granularity, n, k,
                        5, false);
        const Matrix x = test::random_addend(random, type, m, k, 3);
        std::optional<Matrix> bias;
        if (variant % 5 < 3) {
          bias =
              test::random_addend(random, variant % 5 == 0 ? DType::kFloat32 : out_type, 1, n, 0);
        }
        const auto product = [&] {
          Matrix out(out_type, m, n, 9);
          GemmWeightOnlyArguments arguments{.x = {x.view()}, .w = w.target(), .out = out.view()};
          if (bias) arguments.bias = bias->row_vector();
          gemm_weight_only(arguments);
          return out;
        };
        const Matrix out = product();
        const std::vector<double> weights = w.dequantized();
        EXPECT_EQ(verdict(out, x, bias,
                          [&](std::int64_t j, std::int64_t depth) {
                            return weights[static_cast<std::size_t>(j * k + depth)];
                          }),
                  "")
            << m << "×" << n << "×" << k << " " << name(type) << " " << name(granularity);
        EXPECT_TRUE(out.padding_is_untouched());
        EXPECT_EQ(out.bytes(), product().bytes()) << "the same input gave other bits";
      }
    }
  }
}

TEST(GemmWeightOnlyGradientTest, MatchesFp64) {
  test::Random random;
  int index = 0;
  for (const auto& [m, k, n] : kSizes) {
    for (const Granularity granularity : kGranularities) {
      for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
        const int variant = index++;
        test::Operand w(random, variant % 2 == 0 ? DType::kE4M3 : DType::kE5M2, granularity, n, k,
                        5, false);
        const Matrix gradient = test::random_addend(random, type, m, n, 3);
        Matrix out(variant % 3 == 0 ? DType::kFloat32 : type, m, k, 9);
        gemm_weight_only_gradient(
            {.gradient = gradient.view(), .w = w.target(), .out = out.view()});
        const std::vector<double> weights = w.dequantized();
        EXPECT_EQ(verdict(out, gradient, std::nullopt,
                          [&](std::int64_t j, std::int64_t depth) {
                            return weights[static_cast<std::size_t>(depth * k + j)];
                          }),
                  "")
            << m << "×" << k << "×" << n << " " << name(type) << " " << name(granularity);
        EXPECT_TRUE(out.padding_is_untouched());
      }
    }
  }
}

template <typename View>
View stacked(View view) {
  const std::int64_t columns = view.shape[1];
  view.rank = 3;
  view.shape = {2, 3, columns};
  view.strides = {3 * columns, columns, 1};
  return view;
}

TEST(GemmWeightOnlyTest, LeadingDimensionsAreRows) {
  test::Random random;
  test::Operand w(random, DType::kE4M3, Granularity::kChannel, 40, 200, 0, false);
  Matrix x = test::random_addend(random, DType::kFloat16, 6, 200, 0);
  Matrix expected(DType::kFloat16, 6, 40), out(DType::kFloat16, 6, 40);
  gemm_weight_only({.x = {x.view()}, .w = w.target(), .out = expected.view()});
  gemm_weight_only({.x = {stacked(x.view())}, .w = w.target(), .out = stacked(out.view())});
  EXPECT_EQ(out.bytes(), expected.bytes());

  Matrix back(DType::kFloat16, 6, 200), again(DType::kFloat16, 6, 200);
  gemm_weight_only_gradient({.gradient = expected.view(), .w = w.target(), .out = back.view()});
  gemm_weight_only_gradient(
      {.gradient = stacked(expected.view()), .w = w.target(), .out = stacked(again.view())});
  EXPECT_EQ(again.bytes(), back.bytes());

  Matrix one(DType::kFloat16, 1, 40), row(DType::kFloat16, 1, 40);
  gemm_weight_only({.x = {x.row_vector()}, .w = w.target(), .out = one.row_vector()});
  gemm_weight_only(
      {.x = {matrix(x.data(), DType::kFloat16, 1, 200)}, .w = w.target(), .out = row.view()});
  EXPECT_EQ(one.bytes(), row.bytes());
}

TEST(GemmWeightOnlyTest, WithoutDepthThereIsTheBias) {
  ScaledMatrix w(2, 0, {.granularity = Granularity::kTensor}),
      columns(0, 2, {.granularity = Granularity::kTensor});
  w.scales()[0] = columns.scales()[0] = std::numeric_limits<float>::quiet_NaN();
  Matrix x(DType::kBFloat16, 3, 0), out(DType::kFloat32, 3, 2), bias(DType::kFloat32, 1, 2);
  bias.float_at(0, 0) = 5, bias.float_at(0, 1) = -7;
  gemm_weight_only({.x = {x.view()}, .w = w.view(), .out = out.view(), .bias = bias.row_vector()});
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(out.at(row, 0), 5);
    EXPECT_EQ(out.at(row, 1), -7);
  }
  gemm_weight_only_gradient({.gradient = x.view(), .w = columns.view(), .out = out.view()});
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(out.at(row, 0), 0);
    EXPECT_EQ(out.at(row, 1), 0);
  }
}

TEST(GemmWeightOnlyTest, NothingIsDoneForNothing) {
  ScaledMatrix w(4, 8, {.granularity = Granularity::kChannel});
  Matrix out(DType::kFloat16, 4, 8);
  gemm_weight_only({.x = {matrix<void>(nullptr, DType::kFloat16, 0, 8)},
                    .w = w.view(),
                    .out = matrix(out.data(), DType::kFloat16, 0, 4)});
  gemm_weight_only_gradient({.gradient = matrix<void>(nullptr, DType::kFloat16, 0, 4),
                             .w = w.view(),
                             .out = matrix(out.data(), DType::kFloat16, 0, 8)});
  EXPECT_EQ(out.bytes(), Matrix(DType::kFloat16, 4, 8).bytes());
}

// A valid problem that each test spoils in one place.
std::string error_of(auto&& spoil) {
  ScaledMatrix w(300, 256, {.granularity = Granularity::kBlock128x128});
  Matrix x(DType::kBFloat16, 5, 256), out(DType::kBFloat16, 5, 300), bias(DType::kFloat32, 1, 300);
  GemmWeightOnlyArguments arguments{
      .x = {x.view()}, .w = w.view(), .out = out.view(), .bias = bias.row_vector()};
  spoil(arguments);
  return test::error_of([&] { gemm_weight_only(arguments); });
}

std::string gradient_error_of(auto&& spoil) {
  ScaledMatrix w(300, 256, {.granularity = Granularity::kBlock1x128});
  Matrix gradient(DType::kFloat16, 5, 300), out(DType::kFloat32, 5, 256);
  GemmWeightOnlyGradientArguments arguments{
      .gradient = gradient.view(), .w = w.view(), .out = out.view()};
  spoil(arguments);
  return test::error_of([&] { gemm_weight_only_gradient(arguments); });
}

TEST(GemmWeightOnlyArgumentsTest, EachErrorNamesItsArgument) {
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& d) { d.x.data.dtype = DType::kInt32; }),
            "gemm_weight_only: argument 'x': expected dtype float32 or float16 or bfloat16 or e4m3 "
            "or e5m2, got int32");
  EXPECT_THAT(error_of([](auto& d) { d.x.scale = d.w.scale; }),
              HasSubstr("argument 'x': expected dtype e4m3 or e5m2, got bfloat16"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.dtype = DType::kFloat32; }),
              HasSubstr("argument 'bias': expected none beside an 'x' of float32, got"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.strides[1] = 2; }), HasSubstr("argument 'x'"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.rank = 0; }), HasSubstr("argument 'x'"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.shape[1] = 128; }),
              HasSubstr("argument 'x': expected K = 256 columns as in 'w', got 128"));
  EXPECT_THAT(error_of([](auto& d) { d.w.data.dtype = DType::kBFloat16; }),
              HasSubstr("argument 'w': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(error_of([](auto& d) { d.w.data.strides[1] = 3; }), HasSubstr("argument 'w'"));
  EXPECT_THAT(error_of([](auto& d) { d.w.scale.shape[0] = 1; }),
              HasSubstr("argument 'w.scale': expected shape"));
  const std::vector<float> factors(300, 1.0f);
  EXPECT_THAT(
      error_of([&](auto& d) { d.w.channel_scale = vector(factors.data(), DType::kFloat32, 300); }),
      HasSubstr("argument 'w.channel_scale': expected none"));
  EXPECT_THAT(error_of([](auto& d) { d.x.data.device = {DeviceType::kCuda, 0}; }),
              HasSubstr("argument 'w': expected a tensor on cuda:0"));
  EXPECT_THAT(error_of([](auto& d) { d.out.shape[1] = 299; }),
              HasSubstr("argument 'out': expected shape [5, 300]"));
  EXPECT_THAT(error_of([](auto& d) { d.out.dtype = DType::kFloat16; }),
              HasSubstr("argument 'out': expected dtype bfloat16 or float32"));
  EXPECT_THAT(error_of([](auto& d) { d.out.strides[0] = 7; }), HasSubstr("argument 'out'"));
  EXPECT_THAT(error_of([](auto& d) { d.out.data = const_cast<void*>(d.x.data.data); }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'x'"));
  EXPECT_THAT(error_of([](auto& d) { d.out.data = const_cast<void*>(d.w.data.data); }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'w'"));
  EXPECT_THAT(error_of([](auto& d) { d.w.scale.data = d.out.data; }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'w.scale'"));
  EXPECT_THAT(error_of([](auto& d) { d.bias->shape[0] = 5; }),
              HasSubstr("argument 'bias': expected shape [300]"));
  EXPECT_THAT(error_of([](auto& d) { d.bias->dtype = DType::kFloat16; }),
              HasSubstr("argument 'bias': expected dtype bfloat16 or float32"));
  EXPECT_THAT(error_of([](auto& d) { d.bias->data = d.out.data; }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'bias'"));
}

TEST(GemmWeightOnlyArgumentsTest, AWorkspaceIsAsLargeAsIsSaid) {
  EXPECT_EQ(weight_only_workspace_size(64, 4096, 7168), 4 * 64 * 4096);
  EXPECT_EQ(weight_only_workspace_size(5, 300, 256), 0);
  EXPECT_EQ(weight_only_workspace_size(0, 0, 0), 0);
  std::vector<float> memory(300);
  const auto error_with = [&](void* data, DType dtype, std::int64_t count) {
    return error_of([&](auto& d) { d.workspace = vector(data, dtype, count); });
  };
  EXPECT_EQ(error_with(memory.data(), DType::kFloat32, 0), "no error");
  EXPECT_EQ(error_with(memory.data(), DType::kFloat32, 300),
            "gemm_weight_only: argument 'workspace': expected shape [0], got [300]");
  EXPECT_THAT(error_with(memory.data(), DType::kFloat16, 0),
              HasSubstr("argument 'workspace': expected dtype float32"));
  EXPECT_THAT(error_of([&](auto& d) {
                d.workspace = vector(memory.data(), DType::kFloat32, 0);
                d.workspace->device = {DeviceType::kCuda, 0};
              }),
              HasSubstr("argument 'workspace': expected a tensor on cpu"));
  // Of 20 rows of 300 and 1024 there are 2 · 20 · 300 sums.
  std::vector<std::uint16_t> x(20 * 1024);
  std::vector<std::uint8_t> codes(300 * 1024);
  std::vector<float> scale(1), out(20 * 300), workspace(2 * 20 * 300);
  GemmWeightOnlyArguments arguments{.x = {matrix(x.data(), DType::kBFloat16, 20, 1024)},
                                    .w = {.data = matrix(codes.data(), DType::kE4M3, 300, 1024),
                                          .scale = vector(scale.data(), DType::kFloat32, 1),
                                          .granularity = Granularity::kTensor},
                                    .out = matrix(out.data(), DType::kFloat32, 20, 300),
                                    .workspace = vector(workspace.data(), DType::kFloat32, 12000)};
  EXPECT_EQ(test::error_of([&] { gemm_weight_only(arguments); }), "no error");
  arguments.out.data = workspace.data();
  EXPECT_THAT(test::error_of([&] { gemm_weight_only(arguments); }),
              HasSubstr("argument 'workspace': expected memory of its own, apart from 'out'"));
}

TEST(GemmWeightOnlyGradientArgumentsTest, EachErrorNamesItsArgument) {
  EXPECT_EQ(gradient_error_of([](auto&) {}), "no error");
  EXPECT_EQ(gradient_error_of([](auto& d) { d.gradient.dtype = DType::kFloat32; }),
            "gemm_weight_only_gradient: argument 'gradient': expected dtype float16 or bfloat16, "
            "got float32");
  EXPECT_THAT(gradient_error_of([](auto& d) { d.gradient.shape[1] = 256; }),
              HasSubstr("argument 'gradient': expected N = 300 columns, the rows of 'w', got 256"));
  EXPECT_THAT(gradient_error_of([](auto& d) { d.w.data.dtype = DType::kFloat16; }),
              HasSubstr("argument 'w': expected dtype e4m3 or e5m2"));
  EXPECT_THAT(gradient_error_of([](auto& d) { d.w.scale.data = nullptr; }),
              HasSubstr("argument 'w.scale': expected data"));
  EXPECT_THAT(gradient_error_of([](auto& d) { d.out.shape[1] = 300; }),
              HasSubstr("argument 'out': expected shape [5, 256]"));
  EXPECT_THAT(gradient_error_of([](auto& d) { d.out.dtype = DType::kBFloat16; }),
              HasSubstr("argument 'out': expected dtype float16 or float32"));
  EXPECT_THAT(gradient_error_of([](auto& d) { d.out.data = const_cast<void*>(d.gradient.data); }),
              HasSubstr("argument 'out': expected memory of its own, apart from 'gradient'"));
}

}  // namespace
}  // namespace octofold
