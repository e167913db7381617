// Norms with their casts, and their gradients, on the CPU: what the public C++ call takes beyond
// what Python gives it. Values are compared with torch's in tests/python/test_norms.py.
#include "octofold/octofold.h"

#include "support/both_casts.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;
using test::expect_same;

constexpr std::int64_t kRows = 6, kCols = 300;

class NormsTest : public testing::Test {
 protected:
  NormsTest()
      : x_(kRows * kCols),
        residual_(x_.size()),
        weight_(kCols),
        sum_(x_.size()),
        rstd_(kRows),
        mean_(kRows) {
    std::normal_distribution<float> normal;
    for (std::vector<float>* values : {&x_, &residual_, &weight_}) {
      for (float& value : *values) value = normal(random_);
    }
  }

  static MutableTensorView matrix_of(std::vector<float>& values) {
    return matrix(values.data(), DType::kFloat32, std::ssize(values) / kCols, kCols);
  }
  static MutableTensorView vector_of(std::vector<float>& values) {
    return vector(values.data(), DType::kFloat32, std::ssize(values));
  }

  // A valid LayerNorm with everything, to be spoiled.
  Normed arguments() {
    return {.kind = NormKind::kLayer,
            .epsilon = 1e-5f,
            .x = matrix_of(x_),
            .residual = matrix_of(residual_),
            .operands = {.weight = vector_of(weight_)},
            .sum = matrix_of(sum_),
            .rstd = vector_of(rstd_),
            .mean = vector_of(mean_)};
  }

  std::string error(auto&& spoil) {
    Normed arguments = this->arguments();
    CastTargets targets{.rows = out_.target()};
    spoil(arguments, targets);
    return error_of([&] { cast(arguments, targets); });
  }

  test::Random random_;
  std::vector<float> x_, residual_, weight_, sum_, rstd_, mean_;
  ScaledMatrix out_{kRows, kCols};
};

TEST_F(NormsTest, TheSumMayBeTheResidualsMemory) {
  cast(arguments(), {.rows = out_.target()});
  for (std::size_t i = 0; i < x_.size(); ++i) EXPECT_EQ(sum_[i], x_[i] + residual_[i]);
  Normed in_place = arguments();
  in_place.sum = matrix_of(residual_);
  ScaledMatrix out(kRows, kCols);
  cast(in_place, {.rows = out.target()});
  EXPECT_EQ(residual_, sum_);
  expect_same(out, out_);
}

TEST_F(NormsTest, RowsHaveMeanZeroAndDeviationOne) {
  cast(arguments(), {.rows = out_.target()});
  for (std::int64_t row = 0; row < kRows; ++row) {
    double sum = 0, squares = 0;
    for (std::int64_t col = 0; col < kCols; ++col) {
      const auto i = as_size(row * kCols + col);
      const auto r = as_size(row);
      const double n = (static_cast<double>(sum_[i]) - static_cast<double>(mean_[r])) *
                       static_cast<double>(rstd_[r]);
      sum += n;
      squares += n * n;
    }
    EXPECT_NEAR(sum / kCols, 0, 1e-6);
    EXPECT_NEAR(squares / kCols, 1, 2e-5);  // epsilon
  }
}

TEST_F(NormsTest, NumbersAreWhatACastOfThemIsOf) {
  cast(arguments(), {.rows = out_.target()});
  std::vector<float> y(x_.size());
  norm(arguments(), matrix_of(y));
  ScaledMatrix again(kRows, kCols);
  cast(TensorView(matrix_of(y)), {.rows = again.target()});
  expect_same(again, out_);
}

