// Casts of stacks of matrices, run on the host: the bytes that the CPU backend gives for each
// matrix alone, and none written elsewhere.
#include "octofold/cast_targets.h"

#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "cpu/cast.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

using config::CastFormat;
using config::ScaleStep;

constexpr std::int64_t kMatrices = 3;

struct Kind {
  std::int64_t rows, cols;  // of one matrix
  std::optional<Granularity> of_rows{}, of_transpose{};
  bool scales_given = false;
  bool two_level = false;
  std::vector<int> used{};  // offsets by which some are left alone; empty: all are cast
};

// A stack, its targets, and the casts of each matrix alone.
template <DType kIn>
class Stack {
 public:
  Stack(const Kind& kind, const CastFormat& format)
      : kind_(kind),
        format_(format),
        x_(random_values<kIn>(kMatrices * kind.rows, kind.cols + kPadding)),
        row_factors_(random_factors(kMatrices * kind.rows)),
        column_factors_(random_factors(kMatrices * kind.cols)) {
    if (kind.of_rows) rows_.emplace(*kind.of_rows, kind.rows, kind.cols, kMatrices);
    if (kind.of_transpose) transposed_.emplace(*kind.of_transpose, kind.cols, kind.rows, kMatrices);
    if (!kind.scales_given) return;
    for (std::optional<Target>* target : {&rows_, &transposed_}) {
      if (!*target) continue;
      const std::vector<float> scales = random_factors(std::ssize((*target)->scales()));
      std::ranges::copy(scales, (*target)->scales().begin());
    }
  }

  CastParams params() {
    CastParams params{};
    params.x = x_.data();
    params.x_stride = kind_.cols + kPadding;
    params.rows = kMatrices * kind_.rows;
    params.cols = kind_.cols;
    if (rows_) params.row_target = rows_->target();
    if (transposed_) params.transposed_target = transposed_->target();
    params.row_channel_scale = row_factors_.data();
    params.transposed_channel_scale = column_factors_.data();
    params.matrices = kMatrices;
    params.matrix_rows = kind_.rows;
    params.matrix_tiles = static_cast<int>(config::ceil_divide(kind_.rows, kScaleBlock));
    params.by_matrix_tiles = config::Divisor::of(static_cast<unsigned>(params.matrix_tiles));
    params.used = kind_.used.data();
    return params;
  }

  void expect_each_alone() {
    for (std::optional<Target>* target : {&rows_, &transposed_}) {
      if (*target) (*target)->expect_guards();
    }
    for (std::int64_t i = 0; i < kMatrices; ++i) {
      if (!kind_.used.empty() && kind_.used[as_size(i)] >= kind_.used[as_size(i + 1)]) {
        for (const auto* target : {&rows_, &transposed_}) {
          if (*target) (*target)->expect_untouched(i);
        }
        continue;
      }
      const auto* first = x_.data() + i * kind_.rows * (kind_.cols + kPadding);
      std::optional<Target> of_rows, of_transpose;
      CastTargets out;
      if (rows_) {
        of_rows.emplace(*kind_.of_rows, kind_.rows, kind_.cols);
        out.rows = view(*of_rows, *rows_, i, row_factors_, kind_.rows);
      }
      if (transposed_) {
        of_transpose.emplace(*kind_.of_transpose, kind_.cols, kind_.rows);
        out.transposed = view(*of_transpose, *transposed_, i, column_factors_, kind_.cols);
      }
      cpu::cast_values(
          matrix<const void>(first, kIn, kind_.rows, kind_.cols, kind_.cols + kPadding), out,
          format_);
      if (rows_) rows_->expect_matrix(i, *of_rows);
      if (transposed_) transposed_->expect_matrix(i, *of_transpose);
    }
  }

 private:
  static constexpr std::int64_t kPadding = 8;

  // Returns the target of one matrix, with the given scales and the factors of its own.
  CastTarget view(Target& one, Target& stack, std::int64_t index, const std::vector<float>& factors,
                  std::int64_t channels) const {
    if (kind_.scales_given) {
      const auto count = std::ssize(one.scales());
      std::copy_n(stack.scales().begin() + index * count, count, one.scales().begin());
    }
    CastTarget view = one.view();
    if (kind_.scales_given) view.scales = ScaleSource::kGiven;
    if (kind_.two_level && view.format.granularity == kBlock128x128) {
      view.channel_scale = vector(factors.data() + index * channels, DType::kFloat32, channels);
    }
    return view;
  }

  Kind kind_;
  CastFormat format_;
  std::vector<Storage<kIn>> x_;
  std::vector<float> row_factors_, column_factors_;
  std::optional<Target> rows_, transposed_;
};

