// Casts of one matrix, run on the host: by largest magnitudes that are given, by clusters of
// blocks, and reductions of columns. They write what the CPU backend writes. And activations that
// are written in numbers, which are near that.
#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "kernels/cast/column_reductions.h"
#include "kernels/cast/values.h"

namespace octofold::cast {
namespace {

// ---- Largest magnitudes that are given, and values far beyond them.

// Most are about as large as the values; some are tiny, so that these overflow, zero, infinite or
// negative.
Floats magnitudes_of(std::int64_t units) {
  Floats amax = random_factors(units);
  const float specials[] = {0.0f, 1e-42f, 1e-38f, 1e-20f, -3.0f, 3e38f, HUGE_VALF};
  for (std::size_t i = 0; i < std::size(specials) && 3 * i + 1 < amax.size(); ++i) {
    amax[3 * i + 1] = specials[i];
  }
  return amax;
}

// Some of them infinite or NaN, and as large as they come.
Matrix far_values(DType in, std::int64_t rows, std::int64_t cols) {
  Matrix x = random_values(in, rows, cols);
  const float specials[] = {HUGE_VALF, -HUGE_VALF, std::nanf(""), 65504.0f, -3e38f, -0.0f, 1e-42f};
  for (std::int64_t i = 0; i < 40 * std::ssize(specials); ++i) {
    const std::int64_t at = i * 61 % (rows * cols);
    x.set(at / cols, at % cols, specials[i % std::ssize(specials)]);
  }
  return x;
}

// Returns the unit whose amax is given: that of the transpose alone, beside rows of 1x128.
constexpr Granularity long_unit(const CastFormat& format) {
  return format.granularity == kBlock1x128 ? kChannel : format.granularity;
}

template <TileCastConfig kConfig>
constexpr ScaleStepConfig step_of(ScaleStep step) {
  CastFormat format = kConfig.format;
  format.granularity = long_unit(format);
  return {.format = format,
          .step = step,
          .to_rows = kConfig.to_rows && kConfig.format.granularity == format.granularity,
          .to_transposed = kConfig.to_transposed};
}

// The configuration that the planner has for it: another kernel for rules that divide.
template <DType kIn, CastRule kRule, Granularity kGranularity, bool kRows, bool kTransposed>
void expect_given_amax(float of_tensor = 2.5f) {
  constexpr TileCastConfig kConfig{
      .format = {.in = kIn, .granularity = kGranularity, .rule = kRule},
      .phase = kGranularity == kBlock1x128 ? CastPhase::kWholeRows : CastPhase::kEncode,
      .amax_given = kRule.arithmetic == config::CastArithmetic::kDivide ||
                    (kGranularity == kTensor && kRows && kTransposed),
      .to_rows = kRows,
      .to_transposed = kTransposed,
      .vector_loads = false,
      .vector_stores = false,
      .group_m = 2};
  constexpr std::int64_t kSize = 131, kWidth = 141;
  const Matrix x = far_values(kIn, kSize, kWidth);
  Targets targets;
  if (kRows) targets.rows.emplace(kGranularity, kSize, kWidth);
  if (kTransposed) targets.transposed.emplace(long_unit(kConfig.format), kWidth, kSize);
  targets.for_each([&](Target& target) {
    if (target.granularity() == kChannel) target.set_amax(magnitudes_of(target.units()));
    if (target.granularity() == kTensor) target.set_amax({of_tensor /= 3});
  });
  expect_as_on_cpu<step_of<kConfig>(ScaleStep::kTake), kConfig,
                   step_of<kConfig>(ScaleStep::kFinish)>(x.view(), targets, kConfig.format);
}

template <DType kIn, CastRule kRule>
void expect_given_amax() {
  expect_given_amax<kIn, kRule, kBlock1x128, true, true>();
  expect_given_amax<kIn, kRule, kChannel, true, true>();
  expect_given_amax<kIn, kRule, kChannel, true, false>();
  for (const float amax : {7.5f, 3e-42f, -1200.0f, HUGE_VALF}) {
    expect_given_amax<kIn, kRule, kTensor, true, true>(amax);
    expect_given_amax<kIn, kRule, kTensor, false, true>(amax);
  }
}

TEST(GivenAmaxTest, OfFactors) {
  expect_given_amax<DType::kFloat32, config::kTorchAoRule>();
  expect_given_amax<DType::kBFloat16, config::kTransformerEngineRule>();
}
TEST(GivenAmaxTest, OfReciprocals) { expect_given_amax<DType::kFloat16, config::kDeepGemmRule>(); }
TEST(GivenAmaxTest, OfDivisions) {
  expect_given_amax<DType::kFloat32, config::kDeepSeekRule>();
  expect_given_amax<DType::kFloat16, config::kTorchAoTensorRule>();
  expect_given_amax<DType::kBFloat16, config::kVllmPerTokenRule>();
}
TEST(GivenAmaxTest, OfDivisionsInTheType) {
  expect_given_amax<DType::kBFloat16, config::kCompressedTensorsRule>();
}

// ---- Activations in numbers.

template <config::ValuesConfig kConfig>
void expect_values(std::int64_t rows, std::int64_t cols) {
  constexpr Activation kActivation = kConfig.source.activation;
  const std::int64_t width = is_gated(kActivation) ? 2 * cols : cols;
  const Matrix x = random_values(kConfig.in, rows, width);
  const Matrix gradient = random_values(kConfig.in, rows, cols);
  const bool goes_back = kConfig.source.kind == config::SourceKind::kActivationGradient;
  CastSource source = Activated{.x = x.view(), .activation = kActivation};
  if (goes_back) source = ActivationGradient{gradient.view(), x.view(), kActivation};
  Matrix device(kConfig.in, rows, goes_back ? width : cols, 8), expected = device;
  Targets targets{.rows = Target(kBlock1x128, rows, device.cols())};
  CastParams params = cuda::params_of(source, targets.view(), {.in = kConfig.in});
  params.row_target.codes = static_cast<unsigned char*>(device.view().data);
  params.row_target.codes_stride = device.view().strides[0];
  const std::int64_t vectors = rows * config::ceil_divide(device.cols(), kConfig.vector());
  test::launch(config::ceil_divide(vectors, kConfig.threads()), kConfig.threads(),
               [&] { values_kernel<kConfig>(params); });
  cpu::values(source, expected.view());
  for (std::int64_t i = 0; i < rows * device.cols(); ++i) {
    const double value = expected.at(i / device.cols(), i % device.cols());
    ASSERT_NEAR(device.at(i / device.cols(), i % device.cols()), value,
                0x1p-7 * std::abs(value) + 1e-5)
        << i;
  }
}

TEST(ValuesTest, AreNearTheCpus) {
  using enum config::SourceKind;
  expect_values<{.in = DType::kBFloat16, .source = {.kind = kActivation}}>(37, 136);
  expect_values<{.in = DType::kFloat16, .source = {.kind = kActivationGradient}}>(5, 136);
  expect_values<{.in = DType::kBFloat16,
                 .source = {.kind = kActivationGradient, .activation = Activation::kGelu},
                 .vectors = false}>(3, 77);
  expect_values<{.in = DType::kFloat16,
                 .source = {.kind = kActivation, .activation = Activation::kSwiGluOss},
                 .vectors = false}>(300, 5);
}

// ---- Rows of the transpose that end within a vector: nothing behind them is written.

TEST(TileCastTest, RaggedTransposesAreStoredInVectors) {
  for (const std::int64_t rows : {1, 7, 131, 260}) {
    const Matrix x = random_values(DType::kBFloat16, rows, 144);
    constexpr TileCastConfig kLines{.format = {.in = DType::kBFloat16},
                                    .to_rows = true,
                                    .to_transposed = true,
                                    .ragged = true,
                                    .group_m = 2};
    constexpr TileCastConfig kSquares{
        .format = {.in = DType::kBFloat16, .granularity = kBlock128x128},
        .to_rows = false,
        .to_transposed = true,
        .ragged = true,
        .group_m = 2};
    expect_as_on_cpu<kLines>(
        x.view(),
        {.rows = Target(kBlock1x128, rows, 144), .transposed = Target(kBlock1x128, 144, rows)},
        kLines.format);
    expect_as_on_cpu<kSquares>(x.view(), {.transposed = Target(kBlock128x128, 144, rows)},
                               kSquares.format);
  }
}

// ---- Columns that a cluster of blocks has: rows of 1x128, and a transpose with a scale a row.

template <DType kIn, int kTiles>
void expect_cluster(std::int64_t rows, std::int64_t cols, bool spoil) {
  constexpr TileCastConfig kConfig{.format = {.in = kIn, .rule = config::kTorchAoRule},
                                   .to_rows = true,
                                   .to_transposed = true,
                                   .vector_loads = false,
                                   .vector_stores = false,
                                   .cluster_tiles = kTiles};
  Matrix x = random_values(kIn, rows, cols);
  x.set(rows - 1, 1, 1000);  // of the last block, for all
  if (spoil) {
    x.set(3, 2, std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t row = 0; row < rows; ++row) x.set(row, 0, 0);
  }
  const Targets targets{.rows = Target(kBlock1x128, rows, cols),
                        .transposed = Target(kChannel, cols, rows)};
  expect_as_on_cpu<kConfig>(x.view(), targets, kConfig.format);
}

TEST(ClusterCastTest, FindsTheLargestOfAllBlocks) {
  expect_cluster<DType::kFloat32, 2>(129, 130, false);
  expect_cluster<DType::kBFloat16, 2>(256, 17, false);
  expect_cluster<DType::kFloat32, 3>(300, 257, false);
  expect_cluster<DType::kBFloat16, 4>(500, 128, false);
}

TEST(ClusterCastTest, NanIsTheLargestAndZeroTheSmallest) {
  expect_cluster<DType::kFloat32, 3>(300, 140, true);
  expect_cluster<DType::kFloat16, 3>(300, 140, true);
}

// ---- Reductions of columns: which element goes into which sum.

struct Columns {
  explicit Columns(std::int64_t rows, std::int64_t cols)
      : sums(as_size(cols), NAN),
        amax(sums),
        workspace(as_size(2 * config::ceil_divide(rows, config::kReducedRows) * cols), NAN) {}
  ColumnTargets view() {
    const auto whole = [](Floats& values) {
      return vector(values.data(), DType::kFloat32, std::ssize(values));
    };
    return {.sums = whole(sums), .amax = whole(amax), .workspace = whole(workspace)};
  }

