// octofold::cast of stacks of matrices on the CPU: the bytes of casts of each one alone.
#include "octofold/cast.h"
#include "octofold/octofold.h"

#include "support/granularities.h"
#include "support/matrix.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using enum Granularity;
using test::Matrix;

constexpr std::int64_t kMatrices = 3;

// [matrices, rows, cols], rows so many elements apart.
MutableTensorView stack_view(void* data, DType dtype, std::int64_t rows, std::int64_t cols,
                             std::int64_t stride) {
  return {data, dtype, 3, {kMatrices, rows, cols}, {rows * stride, stride, 1}, {}};
}

// Codes and scales of a stack, with elements between the rows of codes.
struct Stack {
  Granularity granularity;
  std::int64_t rows, cols;
  Matrix codes;
  std::vector<float> scales;

  Stack(Granularity granularity_, std::int64_t rows_, std::int64_t cols_)
      : granularity(granularity_),
        rows(rows_),
        cols(cols_),
        codes(DType::kE4M3, kMatrices * rows, cols, 5) {
    scales.assign(as_size(scale_view().element_count()), -1.0f);
  }

  MutableTensorView scale_view() {
    const std::vector<std::int64_t> shape = scale_shape(granularity, rows, cols);
    MutableTensorView view{scales.data(), DType::kFloat32, 1, {kMatrices}, {1}, {}};
    if (granularity == kTensor) return view;
    for (const std::int64_t size : shape) view.shape[as_size(view.rank++)] = size;
    for (std::int32_t i = view.rank - 1; i > 0; --i) {
      view.strides[i] = 1;
      for (std::int32_t j = i + 1; j < view.rank; ++j) view.strides[i] *= view.shape[j];
    }
    view.strides[0] = view.strides[1] * view.shape[1];
    return view;
  }
  CastTarget target() {
    return {stack_view(codes.data(), DType::kE4M3, rows, cols, cols + 5),
            scale_view(),
            {.granularity = granularity}};
  }
  void expect_matrix(std::int64_t index, const ScaledMatrix& alone) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::uint8_t* own = codes.bytes().data() + (index * rows + row) * (cols + 5);
      EXPECT_EQ(std::memcmp(own, alone.codes().data() + row * cols, as_size(cols)), 0);
    }
    const std::size_t count = alone.scales().size();
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(scales[as_size(index) * count + i], alone.scales()[i]);
    }
    EXPECT_TRUE(codes.padding_is_untouched());
  }
  void expect_same_matrix(std::int64_t index, const Stack& other) const {
    const std::size_t bytes = as_size(rows * (cols + 5)), at = as_size(index) * bytes;
    EXPECT_EQ(std::memcmp(codes.bytes().data() + at, other.codes.bytes().data() + at, bytes), 0);
    const std::size_t count = scales.size() / as_size(kMatrices);
    for (std::size_t i = as_size(index) * count; i < as_size(index + 1) * count; ++i) {
      EXPECT_EQ(scales[i], other.scales[i]);
    }
  }
};

class StackedCastsTest : public testing::Test {
 protected:
  // Rows of x are longer than its columns.
  TensorView x() { return stack_view(x_.data(), DType::kFloat32, kRows, kCols, kCols + 3); }
  TensorView matrix_of(std::int64_t index) const {
    return matrix(static_cast<const float*>(x_.data()) + index * kRows * (kCols + 3),
                  DType::kFloat32, kRows, kCols, kCols + 3);
  }
  void expect_each_alone(Granularity of_rows, Granularity of_transpose) {
    Stack rows(of_rows, kRows, kCols), transposed(of_transpose, kCols, kRows);
    cast(x(), {.rows = rows.target(), .transposed = transposed.target(), .matrices = kMatrices});
    Stack rows_alone(of_rows, kRows, kCols), transposed_alone(of_transpose, kCols, kRows);
    cast(x(), {.rows = rows_alone.target(), .matrices = kMatrices});
    cast(x(), {.transposed = transposed_alone.target(), .matrices = kMatrices});
    for (std::int64_t i = 0; i < kMatrices; ++i) {
      ScaledMatrix one(kRows, kCols, {.granularity = of_rows}),
          its_transpose(kCols, kRows, {.granularity = of_transpose});
      cast(matrix_of(i), {.rows = one.target(), .transposed = its_transpose.target()});
      for (const Stack* stack : {&rows, &rows_alone}) stack->expect_matrix(i, one);
      for (const Stack* stack : {&transposed, &transposed_alone}) {
        stack->expect_matrix(i, its_transpose);
      }
    }
  }