TEST_F(NormsTest, NamesWhatIsWrongWithNumbers) {
  std::vector<float> y(x_.size() + 1);
  const auto error = [&](auto&& spoil) {
    Normed source = arguments();
    MutableTensorView out = matrix(y.data(), DType::kFloat32, kRows, kCols);
    spoil(source, out);
    return error_of([&] { norm(source, out); });
  };
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto& a, auto&) { a.epsilon = -1; }), HasSubstr("norm: argument 'epsilon'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.shape[0] = kRows - 1; }), HasSubstr("'y'"));
  EXPECT_THAT(error([](auto&, auto& out) { out.dtype = DType::kBFloat16; }), HasSubstr("'y'"));
  EXPECT_THAT(error([&](auto&, auto& out) { out.data = x_.data(); }),
              HasSubstr("'y': expected memory of its own, apart from 'x'"));
  EXPECT_THAT(error([&](auto&, auto& out) { out.data = sum_.data(); }),
              HasSubstr("'y': expected memory of its own, apart from 'sum'"));
}

// Statistics do not depend on the scales, which are read and kept.
TEST_F(NormsTest, TakesGivenScales) {
  ScaledMatrix transposed(kCols, kRows);
  const CastTargets targets{.rows = out_.target(), .transposed = transposed.target()};
  cast(arguments(), targets);
  const ScaledMatrix rows = out_.to({}), columns = transposed.to({});
  std::ranges::fill(out_.codes(), std::uint8_t{0xAA});
  std::ranges::fill(transposed.codes(), std::uint8_t{0xAA});
  cast(arguments(), test::given(targets));
  expect_same(out_, rows);
  expect_same(transposed, columns);
}

TEST_F(NormsTest, NamesWhatIsWrong) {
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto& a, auto&) { a.sum.reset(); }),
              HasSubstr("'sum': expected one where there is a residual, got none"));
  EXPECT_THAT(error([](auto& a, auto&) { a.residual.reset(); }),
              HasSubstr("'sum': expected none without a residual, got one"));
  EXPECT_THAT(error([](auto& a, auto&) { a.mean.reset(); }),
              HasSubstr("'mean': expected one for a LayerNorm"));
  EXPECT_THAT(error([](auto& a, auto&) { a.kind = NormKind::kRms; }),
              HasSubstr("'mean': expected none for an RMSNorm"));
  EXPECT_THAT(error([](auto& a, auto&) { a.kind = static_cast<NormKind>(7); }),
              HasSubstr("'norm': expected a NormKind, got 7"));
  EXPECT_THAT(error([](auto& a, auto&) { a.epsilon = INFINITY; }), HasSubstr("'epsilon'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.rstd.data = nullptr; }),
              HasSubstr("'rstd': expected data"));
  EXPECT_THAT(error([](auto& a, auto&) { a.sum->strides[0] = 7; }),
              HasSubstr("'sum': expected rows that do not overlap"));
  EXPECT_THAT(error([](auto& a, auto&) { a.operands.weight->device = {DeviceType::kCuda, 0}; }),
              HasSubstr("'weight': expected a tensor on cpu, got one on cuda:0"));
  EXPECT_THAT(error([](auto&, auto& targets) { targets.rows.reset(); }),
              HasSubstr("'out': expected rows, transposed or both"));
  EXPECT_THAT(error([&](auto& a, auto&) { a.sum = matrix_of(x_); }),
              HasSubstr("'sum': expected memory of its own, apart from 'x'"));
  EXPECT_THAT(error([&](auto& a, auto&) {
                a.sum->data = residual_.data() + 1;
                a.x = TensorView(matrix(x_.data(), DType::kFloat32, kRows - 1, kCols));
                a.residual->shape[0] = a.sum->shape[0] = kRows - 1;
              }),
              HasSubstr("'sum': expected memory of its own, apart from 'residual'"));
  EXPECT_THAT(error([&](auto& a, auto&) { a.rstd.data = sum_.data(); }),
              HasSubstr("'rstd': expected memory of its own, apart from 'sum'"));
  EXPECT_THAT(error([&](auto& a, auto&) { a.mean->data = rstd_.data(); }),
              HasSubstr("'mean': expected memory of its own, apart from 'rstd'"));
  EXPECT_THAT(error([&](auto&, auto& targets) { targets.rows->scale.data = mean_.data(); }),
              HasSubstr("'out.rows.scale': expected memory of its own"));
}

