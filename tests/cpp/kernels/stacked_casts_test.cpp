// Casts of stacks of matrices, and of many matrices by one launch, run on the host: the bytes that
// the CPU backend gives for each matrix, and none written elsewhere.
#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "kernels/cast/batch.h"

namespace octofold::cast {
namespace {

using config::CastBatchParams;

struct Kind {
  std::int64_t rows, cols;  // of one matrix
  std::optional<Granularity> of_rows{}, of_transpose{};
  bool scales_given = false;
  std::vector<int> used{};  // offsets by which some are left alone; empty: all are cast
};

Targets targets_of(const Kind& kind, std::int64_t matrices) {
  Targets targets{.given = {.matrices = matrices}};
  if (kind.of_rows) targets.rows.emplace(*kind.of_rows, kind.rows, kind.cols, matrices);
  if (kind.of_transpose) {
    targets.transposed.emplace(*kind.of_transpose, kind.cols, kind.rows, matrices);
  }
  targets.for_each([&](Target& target) {
    if (kind.scales_given) target.given_scales = random_factors(target.units());
  });
  if (!kind.used.empty()) {
    targets.given.used = vector<const void>(kind.used.data(), DType::kInt32, std::ssize(kind.used));
  }
  return targets;
}

// Tiles that write the transposes of a stack too.
constexpr TileCastConfig with_transpose(TileCastConfig tiles) {
  tiles.to_transposed = tiles.stacked = true;
  tiles.group_m = 2;
  return tiles;
}

// By these kernels, one after another.
template <CastFormat kFormat, auto... kConfigs>
void expect_stack(const Kind& kind) {
  constexpr std::int64_t kMatrices = 3;
  const Matrix x = random_values(kFormat.in, kMatrices * kind.rows, kind.cols);
  expect_as_on_cpu<kConfigs...>(x.view(), targets_of(kind, kMatrices), kFormat);
}

// By one kernel of this configuration, and what follows from it.
template <TileCastConfig kConfig>
void expect_tiles(std::int64_t rows, std::int64_t cols, const std::vector<int>& used = {}) {
  const Granularity granularity = kConfig.format.granularity;
  Kind kind{.rows = rows,
            .cols = cols,
            .scales_given = kConfig.phase == CastPhase::kEncodeGiven,
            .used = used};
  if (kConfig.to_rows) kind.of_rows = granularity;
  if (kConfig.to_transposed)
    kind.of_transpose = kConfig.transposed_squares ? kBlock128x128 : granularity;
  expect_stack<kConfig.format, kConfig>(kind);
}

TEST(StackedCastsTest, SquaresOfBothTargets) {
  constexpr CastFormat kFormat{.granularity = kBlock128x128};
  constexpr TileCastConfig kBoth = with_transpose({.format = kFormat});
  expect_tiles<kBoth>(136, 144);  // an odd number of tiles in a matrix, or an even one
  expect_tiles<kBoth>(256, 128);
  expect_tiles<kBoth>(8, 264);
  constexpr CastFormat kDivided{
      .in = DType::kFloat16, .granularity = kBlock128x128, .rule = config::kDeepSeekRule};
  expect_tiles<unaligned(with_transpose({.format = kDivided}))>(131, 77);
}

TEST(StackedCastsTest, SquaresOfOneTarget) {
  constexpr CastFormat kFormat{.in = DType::kFloat32, .granularity = kBlock128x128};
  expect_tiles<TileCastConfig{.format = kFormat, .stacked = true}>(131, 132);
  expect_tiles<with_transpose({.format = kFormat, .to_rows = false})>(136, 132);
}

TEST(StackedCastsTest, BlocksOfLines) {
  expect_tiles<with_transpose({})>(136, 264);
  constexpr CastFormat kDivided{.in = DType::kFloat32, .rule = config::kDeepSeekRule};
  expect_tiles<unaligned(with_transpose({.format = kDivided, .to_rows = false}))>(130, 50);
}

TEST(StackedCastsTest, SquaresBesideRowsOfBlocks) {
  constexpr CastFormat kDivided{.in = DType::kFloat16, .rule = config::kDeepSeekRule};
  expect_tiles<with_transpose({.format = kDivided, .transposed_squares = true})>(136, 136);
}

template <Granularity kGranularity>
void expect_given() {
  constexpr CastFormat kFormat{.granularity = kGranularity};
  expect_tiles<with_transpose({.format = kFormat, .phase = CastPhase::kEncodeGiven})>(136, 136);
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
  constexpr TileCastConfig kAmax{.format = kFormat,
                                 .phase = CastPhase::kAmax,
                                 .to_rows = kRows,
                                 .to_transposed = kTransposed,
                                 .group_m = kTransposed ? 2 : 1,
                                 .stacked = true,
                                 .skips_unused = kSkips};
  Kind kind{.rows = rows, .cols = cols, .used = used};
  if (kRows) kind.of_rows = kFormat.granularity;
  if (kTransposed) kind.of_transpose = kFormat.granularity;
  expect_stack<kFormat, scale_step(kAmax, ScaleStep::kClear), kAmax,
               in_phase(kAmax, CastPhase::kEncode), scale_step(kAmax, ScaleStep::kFinish)>(kind);
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
  constexpr TileCastConfig kAmax{.format = kChannels,
                                 .phase = CastPhase::kAmax,
                                 .to_rows = false,
                                 .to_transposed = true,
                                 .stacked = true};
  constexpr TileCastConfig kCodes{
      .format = kBlocks, .phase = CastPhase::kWholeRows, .to_transposed = true, .stacked = true};
  const Kind kind{.rows = 136, .cols = 136, .of_rows = kBlock1x128, .of_transpose = kChannel};
  expect_stack<kBlocks, scale_step(kAmax, ScaleStep::kClear), kAmax, kCodes,
               scale_step(kAmax, ScaleStep::kFinish)>(kind);
}

// The last: offsets that no sort has made.
const std::vector<std::vector<int>> kUsed = {
    {0, 4, 4, 5}, {0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 2, 3}, {5, -7, 1 << 30, 9}};

TEST(StackedCastsTest, MatricesThatAreNotUsedAreLeftAlone) {
  constexpr TileCastConfig kSquares =
      with_transpose({.format = {.granularity = kBlock128x128}, .skips_unused = true});
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
    expect_stack<kWholeBlock.format, kWholeBlock>(kind);
    expect_stack<kManyRows.format, kManyRows>(kind);
  }
}

// ---- Many of them by one launch.

template <auto kConfig>
void run_batch(std::span<const cuda::CheckedCast> casts) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const cuda::CastBatch batch = cuda::batch_of(casts, kConfig);
  CastParams of_block;  // in shared memory
  if constexpr (std::is_same_v<decltype(kConfig), const TileCastConfig>) {
    typename TileCast<kConfig>::Shared shared;
    test::launch(batch.blocks, kConfig.threads(),
                 [&] { cast_tile_of_job<kConfig>(batch.params, of_block, shared); });
  } else {
    test::launch(batch.blocks, kConfig.threads(),
                 [&] { step_scales_of_job<kConfig>(batch.params, of_block); });
  }
}