// By these kernels, one after another.
template <auto... kConfigs, DType kIn>
void expect_each_alone(Stack<kIn> stack) {
  const CastParams params = stack.params();
  (launch<kConfigs>(params), ...);
  stack.expect_each_alone();
}

// By one kernel of this configuration, and what follows from it.
template <TileCastConfig kConfig>
void expect_tiles(std::int64_t rows, std::int64_t cols, const std::vector<int>& used = {}) {
  const Granularity granularity = kConfig.format.granularity;
  const bool squares = kConfig.transposed_squares || kConfig.two_level;
  Kind kind{.rows = rows,
            .cols = cols,
            .scales_given = kConfig.phase == CastPhase::kEncodeGiven,
            .two_level = kConfig.two_level,
            .used = used};
  if (kConfig.to_rows) kind.of_rows = granularity;
  if (kConfig.to_transposed) kind.of_transpose = squares ? kBlock128x128 : granularity;
  expect_each_alone<kConfig>(Stack<kConfig.format.in>(kind, kConfig.format));
}

TEST(StackedCastsTest, SquaresOfBothTargets) {
  constexpr CastFormat kFormat{.granularity = kBlock128x128};
  constexpr TileCastConfig kBoth{
      .format = kFormat, .to_transposed = true, .group_m = 2, .stacked = true};
  expect_tiles<kBoth>(136, 144);  // an odd number of tiles in a matrix, or an even one
  expect_tiles<kBoth>(256, 128);
  expect_tiles<kBoth>(8, 264);
  expect_tiles<TileCastConfig{.format = {.in = DType::kFloat16,
                                         .granularity = kBlock128x128,
                                         .rule = config::kDeepSeekRule},
                              .to_transposed = true,
                              .vector_loads = false,
                              .vector_stores = false,
                              .group_m = 2,
                              .stacked = true}>(131, 77);
}

TEST(StackedCastsTest, SquaresOfOneTarget) {
  constexpr CastFormat kFormat{.in = DType::kFloat32, .granularity = kBlock128x128};
  expect_tiles<TileCastConfig{.format = kFormat, .stacked = true}>(131, 132);
  expect_tiles<TileCastConfig{
      .format = kFormat, .to_rows = false, .to_transposed = true, .group_m = 2, .stacked = true}>(
      136, 132);
}

TEST(StackedCastsTest, BlocksOfLines) {
  expect_tiles<TileCastConfig{.to_transposed = true, .group_m = 2, .stacked = true}>(136, 264);
  expect_tiles<TileCastConfig{.format = {.in = DType::kFloat32, .rule = config::kDeepSeekRule},
                              .to_rows = false,
                              .to_transposed = true,
                              .vector_loads = false,
                              .vector_stores = false,
                              .group_m = 2,
                              .stacked = true}>(130, 50);
}

TEST(StackedCastsTest, SquaresBesideRowsOfBlocks) {
  expect_tiles<TileCastConfig{.format = {.in = DType::kFloat16, .rule = config::kDeepSeekRule},
                              .transposed_squares = true,
                              .to_transposed = true,
                              .group_m = 2,
                              .stacked = true}>(136, 136);
}

TEST(StackedCastsTest, TwoLevelScales) {
  for (const std::int64_t rows : {std::int64_t{136}, std::int64_t{8}}) {
    expect_tiles<TileCastConfig{.format = {.granularity = kBlock128x128},
                                .two_level = true,
                                .to_transposed = true,
                                .group_m = 2,
                                .stacked = true}>(rows, 136);
    expect_tiles<TileCastConfig{.format = {.in = DType::kFloat32, .rule = config::kTorchAoRule},
                                .two_level = true,
                                .to_transposed = true,
                                .group_m = 2,
                                .stacked = true}>(rows, 136);
  }
}

template <Granularity kGranularity>
void expect_given() {
  expect_tiles<TileCastConfig{.format = {.granularity = kGranularity},
                              .phase = CastPhase::kEncodeGiven,
                              .to_transposed = true,
                              .group_m = 2,
                              .stacked = true}>(136, 136);
}

TEST(StackedCastsTest, GivenScales) {
  expect_given<kTensor>();
  expect_given<kChannel>();
  expect_given<kBlock1x128>();
  expect_given<kBlock128x128>();
}