  static constexpr std::int64_t kRows = 150, kCols = 200;
  std::mt19937 random_{test::Random()()};
  Matrix x_ = test::random_matrix(random_, kMatrices* kRows, kCols, 3);
};

TEST_F(StackedCastsTest, AreCastsOfEachMatrix) {
  for (const Granularity granularity : test::kGranularities) {
    expect_each_alone(granularity, granularity);
  }
  expect_each_alone(kBlock1x128, kChannel);
  expect_each_alone(kBlock1x128, kBlock128x128);
}

TEST_F(StackedCastsTest, ByGivenScalesOfEach) {
  for (const Granularity granularity : test::kGranularities) {
    Stack transposed(granularity, kCols, kRows);
    for (std::size_t i = 0; i < transposed.scales.size(); ++i) {
      transposed.scales[i] = 0.01f + 0.01f * static_cast<float>(i % 7);
    }
    cast(x(), test::given({.transposed = transposed.target(), .matrices = kMatrices}));
    for (std::int64_t i = 0; i < kMatrices; ++i) {
      ScaledMatrix one(kCols, kRows, {.granularity = granularity});
      const auto count = std::ssize(one.scales());
      std::copy_n(transposed.scales.begin() + i * count, count, one.scales().begin());
      cast(matrix_of(i), test::given({.transposed = one.target()}));
      transposed.expect_matrix(i, one);
    }
  }
}

TEST_F(StackedCastsTest, ByTwoLevelScalesOfEach) {
  std::vector<float> factors;
  for (int i = 0; i < kMatrices * kCols; ++i) {
    factors.push_back(0.5f + static_cast<float>(i * 37 % 41));
  }
  Stack transposed(kBlock128x128, kCols, kRows);
  CastTarget view = transposed.target();
  view.channel_scale = vector<const void>(factors.data(), DType::kFloat32, kMatrices * kCols);
  cast(x(), {.transposed = view, .matrices = kMatrices});
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    ScaledMatrix one(kCols, kRows, {.granularity = kBlock128x128});
    CastTarget its_view = one.target();
    its_view.channel_scale = vector<const void>(factors.data() + i * kCols, DType::kFloat32, kCols);
    cast(matrix_of(i), {.transposed = its_view});
    transposed.expect_matrix(i, one);
  }
}

TEST_F(StackedCastsTest, OnlyOfMatricesThatAreUsed) {
  const std::vector<std::int32_t> offsets{0, 3, 3, 4};
  const auto used = vector<const void>(offsets.data(), DType::kInt32, 4);
  for (const Granularity granularity : test::kGranularities) {
    Stack rows(granularity, kRows, kCols), transposed(granularity, kCols, kRows);
    const Stack untouched = rows, its_transpose = transposed;
    cast(x(), {.rows = rows.target(),
               .transposed = transposed.target(),
               .matrices = kMatrices,
               .used = used});
    for (const std::int64_t i : {0, 2}) {
      ScaledMatrix one(kRows, kCols, {.granularity = granularity}),
          of_transpose(kCols, kRows, {.granularity = granularity});
      cast(matrix_of(i), {.rows = one.target(), .transposed = of_transpose.target()});
      rows.expect_matrix(i, one);
      transposed.expect_matrix(i, of_transpose);
    }
    rows.expect_same_matrix(1, untouched);
    transposed.expect_same_matrix(1, its_transpose);
  }
}