// One whole tile; tiles in an even and in an odd number, some of them not whole; nothing.
template <CastFormat kFormat, auto... kConfigs>
void expect_batch(std::optional<Granularity> of_rows, std::optional<Granularity> of_transpose) {
  std::deque<Matrix> x;
  std::deque<Targets> targets;
  std::vector<cuda::CheckedCast> casts;
  for (const auto& [matrices, rows, cols] :
       {std::array{1, 128, 128}, {3, 264, 144}, {1, 8, 400}, {2, 0, 16}, {2, 136, 136}}) {
    x.push_back(random_values(kFormat.in, matrices * rows, cols));
    targets.push_back(targets_of(
        {.rows = rows, .cols = cols, .of_rows = of_rows, .of_transpose = of_transpose}, matrices));
    casts.push_back({x.back().view(), targets.back().view(), kFormat});
  }
  std::deque<Targets> on_cpu = targets;
  (run_batch<kConfigs>(casts), ...);
  for (std::size_t i = 0; i < casts.size(); ++i) {
    cpu::cast(x[i].view(), on_cpu[i].view(), kFormat);
    targets[i].expect_same(on_cpu[i]);
  }
}

TEST(BatchedCastsTest, EachBlockFindsItsJob) {
  CastBatchParams params{};
  for (int count = 1; count <= CastBatchParams::kMostJobs; ++count) {
    std::ranges::fill(params.first_block, CastBatchParams::kNoBlock);
    std::vector<int> jobs;  // of each block; every third one has none
    for (int i = 0; i < count; ++i) {
      params.first_block[i] = static_cast<int>(jobs.size());
      jobs.insert(jobs.end(), as_size(i % 3 == 1 ? 0 : 1 + i % 5), i);
    }
    for (std::size_t block = 0; block < jobs.size(); ++block) {
      ASSERT_EQ(params.job_of(static_cast<int>(block)), jobs[block]);
    }
  }
}

TEST(BatchedCastsTest, SquaresOfBothTargets) {
  constexpr CastFormat kFormat{.granularity = kBlock128x128, .rule = config::kTorchAoRule};
  expect_batch<kFormat, with_transpose({.format = kFormat})>(kBlock128x128, kBlock128x128);
}

TEST(BatchedCastsTest, BlocksOfRowsAndSquares) {
  constexpr CastFormat kFormat{.in = DType::kFloat32};
  expect_batch<kFormat, TileCastConfig{.format = kFormat, .stacked = true}>(kBlock1x128,
                                                                            std::nullopt);
  expect_batch<kFormat, with_transpose({.format = kFormat, .transposed_squares = true})>(
      kBlock1x128, kBlock128x128);
}

// Scales that no tile finds: the steps of a cast of four, each for all matrices.
template <Granularity kGranularity>
void expect_steps_of_batch() {
  constexpr CastFormat kFormat{.granularity = kGranularity};
  constexpr TileCastConfig kAmax = with_transpose({.format = kFormat, .phase = CastPhase::kAmax});
  expect_batch<kFormat, scale_step(kAmax, ScaleStep::kClear), kAmax,
               in_phase(kAmax, CastPhase::kEncode), scale_step(kAmax, ScaleStep::kFinish)>(
      kGranularity, kGranularity);
}

TEST(BatchedCastsTest, ScalesOfTensorsAndChannels) {
  expect_steps_of_batch<kTensor>();
  expect_steps_of_batch<kChannel>();
}

}  // namespace
}  // namespace octofold::cast
