// The kernel of products with FP8 weights, compiled for each architecture: no register leaves the
// register file, and tensor cores do the work.
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "plan/mma/planner.h"
#include "plan/weight_only.h"
#include "support/nvrtc.h"
#include "support/sass.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::Sm90WeightOnlyConfig;
using config::WeightOnlyConfig;

class WeightOnlyKernelsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (test::nvrtc_is_missing()) GTEST_SKIP();
    gpu_ = plan::as_target({.compute_major = 12,
                            .compute_minor = 1,
                            .multiprocessors = 132,
                            .shared_memory_per_block = plan::kHopper.shared_memory_per_block},
                           GetParam());
    gpu_.is_translated = false;
  }

  // 16-bit numbers that all GPUs multiply.
  DType narrow() const { return GetParam() < 80 ? DType::kFloat16 : DType::kBFloat16; }

  static const char* header_of(const WeightOnlyConfig& config) { return config.header(); }
  static const char* header_of(const Sm90WeightOnlyConfig& config) { return config.kHeader; }
  static const char* kernel_of(const WeightOnlyConfig& config) { return config.kernel(); }
  static const char* kernel_of(const Sm90WeightOnlyConfig& config) { return config.kKernel; }

  template <typename Config>
  std::optional<jit::Binary> compiled(const Config& config, std::string& description) {
    plan::KernelPlan kernel =
        plan::kernel_plan("test", header_of(config), kernel_of(config), config, 1);
    description = kernel.description;
    std::optional<jit::Binary> binary = test::compiled(
        {kernel.header, kernel.kernel, plan::architecture(gpu_), kernel.description});
    if (!binary) return binary;
    const jit::ResourceUse& resources = binary->resources;
    kernel.shared_bytes = config.shared_bytes();
    test::record_resources(kernel, resources);
    EXPECT_EQ(resources.spill_store_bytes, 0) << description;
    EXPECT_EQ(resources.stack_bytes, 0) << description;
    EXPECT_EQ(resources.shared_bytes, 0) << description;
    EXPECT_LE(resources.registers * config.threads(), 65536) << description;
    EXPECT_EQ(test::count_operations(binary->image, test::SassOperation::kEndCollective), 0)
        << description;
    return binary;
  }

  static const WeightOnlyConfig& config_of(const plan::WeightOnlyWork& work) { return work.config; }
  static const Sm90WeightOnlyConfig& config_of(const Sm90WeightOnlyConfig& config) {
    return config;
  }

  void expect_sound(const Sm90WeightOnlyConfig& config) {
    std::string description;
    const std::optional<jit::Binary> binary = compiled(config, description);
    if (!binary) return;
    EXPECT_GT(test::count_operations(binary->image, test::SassOperation::kHgmma), 0) << description;
  }

  void expect_sound(const WeightOnlyConfig& config) {
    std::string description;
    const std::optional<jit::Binary> binary = compiled(config, description);
    if (!binary) return;
    // Products of a half of 128: four along the depth; decoded ahead, two halves of 64, of which
    // the second is there with copies beside it and without. Before Ampere instructions take half.
    const int along = config.ahead ? 2 * 3 : 4 * config.halves_at_once();
    const int products =
        config.on_tensor_cores()
            ? along * config.column_tiles() * config.row_tiles() * (GetParam() < 80 ? 2 : 1)
            : 0;
    EXPECT_EQ(test::count_operations(binary->image, test::SassOperation::kHmma), products)
        << description;
  }

  // Expects the kernel that the planner takes to be sound.
  void expect_sound(const plan::WeightOnlyProblem& problem) {
    const auto choice = plan_weight_only(problem, gpu_).config;
    std::visit([&](const auto& one) { expect_sound(config_of(one)); }, choice);
  }

  plan::Gpu gpu_;
};