// Scales that no tile finds, of each matrix: the steps of a cast of four.
template <CastFormat kFormat, bool kRows, bool kTransposed, bool kSkips = false>
void expect_steps(std::int64_t rows, std::int64_t cols, const std::vector<int>& used = {}) {
  constexpr auto kStep = [](ScaleStep step) {
    return ScaleStepConfig{.format = kFormat,
                           .step = step,
                           .to_rows = kRows,
                           .to_transposed = kTransposed,
                           .stacked = true,
                           .skips_unused = kSkips};
  };
  constexpr auto kTiles = [](CastPhase phase) {
    return TileCastConfig{.format = kFormat,
                          .phase = phase,
                          .to_rows = kRows,
                          .to_transposed = kTransposed,
                          .group_m = kTransposed ? 2 : 1,
                          .stacked = true,
                          .skips_unused = kSkips};
  };
  Kind kind{.rows = rows, .cols = cols, .used = used};
  if (kRows) kind.of_rows = kFormat.granularity;
  if (kTransposed) kind.of_transpose = kFormat.granularity;
  expect_each_alone<kStep(ScaleStep::kClear), kTiles(CastPhase::kAmax), kTiles(CastPhase::kEncode),
                    kStep(ScaleStep::kFinish)>(Stack<kFormat.in>(kind, kFormat));
}

TEST(StackedCastsTest, ScalesOfEachTensor) {
  constexpr CastFormat kFormat{.granularity = kTensor};
  expect_steps<kFormat, true, true>(136, 136);
  expect_steps<kFormat, true, false>(131, 264);
  expect_steps<kFormat, false, true>(8, 136);
}

TEST(StackedCastsTest, ScalesOfEachChannel) {
  constexpr CastFormat kFormat{.in = DType::kFloat16, .granularity = kChannel};
  expect_steps<kFormat, true, true>(136, 136);
  expect_steps<kFormat, false, true>(256, 72);
}

TEST(StackedCastsTest, ChannelsBesideRowsOfBlocks) {
  constexpr CastFormat kBlocks{.rule = config::kTorchAoRule};
  constexpr CastFormat kChannels{.granularity = kChannel, .rule = config::kTorchAoRule};
  constexpr auto kStep = [](ScaleStep step) {
    return ScaleStepConfig{.format = kChannels,
                           .step = step,
                           .to_rows = false,
                           .to_transposed = true,
                           .stacked = true};
  };
  constexpr TileCastConfig kAmax{.format = kChannels,
                                 .phase = CastPhase::kAmax,
                                 .to_rows = false,
                                 .to_transposed = true,
                                 .stacked = true};
  constexpr TileCastConfig kCodes{
      .format = kBlocks, .phase = CastPhase::kWholeRows, .to_transposed = true, .stacked = true};
  const Kind kind{.rows = 136, .cols = 136, .of_rows = kBlock1x128, .of_transpose = kChannel};
  expect_each_alone<kStep(ScaleStep::kClear), kAmax, kCodes, kStep(ScaleStep::kFinish)>(
      Stack<DType::kBFloat16>(kind, kBlocks));
}

// The last: offsets that no sort has made.
const std::vector<std::vector<int>> kUsed = {
    {0, 4, 4, 5}, {0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 2, 3}, {5, -7, 1 << 30, 9}};

TEST(StackedCastsTest, MatricesThatAreNotUsedAreLeftAlone) {
  constexpr TileCastConfig kSquares{.format = {.granularity = kBlock128x128},
                                    .to_transposed = true,
                                    .group_m = 2,
                                    .stacked = true,
                                    .skips_unused = true};
  constexpr TileCastConfig kLines{.stacked = true, .skips_unused = true};
  constexpr CastFormat kTensors{.granularity = kTensor}, kChannels{.granularity = kChannel};
  for (const std::vector<int>& used : kUsed) {
    expect_tiles<kSquares>(136, 144, used);
    expect_tiles<kLines>(150, 136, used);
    expect_steps<kTensors, true, true, true>(136, 136, used);
    expect_steps<kChannels, true, true, true>(136, 72, used);
  }
}

TEST(StackedCastsTest, RowsOfMatricesThatAreNotUsedAreLeftAlone) {
  constexpr RowCastConfig kWholeBlock{.vectors_per_thread = 1, .skips_unused = true};
  constexpr RowCastConfig kManyRows{
      .threads_per_row = 32, .vectors_per_thread = 2, .skips_unused = true};
  for (const std::vector<int>& used : kUsed) {
    const Kind kind{.rows = 9, .cols = 136, .of_rows = kChannel, .used = used};
    expect_each_alone<kWholeBlock>(Stack<DType::kBFloat16>(kind, kWholeBlock.format));
    expect_each_alone<kManyRows>(Stack<DType::kBFloat16>(kind, kManyRows.format));
  }
}

}  // namespace
}  // namespace octofold::cast