  Floats sums, amax, workspace;
};

// Returns the reductions of x by the kernels.
template <DType kIn, bool kVectors>
Columns reduced(const Matrix& x) {
  constexpr TileCastConfig kTiles{.format = {.in = kIn},
                                  .to_transposed = true,
                                  .vector_loads = kVectors,
                                  .group_m = 2,
                                  .columns = {.sums = true, .amax = true}};
  constexpr config::ColumnReductionConfig kColumns{.columns = kTiles.columns};
  static_assert(kTiles.invalid_reason() == nullptr && kColumns.invalid_reason() == nullptr);
  Columns columns(x.rows(), x.cols());
  Targets targets{.transposed = Target(kBlock1x128, x.cols(), x.rows()),  // not written here
                  .given = {.columns = columns.view()}};
  const CastParams params = cuda::params_of(x.view(), targets.view(), kTiles.format);
  const std::int64_t down = config::ceil_divide(x.rows(), config::kReducedRows);
  ColumnsOfGroups<kTiles> shared;
  test::launch(down * config::ceil_divide(x.cols(), kScaleBlock), kTiles.threads(), [&] {
    Tiles<kTiles> tiles{{params, 0}};
    load<kTiles>(params, tiles);
    reduce_columns<kTiles>(params, tiles[0], shared);
  });
  if (down == 1) return columns;  // tiles write the results themselves
  typename ColumnReduction<kColumns>::Shared shared_by_groups;
  test::launch(config::ceil_divide(x.cols(), kColumns.kColumns), kColumns.threads(),
               [&] { ColumnReduction<kColumns>(params, shared_by_groups).run(); });
  return columns;
}

template <DType kIn, bool kVectors>
void expect_columns(std::int64_t rows, std::int64_t cols) {
  test::Random random;
  Matrix x(kIn, rows, cols, 8);
  std::vector<double> sums(as_size(cols)), amax(sums);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      // Sums of these are exact, in any order.
      x.set(row, col, static_cast<float>(static_cast<int>(random() % 512) - 100));
      sums[as_size(col)] += x.at(row, col);
      amax[as_size(col)] = std::max(amax[as_size(col)], std::abs(x.at(row, col)));
    }
  }
  const Columns columns = reduced<kIn, kVectors>(x);
  for (std::size_t col = 0; col < sums.size(); ++col) {
    ASSERT_EQ(columns.sums[col], sums[col]) << col;
    ASSERT_EQ(columns.amax[col], amax[col]) << col;
  }
}