TEST_P(WeightOnlyKernelsTest, OfFewRows) {
  const auto problem = [&](std::int64_t rows, DType x, Granularity scales) {
    return plan::WeightOnlyProblem{.rows = rows,
                                   .columns = 16384,
                                   .depth = 16384,
                                   .w = rows % 2 == 0 ? DType::kE5M2 : DType::kE4M3,
                                   .x = x,
                                   .out = DType::kFloat32,
                                   .w_scales = scales};
  };
  for (const std::int64_t rows : {1, 4, 16}) {
    expect_sound(problem(rows, narrow(), Granularity::kBlock128x128));
    expect_sound(problem(rows, DType::kFloat16, Granularity::kTensor));
    expect_sound(problem(rows, DType::kFloat32, Granularity::kBlock1x128));
  }
  auto of_codes = problem(9, DType::kE4M3, Granularity::kBlock1x128);
  of_codes.x_blocks = true;
  expect_sound(of_codes);
  auto anywhere = problem(3, narrow(), Granularity::kChannel);
  anywhere.is_aligned = anywhere.out_is_aligned = false;
  expect_sound(anywhere);
}

TEST_P(WeightOnlyKernelsTest, OfManyRows) {
  for (const std::int64_t rows : {64, 4096}) {
    expect_sound({.rows = rows,
                  .columns = 8192,
                  .depth = 8192,
                  .x = narrow(),
                  .out = narrow(),
                  .w_scales = Granularity::kBlock1x128});
    expect_sound({.rows = rows,
                  .columns = 8192,
                  .depth = 8192,
                  .x = DType::kFloat16,
                  .out = DType::kFloat16,
                  .w_scales = Granularity::kChannel});
  }
}

// Tiles with the most sums, whether the planner takes them or not.
TEST_P(WeightOnlyKernelsTest, OfTheLargestTiles) {
  for (const bool has_blocks : {false, true}) {
    const plan::WeightOnlyProblem problem{
        .rows = 4096,
        .columns = 8192,
        .depth = 8192,
        .x = narrow(),
        .out = narrow(),
        .w_scales = has_blocks ? Granularity::kBlock128x128 : Granularity::kTensor};
    for (const auto& [config, splits] : plan::mma::warp_weight_only_candidates(problem, gpu_)) {
      const bool is_largest = config.column_tiles() * config.row_tiles() >= 16 &&
                              config.stages == (config.ahead ? 3 : 2);
      if (is_largest) expect_sound(config);
    }
  }
}

TEST_P(WeightOnlyKernelsTest, OfADepthThatBlocksShare) {
  const plan::WeightOnlyProblem problem{.rows = 64,
                                        .columns = 4096,
                                        .depth = 8192,
                                        .x = narrow(),
                                        .out = narrow(),
                                        .w_scales = Granularity::kChannel,
                                        .has_workspace = true};
  const plan::WeightOnlyPlan plan = plan_weight_only(problem, gpu_);
  if (plan.kernels.size() == 1) GTEST_SKIP() << "this GPU's blocks add their sums themselves";
  ASSERT_EQ(plan.kernels.size(), 2u);
  expect_sound(problem);
  const plan::KernelPlan& combine = plan.kernels[1];
  const std::optional<jit::Binary> binary = test::compiled(
      {combine.header, combine.kernel, plan::architecture(gpu_), combine.description});
  if (!binary) return;
  EXPECT_EQ(binary->resources.spill_store_bytes, 0);
  EXPECT_LE(binary->resources.registers, 64);
}

TEST_P(WeightOnlyKernelsTest, OfGradients) {
  for (const Granularity scales :
       {Granularity::kTensor, Granularity::kBlock1x128, Granularity::kBlock128x128}) {
    for (const std::int64_t rows : {2, 4096}) {
      expect_sound({.rows = rows,
                    .columns = 8192,
                    .depth = 8192,
                    .x = narrow(),
                    .out = narrow(),
                    .transposed = true,
                    .w_scales = scales});
    }
  }
}

