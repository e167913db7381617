// Every row of the case table against FP64: fresh random inputs, poisoned outputs, every element.
#include "octofold/gemm.h"

#include "octofold/cast.h"

#include "support/exact_dot.h"
#include "support/gemm_cases.h"
#include "support/judge.h"
#include "support/matrix.h"
#include "support/operand.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::GemmCase;
using test::Matrix;
using test::Operand;
using test::random_addend;

class GemmTest : public testing::TestWithParam<GemmCase> {};

TEST_P(GemmTest, MatchesFp64) {
  const GemmCase& row = GetParam();
  test::Random random;
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
    GemmArguments arguments{.a = a.target(), .b = b.target(), .out = d.view()};
    if (c) arguments.c = in_place ? d.view() : c->view();
    if (bias) arguments.bias = bias->row_vector();
    gemm(arguments);
    return d;
  };
  const Matrix d = product();

  const std::vector<double> x = a.dequantized(), y = b.dequantized();
  const auto line_of = [&](const std::vector<double>& values, std::int64_t line) {
    const auto k = as_size(row.k);
    return std::span(values).subspan(as_size(line) * k, k);
  };
  test::Judge judge(row.d_dtype);
  for (std::int64_t i = 0; i < row.m; ++i) {
    for (std::int64_t j = 0; j < row.n; ++j) {
      test::ExactSum sum = test::exact_dot(line_of(x, i), line_of(y, j));
      if (c) sum.add(c->at(i, j));
      if (bias) sum.add(bias->at(0, j));
      judge.see(d.at(i, j), sum.value, sum.terms);
    }
  }
  EXPECT_EQ(judge.verdict(), "");
  EXPECT_TRUE(d.padding_is_untouched());

  EXPECT_EQ(d.bytes(), product().bytes()) << "the same input gave other bits";
}

INSTANTIATE_TEST_SUITE_P(CaseTable, GemmTest,
                         testing::ValuesIn(test::read_gemm_cases(OCTOFOLD_TEST_CASES_DIR
                                                                 "/gemm.csv")),
                         [](const auto& instance) { return instance.param.name; });

// The judge itself.
class JudgeTest : public testing::TestWithParam<DType> {
 protected:
  // 64 × 64 numbers, each a sum of terms of this magnitude; all but one as close as rounding gets.
  std::string verdict_with(double wrong) {
    std::normal_distribution<double> normal;
    test::Judge judge(GetParam());
    for (int i = 0; i < 4096; ++i) {
      const double expected = i == 1234 ? 0.1 : 8 * normal(random);
      const double rounded = expected + 0.45 * test::half_ulp(expected, GetParam());
      judge.see(i == 1234 ? wrong : rounded, expected, 40);
    }
    return judge.verdict();
  }

  test::Random random;
};

TEST_P(JudgeTest, TakesWhatIsRoundedWell) { EXPECT_EQ(verdict_with(0.1), ""); }

TEST_P(JudgeTest, SeesOneWrongElement) {
  for (const double wrong : {0.0, 0.2, -0.1, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(verdict_with(wrong), HasSubstr("element 1234")) << wrong;
  }
}

TEST_P(JudgeTest, KnowsNeighbours) {
  const test::Format format = test::format_of(GetParam());
  EXPECT_EQ(test::half_ulp(-1.5, GetParam()), std::ldexp(0.5, -format.mantissa_bits));
  const double subnormal = std::ldexp(1.0, format.smallest_exponent - 3);
  EXPECT_EQ(test::half_ulp(subnormal, GetParam()), test::half_ulp(0, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Formats, JudgeTest,
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16),
                         [](const auto& instance) { return std::string(name(instance.param)); });

TEST(GemmSpecialValuesTest, NanAndInfinityReachTheirRowsAndColumnsOnly) {
  std::mt19937 random(7);
  Operand a(random, DType::kE5M2, Granularity::kBlock1x128, 3, 200, 0, false);
  Operand b(random, DType::kE4M3, Granularity::kBlock128x128, 4, 200, 0, false);
  static_cast<std::uint8_t*>(a.codes.data())[1 * 200 + 150] = 0x7C;  // row 1: +Inf
  static_cast<std::uint8_t*>(b.codes.data())[2 * 200 + 3] = 0x7F;    // column 2: NaN
  Matrix d(DType::kFloat32, 3, 4);
  gemm({.a = a.target(), .b = b.target(), .out = d.view()});
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
  gemm({.a = ScaledTensorView{matrix(&code_a, DType::kE4M3, 1, 1),
                              vector(&scale_a, DType::kFloat32, 1), Granularity::kTensor},
        .b = {matrix(&code_b, DType::kE4M3, 1, 1), vector(&scale_b, DType::kFloat32, 1),
              Granularity::kTensor},
        .out = matrix(&d, DType::kFloat32, 1, 1)});
  EXPECT_EQ(d, 1.0f);
}

}  // namespace
}  // namespace octofold
