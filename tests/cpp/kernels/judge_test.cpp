// The judge of products, which the tests of kernels on the host ask.
#include "support/judge.h"

#include "support/test.h"

namespace octofold {
namespace {

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
                         testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16));

}  // namespace
}  // namespace octofold