// The kernels that the planner takes for groups: from a token for each of a few experts up to many.
TEST_P(WeightOnlyKernelsTest, OfGroups) {
  plan::WeightOnlyProblem problem{.columns = 2048,
                                  .depth = 4096,
                                  .x = narrow(),
                                  .out = narrow(),
                                  .w_scales = Granularity::kBlock128x128,
                                  .work = config::Work::kGroupedRows,
                                  .groups = 128,
                                  .gathered = true};
  for (const std::int64_t rows : {8, 1024, 65536}) {
    problem.rows = rows;
    expect_sound(problem);
  }
  problem.w_scales = Granularity::kChannel;
  expect_sound(problem);
  problem.transposed = true;
  expect_sound(problem);
  problem.rows = 512;
  problem.is_aligned = problem.out_is_aligned = false;
  expect_sound(problem);
  problem.gathered = false;
  problem.is_aligned = problem.out_is_aligned = true;
  problem.work = config::Work::kMaskedRows;
  problem.expected = 8;
  expect_sound(problem);
}

// Tiles of groups with the most sums, whether the planner takes them or not.
TEST_P(WeightOnlyKernelsTest, OfTheLargestTilesOfGroups) {
  const plan::WeightOnlyProblem problem{.rows = 65536,
                                        .columns = 8192,
                                        .depth = 8192,
                                        .x = narrow(),
                                        .out = narrow(),
                                        .w_scales = Granularity::kBlock1x128,
                                        .work = config::Work::kGroupedRows,
                                        .groups = 8,
                                        .gathered = true};
  for (const auto& [config, splits] : plan::mma::warp_weight_only_candidates(problem, gpu_)) {
    const bool is_largest =
        config.column_tiles() * config.row_tiles() >= 16 && config.stages == (config.ahead ? 3 : 2);
    if (is_largest) expect_sound(config);
  }
}

// Batch-invariant ones, of few rows and of many.
TEST_P(WeightOnlyKernelsTest, OfBatchInvariantProducts) {
  for (const std::int64_t rows : {4, 1000}) {
    expect_sound({.rows = rows,
                  .columns = 2112,
                  .depth = 7168,
                  .x = narrow(),
                  .out = narrow(),
                  .w_scales = Granularity::kBlock128x128,
                  .batch_invariant = true});
  }
}

// The tiles of Hopper's own kernel with the most sums for a thread, for each kind of scales.
TEST_P(WeightOnlyKernelsTest, OfHopper) {
  if (GetParam() != 90) GTEST_SKIP() << "9.0 alone has products of warpgroups";
  const Sm90WeightOnlyConfig kinds[] = {
      {.w_blocks = true, .unit_sums = true},
      {.x = DType::kFloat16, .out = DType::kFloat32},
      {.transposed = true, .w_blocks = true, .unit_sums = true},
      {.w = DType::kE5M2, .transposed = true, .depth_factors = true, .store_vectors = false}};
  for (Sm90WeightOnlyConfig config : kinds) {
    config.tile_columns = 256;
    config.tile_rows = 112;
    config.stages = 2;
    expect_sound(config);
  }
  Sm90WeightOnlyConfig largest = kinds[0];
  largest.stages = 2;
  largest.tile_columns = largest.tile_rows = 192;
  largest.warpgroups = 3;
  expect_sound(largest);
  largest.tile_columns = 128;
  largest.tile_rows = 256;
  largest.warpgroups = 2;
  expect_sound(largest);
  for (Sm90WeightOnlyConfig config : kinds) {
    config.tile_columns = 128;
    config.tile_rows = config.depth_factors ? 128 : 176;
    config.stages = 2;
    config.work = config::Work::kGroupedRows;
    expect_sound(config);
  }
  expect_sound(Sm90WeightOnlyConfig{.w_blocks = true,
                                    .tile_columns = 64,
                                    .tile_rows = 64,
                                    .warpgroups = 1,
                                    .depth_groups = 3,
                                    .stages = 6,
                                    .split_k = 4});
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, WeightOnlyKernelsTest, testing::Values(75, 80, 86, 89, 90, 120),
                         test::sm_name);

}  // namespace
}  // namespace octofold::cuda