TEST_F(StackedCastsTest, OfOneMatrixOrWithoutElements) {
  ScaledMatrix one(kRows, kCols, {.granularity = kBlock128x128}),
      alone(kRows, kCols, {.granularity = kBlock128x128});
  CastTarget view = one.target();
  view.scale = {view.scale.data, DType::kFloat32, 3, {1, 2, 2}, {4, 2, 1}, {}};
  cast(matrix_of(0), {.rows = view, .matrices = 1});
  cast(matrix_of(0), {.rows = alone.target()});
  EXPECT_THAT(one.codes(), testing::ElementsAreArray(alone.codes()));
  EXPECT_THAT(one.scales(), testing::ElementsAreArray(alone.scales()));

  std::vector<float> scales(3, -1.0f);
  const TensorView nothing = matrix<const void>(nullptr, DType::kFloat32, 0, kCols);
  const MutableTensorView codes{nullptr, DType::kE4M3, 3, {3, kCols, 0}, {kCols, 1, 1}, {}};
  cast(nothing,
       {.transposed =
            CastTarget{codes, vector(scales.data(), DType::kFloat32, 3), {.granularity = kTensor}},
        .matrices = 3});
  for (const float scale : scales) EXPECT_GE(scale, 0.0f);
}

TEST_F(StackedCastsTest, SayWhatIsWrong) {
  Stack rows(kBlock128x128, kRows, kCols), transposed(kBlock128x128, kCols, kRows);
  const std::vector<std::int32_t> offsets{0, 450}, used{0, 2, 2, 5}, wrong{0, 2, 1, 5};
  std::vector<float> sums(kCols);
  const auto refuses = test::refusing<CastTargets>([&](auto&& spoil) {
    CastTargets out{
        .rows = rows.target(), .transposed = transposed.target(), .matrices = kMatrices};
    spoil(out);
    return test::error_of([&] { cast(x(), out); });
  });
  refuses({
      {[](auto& out) { out.matrices = 4; },
       "cast: argument 'matrices': expected a number of at least 1 that divides 450 rows, got 4"},
      {[](auto& out) { out.matrices = 0; }, "divides 450 rows, got 0"},
      {[](auto& out) { out.matrices = 5; },
       "'out.rows.scale': expected shape [5, 1, 2], got [3, 2, 2]"},
      {[](auto& out) { out.matrices = 5, out.rows.reset(); },
       "'out.transposed': expected shape [5, 200, 90]"},
      {[](auto& out) { out.transposed->scale.strides[0] = 5; },
       "'out.transposed.scale': expected leading dimensions"},
      {[](auto& out) { out.rows->format.granularity = kTensor; },
       "'out.rows.scale': expected shape [3], got [3, 2, 2]"},
      {[](auto& out) { out.transposed->scale.data = out.rows->scale.data; },
       "apart from 'out.rows.scale'"},
      {[&](auto& out) { out.offsets = vector(offsets.data(), DType::kInt32, 2); },
       "'offsets': expected none beside 'matrices'"},
      {[&](auto& out) { out.columns.sums = vector(sums.data(), DType::kFloat32, kCols); },
       "'out.columns': expected none beside 'matrices'"},
      {[&](auto& out) {
         out.used = vector(used.data(), DType::kInt32, 4);
         out.matrices.reset();
         out.transposed.reset();
         out.rows->scale = {out.rows->scale.data, DType::kFloat32, 2, {4, 2}, {2, 1}, {}};
       },
       "'used': expected none without 'matrices'"},
      {[&](auto& out) { out.used = vector(used.data(), DType::kInt32, 3); },
       "'used': expected 4 offsets, one more than there are matrices"},
      {[&](auto& out) { out.used = vector(used.data(), DType::kFloat32, 4); },
       "'used': expected dtype int32"},
      {[&](auto& out) { out.used = vector(wrong.data(), DType::kInt32, 4); },
       "'used': expected entries that begin at 0, do not decrease"},
      {[&](auto& out) { out.used = vector<const void>(out.rows->scale.data, DType::kInt32, 4); },
       "'used'"},
  });
}

}  // namespace
}  // namespace octofold
