// Bad arguments of casts and norms beyond those that Python can make (its tests have the others):
// targets of every kind that do not go together, memory that overlaps, devices, enumerators.
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold {
namespace {

using enum Granularity;
using test::error_of;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr std::int64_t kRows = 130, kCols = 300;

class CastRefusalsTest : public testing::Test {
 protected:
  TensorView x() const { return matrix(x_.data(), DType::kFloat32, kRows, kCols); }
  MutableTensorView floats(std::int64_t count) {
    return vector(floats_.data(), DType::kFloat32, count);
  }
  static TensorView ints(const std::vector<std::int32_t>& values) {
    return vector(values.data(), DType::kInt32, std::ssize(values));
  }

  // Expects each row's error of a cast of `source` to these targets.
  template <typename Source>
  static void refuse(const Source& source, const CastTargets& targets,
                     const test::Refusals<Source, CastTargets>& refusals) {
    test::refused([](auto& given, auto& out) { cast(given, out); }, source, targets)(refusals);
  }
  void refuse_targets(const CastTargets& targets,
                      const test::Refusals<TensorView, CastTargets>& refusals) const {
    refuse(x(), targets, refusals);
  }

  std::vector<float> x_ = std::vector<float>(kRows * kCols, 1.0f);
  std::vector<float> floats_ = std::vector<float>(8 * kCols, 1.0f);
  ScaledMatrix rows_{kRows, kCols}, transposed_{kCols, kRows};
  ScaledMatrix channels_{kRows, kCols, {.granularity = kChannel}};
  ScaledMatrix columns_{kCols, kRows, {.granularity = kChannel}};
  ScaledMatrix squares_{kRows, kCols, {.granularity = kBlock128x128}};
  ScaledMatrix of_squares_{kCols, kRows, {.granularity = kBlock128x128}};
};

// Both targets are cast alike: an error names both.
TEST_F(CastRefusalsTest, OfTwoTargets) {
  ScaledMatrix tensor(kCols, kRows, {.granularity = kTensor}),
      e5m2(kCols, kRows, {.dtype = DType::kE5M2});
  refuse_targets(
      {.rows = rows_.target(), .transposed = transposed_.target()},
      {{[&](auto&, auto& t) { t.transposed = rows_.target(); }, "'out.transposed': expected shape"},
       {[&](auto&, auto& t) { t.transposed = tensor.target(); },
        "'out.transposed': expected granularity 1x128, as 'out.rows'"},
       {[&](auto&, auto& t) { t.transposed = e5m2.target(); },
        "'out.transposed': expected dtype e4m3"},
       {[&](auto&, auto& t) { t.transposed->data.data = rows_.codes().data(); },
        "'out.transposed': expected memory of its own, apart from 'out.rows'"},
       {[&](auto&, auto& t) { t.transposed->scale.data = rows_.scales().data(); },
        "'out.transposed.scale': expected memory of its own"},
       {[](auto&, auto& t) { t.transposed->format.rule = Rule::kTorchAo; },
        "cast: argument 'rule': expected one for 'out.rows' and 'out.transposed', got deepgemm and "
        "torchao"},
       {[](auto&, auto& t) { t.transposed->format.power_of_two = true; },
        "'power_of_two': expected one for 'out.rows' and 'out.transposed', got unset and true"},
       {[](auto&, auto& t) { t.transposed->format.overflow = Overflow::kNan; },
        "got saturate and nan"},
       {[](auto&, auto& t) { t.transposed->scales = ScaleSource::kGiven; },
        "'scales': expected one for 'out.rows' and 'out.transposed', got computed and given"},
       {[](auto&, auto& t) { t.transposed->format.dtype = DType::kE5M2; },
        "'out.transposed.format.dtype': expected e4m3, as its data, got e5m2"}});
}

// A tensor that is only read may be read twice; one that is written may not overlap itself.
TEST_F(CastRefusalsTest, GivenScalesMayBeSharedAndComputedOnesNot) {
  ScaledMatrix tensor(kRows, kCols, {.granularity = kTensor}),
      its_transpose(kCols, kRows, {.granularity = kTensor});
  CastTargets out{.rows = tensor.target(), .transposed = its_transpose.target()};
  out.transposed->scale = out.rows->scale;
  tensor.scales()[0] = 0.5f;
  cast(x(), test::given(out));
  EXPECT_EQ(its_transpose.codes()[1], tensor.codes()[kCols]);
  EXPECT_THAT(error_of([&] { cast(x(), out); }), HasSubstr("apart from 'out.rows.scale'"));
  refuse_targets({.rows = channels_.target()},
                 {{[](auto&, auto& t) { t.rows->scale.strides[0] = 0; },
                   "'out.rows.scale': expected scales that do not overlap"}});
}

TEST_F(CastRefusalsTest, OfMatricesAndGroups) {
  const std::vector<std::int32_t> offsets{0, 5, kRows}, used{0, 2, 2};
  ScaledMatrix of_groups(kCols, group_columns(kRows, 2));
  const CastTargets stacked{.rows = rows_.target(), .matrices = 2};
  refuse_targets(
      stacked,
      {{[](auto&, auto& t) { t.matrices = 0; }, "divides 130 rows, got 0"},
       {[](auto&, auto& t) { t.matrices = 4; },
        "cast: argument 'matrices': expected a number of at least 1 that divides 130 rows, got 4"},
       {[&](auto&, auto& t) { t.transposed = transposed_.target(); },
        "'out.transposed': expected shape [2, 300, 65]"},
       {[&](auto&, auto& t) { t.columns.sums = floats(kCols); },
        "'out.columns': expected it to be omitted beside 'matrices'"},
       {[&](auto&, auto& t) { t.offsets = ints(offsets); },
        "'offsets': expected it to be omitted beside 'matrices'"},
       {[&](auto&, auto& t) { t.matrices.reset(), t.used = ints(used); },
        "'used': expected it to be omitted without 'matrices'"},
       {[&](auto&, auto& t) { t.used = vector<const void>(t.rows->scale.data, DType::kInt32, 3); },
        "'used'"}});
  const GatheredRows gathered{.x = x(), .sources = ints(used)};
  EXPECT_THAT(error_of([&] { cast(gathered, stacked); }),
              HasSubstr("'matrices': expected it to be omitted except for a matrix in memory"));

  refuse_targets(
      {.rows = rows_.target(), .transposed = of_groups.target(), .offsets = ints(offsets)},
      {{[](auto&, auto& t) { t.group_layout = GroupLayout::kTight; },
        "multiples of 128, got 5 at [1]"},
       {[](auto&, auto& t) { t.offsets->dtype = DType::kFloat32; },
        "'offsets': expected dtype int32, got float32"},
       {[](auto&, auto& t) { t.offsets->shape[0] = 1; }, "'offsets': expected [groups + 1]"},
       {[](auto&, auto& t) { t.offsets->shape[0] = 2; },
        "'out.transposed': expected shape [300, 256], got [300, 384]"},
       {[](auto&, auto& t) { t.transposed.reset(); },
        "'offsets': expected it to be omitted without 'out.transposed'"},
       {[&](auto&, auto& t) { t.rows = squares_.target(); },
        "'out.rows': expected granularity tensor, channel or 1x128"},
       {[&](auto&, auto& t) {
          std::ranges::fill(of_groups.codes(), std::uint8_t{0});
          t.offsets->data = of_groups.codes().data();
        },
        "apart from 'offsets'"}});
}

TEST_F(CastRefusalsTest, OfGatheredRows) {
  std::vector<std::int32_t> sources(170, 3);
  ScaledMatrix out(170, kCols);
  refuse(
      GatheredRows{.x = x(),
                   .sources = ints(sources),
                   .slots = 3,
                   .factors = matrix(floats_.data(), DType::kFloat32, kRows, 3)},
      {.rows = out.target()},
      {{[](auto& g, auto&) { g.slots = 2; }, "'factors': expected shape [130, 2], got [130, 3]"},
       {[](auto& g, auto&) { g.factors->strides[0] = 4; }, "'factors': expected contiguous rows"},
       {[](auto& g, auto&) { g.sources.dtype = DType::kFloat32; },
        "'sources': expected dtype int32, got float32"},
       {[](auto& g, auto&) { g.x.dtype = DType::kE4M3; },
        "'x': expected dtype float32 or float16 or bfloat16"},
       {[](auto& g, auto&) { g.sources.shape[0] = 5; },
        "'out.rows': expected shape [5, 300], got [170, 300]"},
       {[&](auto& g, auto&) {
          std::ranges::fill(out.codes(), std::uint8_t{0});
          g.sources.data = out.codes().data();
        },
        "apart from 'sources'"}});
}

TEST_F(CastRefusalsTest, OfColumns) {
  const ColumnTargets columns{.sums = floats(kCols),
                              .amax = vector(floats_.data() + kCols, DType::kFloat32, kCols),
                              .workspace = matrix(floats_.data() + 2 * kCols, DType::kFloat32,
                                                  column_workspace_rows(kRows, true, true), kCols)};
  refuse_targets(
      {.rows = rows_.target(), .columns = columns},
      {{[](auto&, auto& t) { t.rows.reset(); }, "'out': expected rows"},
       {[](auto&, auto& t) { --t.columns.sums->shape[0]; },
        "'out.columns.sums': expected shape [300]"},
       {[](auto&, auto& t) { t.columns.amax->dtype = DType::kBFloat16; },
        "'out.columns.amax': expected dtype float32"},
       {[](auto&, auto& t) { t.columns.amax->data = t.columns.sums->data; },
        "'out.columns.amax': expected memory of its own, apart from 'out.columns.sums'"},
       {[](auto&, auto& t) { t.columns.sums->data = t.rows->data.data; }, "apart from 'out.rows'"},
       {[](auto&, auto& t) { t.columns.workspace.reset(); },
        "'out.columns.workspace': expected one, because sums or amax of columns"},
       {[](auto&, auto& t) { ++t.columns.workspace->shape[0]; },
        "'out.columns.workspace': expected shape"},
       {[](auto&, auto& t) { t.columns.amax.reset(), t.columns.sums.reset(); },
        "expected it to be omitted without sums and amax"},
       {[](auto&, auto& t) { t.columns.workspace->strides[0] = 700; },
        "'out.columns.workspace': expected contiguous rows"}});
}

TEST_F(CastRefusalsTest, OfGivenAmax) {
  CastTargets both{.rows = channels_.target(), .transposed = columns_.target()};
  both.rows->amax = floats(kRows);
  both.transposed->amax = floats(kCols);
  refuse_targets(
      both,
      {{[](auto&, auto& t) { t = test::given(t); },
        "'out.rows.amax': expected it to be omitted beside given scales, which are taken"},
       {[](auto&, auto& t) { t.rows->amax.reset(); },
        "'out.rows.amax': expected one, as 'out.transposed' has, got none"},
       {[](auto&, auto& t) { t.transposed->amax.reset(); },
        "'out.transposed.amax': expected one, as 'out.rows' has"},
       {[](auto&, auto& t) { t.rows->amax->device = kGpu; }, "'out.rows.amax'"},
       {[](auto&, auto& t) { t.rows->amax->data = nullptr; }, "'out.rows.amax': expected data"},
       {[](auto&, auto& t) { t.rows->amax->data = t.transposed->data.data; },
        "'out.transposed': expected memory of its own, apart from 'out.rows.amax'"},
       {[&](auto&, auto& t) {
          t.rows = rows_.target();
          t.rows->amax = floats(kRows);
        },
        "'out.rows.amax': expected it to be omitted, except for units as long as the matrix: "
        "tensor, channel, got one beside 1x128 scales"}});
  both.rows = rows_.target();  // which find their own
  EXPECT_EQ(error_of([&] { cast(x(), both); }), "no error");
}

TEST_F(CastRefusalsTest, OfGivenScalesOfSquaresBesideLines) {
  EXPECT_THAT(
      error_of([&] {
        cast(x(), test::given({.rows = rows_.target(), .transposed = of_squares_.target()}));
      }),
      HasSubstr(
          "granularity 1x128, as 'out.rows', or channel (squares are computed with the codes)"));
}

TEST_F(CastRefusalsTest, OfActivations) {
  ScaledMatrix out(kRows, kCols / 2), of_x(kRows, kCols);
  const CastTargets targets{.rows = out.target()};
  refuse(Activated{.x = x(), .dtype = DType::kFloat32}, targets,
         {{[](auto& a, auto&) { a.activation = Activation::kSilu; }, "'out.rows': expected shape"},
          {[](auto& a, auto&) { a.activation = static_cast<Activation>(40); }, "'activation'"},
          {[](auto& a, auto&) { a.layout = static_cast<GateLayout>(7); }, "'layout'"}});
  refuse(Activated{.x = rows_.view(), .dtype = DType::kFloat32}, targets,
         {{[](auto& a, auto&) { a.dtype = DType::kE4M3; }, "'dtype': expected float32, float16"}});
  const TensorView gradient = matrix(floats_.data(), DType::kFloat32, kRows, kCols / 2, 4);
  std::vector<float> apart(kRows * kCols / 2);
  const ActivationGradient source{
      .gradient = matrix(apart.data(), DType::kFloat32, kRows, kCols / 2), .x = rows_.view()};
  refuse(
      source, {.rows = of_x.target()},
      {{[&](auto&, auto& t) { t.rows = out.target(); }, "'out.rows': expected shape"},
       // Codes over the gradient that they are worked out from, scales over those that are read.
       {[&](auto& a, auto& t) {
          a.gradient = gradient;
          t.rows->data.data = floats_.data();
        },
        "'out.rows'"},
       {[&](auto&, auto& t) { t.rows->scale.data = rows_.scales().data(); }, "'out.rows.scale'"}});
}

TEST_F(CastRefusalsTest, OfManyAreNamedByTheirNumber) {
  ScaledMatrix other(kRows, kCols + 1);
  std::ranges::fill(rows_.codes(), std::uint8_t{0xAA});
  const CastJob job{x(), {.rows = rows_.target()}};
  EXPECT_THAT(
      error_of([&] { cast_many(std::vector<CastJob>{job, {x(), {.rows = other.target()}}}); }),
      HasSubstr("cast_many: job 1: argument 'out.rows': expected shape"));
  EXPECT_THAT(rows_.codes(), testing::Each(0xAA));  // before anything is written
  EXPECT_THAT(error_of([&] { cast_many(std::vector{job, job}); }),
              HasSubstr(" of job 1': expected memory of its own, apart from 'out.rows"));
  EXPECT_THAT(error_of([&] { cast_many(std::vector<CastJob>{{x(), {}}}); }),
              HasSubstr("cast_many: job 0: argument 'out'"));
}

// Norms, and their gradients.
class NormRefusalsTest : public CastRefusalsTest {
 protected:
  static MutableTensorView matrix_of(std::vector<float>& values) {
    return matrix(values.data(), DType::kFloat32, std::ssize(values) / kCols, kCols);
  }
  static MutableTensorView vector_of(std::vector<float>& values) {
    return vector(values.data(), DType::kFloat32, std::ssize(values));
  }
  // A LayerNorm with everything.
  Normed everything() {
    return {.kind = NormKind::kLayer,
            .epsilon = 1e-5f,
            .x = matrix_of(x_),
            .residual = matrix_of(residual_),
            .operands = {.weight = vector_of(weight_)},
            .sum = matrix_of(sum_),
            .rstd = vector_of(rstd_),
            .mean = vector_of(mean_)};
  }

  std::vector<float> residual_ = x_, sum_ = x_, y_ = x_, weight_ = std::vector<float>(kCols, 1.0f),
                     rstd_ = std::vector<float>(kRows), mean_ = rstd_;
};

TEST_F(NormRefusalsTest, OfCasts) {
  Normed in_place = everything();
  in_place.sum = matrix_of(residual_);
  cast(in_place, {.rows = rows_.target()});
  EXPECT_THAT(residual_, testing::Each(2.0f));  // whose memory the sum may be
  refuse(
      everything(), {.rows = rows_.target()},
      {{[](auto& a, auto&) { a.sum.reset(); },
        "'sum': expected one where there is a residual, got none"},
       {[](auto& a, auto&) { a.residual.reset(); },
        "'sum': expected it to be omitted without a residual, got one"},
       {[](auto& a, auto&) { a.mean.reset(); }, "'mean': expected one for a LayerNorm"},
       {[](auto& a, auto&) { a.kind = NormKind::kRms; },
        "'mean': expected it to be omitted for an RMSNorm"},
       {[](auto& a, auto&) { a.kind = static_cast<NormKind>(7); },
        "'norm': expected a NormKind, got 7"},
       {[](auto& a, auto&) { a.rstd.data = nullptr; }, "'rstd': expected data"},
       {[](auto& a, auto&) { a.sum->strides[0] = 7; }, "'sum': expected rows that do not overlap"},
       {[](auto& a, auto&) { a.operands.weight->device = kGpu; },
        "'weight': expected a tensor on cpu, got one on cuda:0"},
       {[&](auto& a, auto&) { a.sum = matrix_of(x_); },
        "'sum': expected memory of its own, apart from 'x'"},
       {[](auto& a, auto& t) {
          a.sum->data = static_cast<float*>(const_cast<void*>(a.residual->data)) + 1;
          a.x.shape[0] = a.residual->shape[0] = a.sum->shape[0] = kRows - 1;
          t.rows->data.shape[0] = t.rows->scale.shape[0] = kRows - 1;
          a.rstd.shape[0] = a.mean->shape[0] = kRows - 1;
        },
        "'sum': expected memory of its own, apart from 'residual'"},
       {[&](auto& a, auto&) { a.rstd.data = sum_.data(); },
        "'rstd': expected memory of its own, apart from 'sum'"},
       {[&](auto& a, auto&) { a.mean->data = rstd_.data(); },
        "'mean': expected memory of its own, apart from 'rstd'"},
       {[&](auto&, auto& t) { t.rows->scale.data = mean_.data(); },
        "'out.rows.scale': expected memory of its own"}});
}

TEST_F(NormRefusalsTest, OfNumbers) {
  test::refused([](auto& given, auto& out) { norm(given, out); }, everything(), matrix_of(y_))({
      {[](auto& a, auto&) { a.epsilon = INFINITY; }, "norm: argument 'epsilon'"},
      {[](auto&, auto& y) { y.shape[0] = kRows - 1; }, "'y'"},
      {[](auto&, auto& y) { y.dtype = DType::kBFloat16; }, "'y'"},
      {[&](auto&, auto& y) { y.data = x_.data(); },
       "'y': expected memory of its own, apart from 'x'"},
      {[&](auto&, auto& y) { y.data = sum_.data(); },
       "'y': expected memory of its own, apart from 'sum'"},
  });
}

TEST_F(NormRefusalsTest, OfGradients) {
  std::vector<float> scale(2 * kCols, 0.5f), dweight(kCols), dscale(2 * kCols);
  std::vector<float> workspace(as_size(norm_workspace_rows(kCols, 2) * kCols));
  const NormGradientArguments arguments{
      .gradient = matrix_of(residual_),
      .x = matrix_of(x_),
      .rstd = vector_of(rstd_),
      .operands = {.weight = vector_of(weight_), .ada_scale = matrix_of(scale)}};
  const NormGradients gradients{.dx = matrix_of(y_),
                                .dweight = vector_of(dweight),
                                .d_ada_scale = matrix_of(dscale),
                                .workspace = matrix_of(workspace)};
  test::refused([](auto& given, auto& out) { norm_gradient(given, out); }, arguments, gradients)({
      {[](auto&, auto& g) { g.workspace.reset(); },
       "'workspace': expected one where more than dx is wanted, got none"},
      {[](auto&, auto& g) { g.dweight.reset(), g.d_ada_scale.reset(); },
       "'workspace': expected it to be omitted where dx alone is wanted, got one"},
      {[](auto&, auto& g) { --g.workspace->shape[0]; }, "'workspace': expected shape"},
      {[](auto& a, auto&) { a.operands.ada_scale.reset(); },
       "'d_ada_scale': expected it to be omitted without 'ada_scale', got one"},
      {[&](auto&, auto& g) { g.d_ada_shift = matrix_of(scale); },
       "'d_ada_shift': expected it to be omitted without 'ada_shift', got one"},
      {[&](auto&, auto& g) { g.dx = matrix_of(x_); },
       "'dx': expected memory of its own, apart from 'x'"},
      {[&](auto&, auto& g) { g.dweight = vector_of(weight_); },
       "'dweight': expected memory of its own, apart from 'weight'"},
      {[](auto& a, auto&) { a.operands.ada_scale->shape[0] = 1; },
       "'d_ada_scale': expected shape [1, 300], got [2, 300]"},
  });
}

}  // namespace
}  // namespace octofold
