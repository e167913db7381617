// Every row of the case table against FP64: fresh random inputs, poisoned outputs, every element.
#include "octofold/gemm.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <vector>

#include "octofold/casts.h"

#include "support/gemm_cases.h"
#include "support/matrix.h"

namespace octofold {
namespace {

using test::GemmCase;
using test::Matrix;

// An operand with its scales, dequantized to FP64 on its own terms.
struct Operand {
  Matrix codes;
  std::vector<float> scales;
  Granularity granularity;
  std::int64_t rows, cols;

  Operand(std::mt19937& random, DType dtype, Granularity granularity_, std::int64_t rows_,
          std::int64_t cols_, std::int64_t padding, bool power_of_two)
      : codes(dtype, rows_, cols_, padding), granularity(granularity_), rows(rows_), cols(cols_) {
    std::size_t scale_count = 1;
    for (const std::int64_t size : scale_shape(granularity, rows, cols)) {
      scale_count *= static_cast<std::size_t>(size);
    }
    scales.assign(scale_count, std::nanf(""));
    const Matrix values = test::random_matrix(random, rows, cols, padding);
    quantize(values.view(), {.rows = mutable_view()}, {.power_of_two = power_of_two});
  }

  MutableScaledTensorView mutable_view() {
    const std::vector<std::int64_t> shape = scale_shape(granularity, rows, cols);
    const MutableTensorView scale =
        shape.size() == 1 ? vector(scales.data(), DType::kFloat32, shape[0])
                          : matrix(scales.data(), DType::kFloat32, shape[0], shape[1]);
    return {codes.view(), scale, granularity};
  }

  double at(std::int64_t row, std::int64_t col) const {
    const std::int64_t col_blocks = (cols + 127) / 128;
    std::int64_t unit = 0;
    switch (granularity) {
      case Granularity::kTensor: break;
      case Granularity::kChannel: unit = row; break;
      case Granularity::kBlock1x128: unit = row * col_blocks + col / 128; break;
      case Granularity::kBlock128x128: unit = row / 128 * col_blocks + col / 128; break;
    }
    return codes.at(row, col) * static_cast<double>(scales[static_cast<std::size_t>(unit)]);
  }

  std::vector<double> dequantized() const {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(rows * cols));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) values.push_back(at(row, col));
    }
    return values;
  }
};

// The limits of docs/numerics.md: FP32 accumulation, and the rounding of the output. They are of a
// norm over many elements, whose roundings average; a few alone may each be half an ulp off. The
// magnitudes of rows differ so much here that of 256 elements about five make up the norm.
double relative_limit(DType dtype, std::int64_t elements) {
  constexpr double kFloat32Limit = 3e-4;
  if (dtype == DType::kFloat32) return kFloat32Limit;
  const bool few = elements < 4096;
  if (dtype == DType::kBFloat16) return few ? 0x1p-8 + kFloat32Limit : 2.5e-3;
  return few ? 0x1p-11 + kFloat32Limit : 4e-4;
}

Matrix random_addend(std::mt19937& random, DType dtype, std::int64_t rows, std::int64_t cols,
                     std::int64_t padding) {
  const Matrix values = test::random_matrix(random, rows, cols);
  Matrix result(dtype, rows, cols, padding);
  convert(values.view(), result.view());
  return result;
}

class GemmTest : public testing::TestWithParam<GemmCase> {};

TEST_P(GemmTest, MatchesFp64) {
  const GemmCase& row = GetParam();
  std::mt19937 random(std::random_device{}());
  Operand a(random, row.a_dtype, row.granularity_a, row.m, row.k, row.row_padding,
            row.power_of_two);
  Operand b(random, row.b_dtype, row.granularity_b, row.n, row.k, row.row_padding,
            row.power_of_two);
  const auto type_of = [&](const std::string& kind) {
    return kind == "float32" ? DType::kFloat32 : row.d_dtype;
  };
  std::optional<Matrix> c, bias;
  if (row.c != "none") c = random_addend(random, type_of(row.c), row.m, row.n, row.row_padding);
  if (row.bias != "none") bias = random_addend(random, type_of(row.bias), 1, row.n, 0);

  const auto product = [&] {
    const bool in_place = row.c == "in_place";
    Matrix d = in_place ? *c : Matrix(row.d_dtype, row.m, row.n, row.row_padding);
    GemmArguments arguments{.a = a.mutable_view(), .b = b.mutable_view(), .out = d.view()};
    if (c) arguments.c = in_place ? d.view() : c->view();
    if (bias) arguments.bias = bias->row_vector();
    gemm(arguments);
    return d;
  };
  const Matrix d = product();

  const std::vector<double> x = a.dequantized(), y = b.dequantized();
  double error = 0, norm = 0;
  for (std::int64_t i = 0; i < row.m; ++i) {
    for (std::int64_t j = 0; j < row.n; ++j) {
      double expected = 0;
      for (std::int64_t k = 0; k < row.k; ++k) {
        expected +=
            x[static_cast<std::size_t>(i * row.k + k)] * y[static_cast<std::size_t>(j * row.k + k)];
      }
      if (c) expected += c->at(i, j);
      if (bias) expected += bias->at(0, j);
      error += std::pow(d.at(i, j) - expected, 2);
      norm += expected * expected;
    }
  }
  EXPECT_LE(std::sqrt(error), relative_limit(row.d_dtype, row.m * row.n) * std::sqrt(norm));
  EXPECT_TRUE(d.padding_is_untouched());

  EXPECT_EQ(d.bytes(), product().bytes()) << "the same input gave other bits";
}

INSTANTIATE_TEST_SUITE_P(CaseTable, GemmTest,
                         testing::ValuesIn(test::read_gemm_cases(OCTOFOLD_TEST_CASES_DIR
                                                                 "/gemm.csv")),
                         [](const auto& instance) { return instance.param.name; });

TEST(GemmSpecialValuesTest, NanAndInfinityReachTheirRowsAndColumnsOnly) {
  std::mt19937 random(7);
  Operand a(random, DType::kE5M2, Granularity::kBlock1x128, 3, 200, 0, false);
  Operand b(random, DType::kE4M3, Granularity::kBlock128x128, 4, 200, 0, false);
  static_cast<std::uint8_t*>(a.codes.data())[1 * 200 + 150] = 0x7C;  // row 1: +Inf
  static_cast<std::uint8_t*>(b.codes.data())[2 * 200 + 3] = 0x7F;    // column 2: NaN
  Matrix d(DType::kFloat32, 3, 4);
  gemm({.a = a.mutable_view(), .b = b.mutable_view(), .out = d.view()});
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(std::isnan(d.at(i, j)), j == 2) << i << "," << j;
      EXPECT_EQ(std::isinf(d.at(i, j)), i == 1 && j != 2) << i << "," << j;
    }
  }
}

TEST(GemmSpecialValuesTest, ScalesMayBeFarApart) {
  // 2^100 and 2^-100 cancel: dequantizing the operands first would lose everything to overflow.
  std::uint8_t code_a = 0x38, code_b = 0x38;  // 1.0
  float scale_a = 0x1p100f, scale_b = 0x1p-100f, d = 0;
  gemm({.a = {matrix(&code_a, DType::kE4M3, 1, 1), vector(&scale_a, DType::kFloat32, 1),
              Granularity::kTensor},
        .b = {matrix(&code_b, DType::kE4M3, 1, 1), vector(&scale_b, DType::kFloat32, 1),
              Granularity::kTensor},
        .out = matrix(&d, DType::kFloat32, 1, 1)});
  EXPECT_EQ(d, 1.0f);
}

}  // namespace
}  // namespace octofold