class NormGradientTest : public NormsTest {
 protected:
  NormGradientTest()
      : scale_(2 * kCols, 0.5f),
        dx_(x_.size()),
        dweight_(kCols),
        dscale_(2 * kCols),
        workspace_(as_size(norm_workspace_rows(kCols, 2) * kCols)) {}

  NormGradientArguments backward() {
    return {.gradient = matrix_of(residual_),
            .x = matrix_of(x_),
            .rstd = vector_of(rstd_),
            .operands = {.weight = vector_of(weight_), .ada_scale = matrix_of(scale_)}};
  }
  NormGradients gradients() {
    return {.dx = matrix_of(dx_),
            .dweight = vector_of(dweight_),
            .d_ada_scale = matrix_of(dscale_),
            .workspace = matrix_of(workspace_)};
  }
  std::string error(auto&& spoil) {
    NormGradientArguments arguments = backward();
    NormGradients gradients = this->gradients();
    spoil(arguments, gradients);
    return error_of([&] { norm_gradient(arguments, gradients); });
  }

  std::vector<float> scale_, dx_, dweight_, dscale_, workspace_;
};

TEST_F(NormGradientTest, GivesWhatIsWanted) {
  std::ranges::fill(rstd_, 0.75f);
  norm_gradient(backward(), gradients());
  const std::vector<float> dx = dx_, dweight = dweight_, dscale = dscale_;
  // Of constant scales, dweight · (1 + scale)⁻¹ and dscale · weight⁻¹ are sums of the same terms.
  for (std::size_t i = 0; i < kCols; ++i) {
    const float products = (dscale[i] + dscale[kCols + i]) / weight_[i];
    EXPECT_NEAR(dweight[i] / 1.5f, products, 1e-4f * (1 + std::abs(products)));
  }
  std::ranges::fill(dx_, NAN);
  norm_gradient(backward(), {.dx = matrix_of(dx_)});
  EXPECT_EQ(dx_, dx);
}

TEST_F(NormGradientTest, NamesWhatIsWrong) {
  EXPECT_EQ(error([](auto&, auto&) {}), "no error");
  EXPECT_THAT(error([](auto&, auto& g) { g.workspace.reset(); }),
              HasSubstr("'workspace': expected one where more than dx is wanted, got none"));
  EXPECT_THAT(error([](auto&, auto& g) { g.dweight.reset(), g.d_ada_scale.reset(); }),
              HasSubstr("'workspace': expected none where dx alone is wanted, got one"));
  EXPECT_THAT(error([](auto&, auto& g) { --g.workspace->shape[0]; }),
              HasSubstr("'workspace': expected shape"));
  EXPECT_THAT(error([](auto& a, auto&) { a.operands.ada_scale.reset(); }),
              HasSubstr("'d_ada_scale': expected none without 'ada_scale', got one"));
  EXPECT_THAT(error([&](auto&, auto& g) { g.d_ada_shift = matrix_of(scale_); }),
              HasSubstr("'d_ada_shift': expected none without 'ada_shift', got one"));
  EXPECT_THAT(error([&](auto&, auto& g) { g.dx = matrix_of(x_); }),
              HasSubstr("'dx': expected memory of its own, apart from 'x'"));
  EXPECT_THAT(error([&](auto&, auto& g) { g.dweight = vector_of(weight_); }),
              HasSubstr("'dweight': expected memory of its own, apart from 'weight'"));
  EXPECT_THAT(error([](auto& a, auto&) { a.operands.ada_scale->shape[0] = 1; }),
              HasSubstr("'d_ada_scale': expected shape [1, 300], got [2, 300]"));
}

}  // namespace
}  // namespace octofold
