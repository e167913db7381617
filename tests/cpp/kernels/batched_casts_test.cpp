// Casts of many matrices by one launch, run on the host: the bytes that the CPU backend gives
// for each of them, and none written elsewhere.
#include "octofold/cast_targets.h"

#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "cpu/cast.h"
#include "kernels/cast/batch.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

using config::CastBatchParams;
using config::CastFormat;
using config::CastJob;
using config::ScaleStep;

// The sizes of a stack: the number of its matrices, and the rows and columns of each.
struct Sizes {
  std::int64_t matrices, rows, cols;
};

// One whole tile; tiles in an even and in an odd number, some of them not whole; nothing.
constexpr Sizes kSizes[] = {{1, 128, 128}, {3, 264, 144}, {1, 8, 400}, {2, 0, 16}, {2, 136, 136}};

// A matrix, or a stack, and where it is cast to.
template <DType kIn>
class Job {
 public:
  Job(const Sizes& sizes, std::optional<Granularity> of_rows,
      std::optional<Granularity> of_transpose)
      : sizes_(sizes), x_(random_values<kIn>(sizes.matrices * sizes.rows, sizes.cols)) {
    const auto& [matrices, rows, cols] = sizes;
    if (of_rows) rows_.emplace(*of_rows, rows, cols, matrices);
    if (of_transpose) transposed_.emplace(*of_transpose, cols, rows, matrices);
  }

  CastJob params() {
    const auto& [matrices, rows, cols] = sizes_;
    const auto tiles = static_cast<int>(config::ceil_divide(rows, std::int64_t{kScaleBlock}));
    CastJob job{.x = x_.data(),
                .x_stride = cols,
                .rows = matrices * rows,
                .cols = cols,
                .row_target = {},
                .transposed_target = {},
                .matrices = matrices,
                .matrix_rows = rows,
                .matrix_tiles = tiles,
                .by_matrix_tiles = config::Divisor::of(static_cast<unsigned>(std::max(tiles, 1)))};
    if (rows_) job.row_target = rows_->target();
    if (transposed_) job.transposed_target = transposed_->target();
    return job;
  }
  std::int64_t tiles() const {
    return sizes_.matrices * config::ceil_divide(sizes_.rows, std::int64_t{kScaleBlock}) *
           config::ceil_divide(sizes_.cols, std::int64_t{kScaleBlock});
  }
  std::int64_t step_blocks(int threads) const {
    return config::ceil_divide(sizes_.matrices * std::max(sizes_.rows, sizes_.cols),
                               std::int64_t{threads});
  }

  void expect_cast(const CastFormat& format) {
    for (std::optional<Target>* target : {&rows_, &transposed_}) {
      if (*target) (*target)->expect_guards();
    }
    const auto& [matrices, rows, cols] = sizes_;
    for (std::int64_t i = 0; i < matrices; ++i) {
      std::optional<Target> of_rows, of_transpose;
      CastTargets out;
      if (rows_) {
        of_rows.emplace(rows_->view().format.granularity, rows, cols);
        out.rows = of_rows->view();
      }
      if (transposed_) {
        of_transpose.emplace(transposed_->view().format.granularity, cols, rows);
        out.transposed = of_transpose->view();
      }
      cpu::cast_values(matrix<const void>(x_.data() + i * rows * cols, kIn, rows, cols), out,
                       format);
      if (rows_) rows_->expect_matrix(i, *of_rows);
      if (transposed_) transposed_->expect_matrix(i, *of_transpose);
    }
  }

 private:
  Sizes sizes_;
  std::vector<Storage<kIn>> x_;
  std::optional<Target> rows_, transposed_;
};

template <DType kIn>
class Batch {
 public:
  Batch(std::optional<Granularity> of_rows, std::optional<Granularity> of_transpose) {
    for (const Sizes& sizes : kSizes) jobs_.emplace_back(sizes, of_rows, of_transpose);
  }

  template <TileCastConfig kConfig>
  void run() {
    static_assert(kConfig.invalid_reason() == nullptr);
    typename TileCast<kConfig>::Shared shared;
    launch(
        kConfig.threads(), [](const auto& job) { return job.tiles(); },
        [&](const CastBatchParams& batch, CastParams& params) {
          cast_tile_of_job<kConfig>(batch, params, shared);
        });
  }
  template <ScaleStepConfig kConfig>
  void run() {
    static_assert(kConfig.invalid_reason() == nullptr);
    launch(
        kConfig.threads(), [](const auto& job) { return job.step_blocks(kConfig.threads()); },
        [&](const CastBatchParams& batch, CastParams& params) {
          step_scales_of_job<kConfig>(batch, params);
        });
  }
  void expect_cast(const CastFormat& format) {
    for (Job<kIn>& job : jobs_) job.expect_cast(format);
  }

 private:
  template <typename Blocks, typename Kernel>
  void launch(int threads, Blocks&& blocks_of, Kernel&& kernel) {
    CastBatchParams params{};
    std::ranges::fill(params.first_block, CastBatchParams::kNoBlock);
    std::int64_t blocks = 0;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      params.jobs[i] = jobs_[i].params();
      params.first_block[i] = static_cast<int>(blocks);
      blocks += blocks_of(jobs_[i]);
    }
    CastParams of_block;  // in shared memory
    test::launch(blocks, threads, [&] { kernel(params, of_block); });
  }

  std::deque<Job<kIn>> jobs_;
};

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
  Batch<DType::kBFloat16> batch(kBlock128x128, kBlock128x128);
  batch.run<TileCastConfig{
      .format = kFormat, .to_transposed = true, .group_m = 2, .stacked = true}>();
  batch.expect_cast(kFormat);
}

TEST(BatchedCastsTest, BlocksOfRowsAndSquares) {
  constexpr CastFormat kFormat{.in = DType::kFloat32};
  Batch<DType::kFloat32> rows(kBlock1x128, std::nullopt), both(kBlock1x128, kBlock128x128);
  rows.run<TileCastConfig{.format = kFormat, .stacked = true}>();
  rows.expect_cast(kFormat);
  both.run<TileCastConfig{.format = kFormat,
                          .transposed_squares = true,
                          .to_transposed = true,
                          .group_m = 2,
                          .stacked = true}>();
  both.expect_cast(kFormat);
}

// Scales that no tile finds: the steps of a cast of four, each for all matrices.
template <Granularity kGranularity>
void expect_steps() {
  constexpr CastFormat kFormat{.granularity = kGranularity};
  constexpr auto kStep = [](ScaleStep step) {
    return ScaleStepConfig{.format = kFormat, .step = step, .to_transposed = true, .stacked = true};
  };
  constexpr auto kTiles = [](CastPhase phase) {
    return TileCastConfig{
        .format = kFormat, .phase = phase, .to_transposed = true, .group_m = 2, .stacked = true};
  };
  Batch<DType::kBFloat16> batch(kGranularity, kGranularity);
  batch.template run<kStep(ScaleStep::kClear)>();
  batch.template run<kTiles(CastPhase::kAmax)>();
  batch.template run<kTiles(CastPhase::kEncode)>();
  batch.template run<kStep(ScaleStep::kFinish)>();
  batch.expect_cast(kFormat);
}

TEST(BatchedCastsTest, ScalesOfTensorsAndChannels) {
  expect_steps<kTensor>();
  expect_steps<kChannel>();
}

}  // namespace
}  // namespace octofold::cast