template <DType kIn>
void expect_columns() {
  expect_columns<kIn, true>(300, 264);
  expect_columns<kIn, false>(129, 77);
  expect_columns<kIn, false>(1, 1);
}

TEST(ColumnReductionsTest, OfFloat32) { expect_columns<DType::kFloat32>(); }
TEST(ColumnReductionsTest, OfFloat16) { expect_columns<DType::kFloat16>(); }
TEST(ColumnReductionsTest, OfBFloat16) { expect_columns<DType::kBFloat16>(); }

// More rows of the workspace than groups of threads.
TEST(ColumnReductionsTest, OfManyRows) { expect_columns<DType::kBFloat16, true>(1500, 40); }

TEST(ColumnReductionsTest, NanIsHandedOn) {
  Matrix x = random_values(DType::kBFloat16, 200, 16);
  for (std::int64_t row = 0; row < x.rows(); ++row) x.set(row, 5, 1);
  x.set(150, 3, -NAN);
  x.set(7, 4, -HUGE_VALF);
  const Columns columns = reduced<DType::kBFloat16, true>(x);
  EXPECT_TRUE(std::isnan(columns.sums[3]) && std::isnan(columns.amax[3]));
  EXPECT_TRUE(std::isinf(columns.sums[4]) && columns.amax[4] > 0 && std::isinf(columns.amax[4]));
  EXPECT_EQ(columns.sums[5], 200.0f);
  EXPECT_EQ(columns.amax[5], 1.0f);
}

}  // namespace
}  // namespace octofold::cast
