#include "plan/norm.h"

#include <map>
#include <utility>

#include "support/test.h"

namespace octofold::plan {
namespace {

using config::NormForm;
using config::NormOperand;

class Problems {
 public:
  NormProblem forward() {
    NormProblem problem{.rows = size(),
                        .cols = size(),
                        .form = form(),
                        .adds_residual = below(2) == 1,
                        .output = static_cast<config::NormOutput>(below(3)),
                        .format = {.in = static_cast<DType>(below(3))}};
    problem.format.granularity = below(2) == 1 ? Granularity::kChannel : Granularity::kBlock1x128;
    problem.inputs_are_aligned = below(4) != 0;
    problem.codes_are_aligned = below(4) != 0;
    return problem;
  }

  NormBackwardProblem backward() {
    NormBackwardProblem problem{.rows = size(),
                                .cols = size(),
                                .batches = 1,
                                .form = form(),
                                .in = static_cast<DType>(below(3)),
                                .adds_gradient = below(2) == 1,
                                .of_weight = below(2) == 1,
                                .of_bias = below(2) == 1,
                                .is_aligned = below(4) != 0};
    if (problem.form.scale != NormOperand::kNone && problem.rows > 0) {
      problem.batches = 1 + static_cast<std::int64_t>(below(as_size(problem.rows)));
      problem.rows -= problem.rows % problem.batches;
      problem.of_scale = problem.of_shift = true;
    }
    return problem;
  }

 private:
  NormForm form() {
    const auto operand = [&] { return static_cast<NormOperand>(below(3)); };
    return {.kind = below(2) == 1 ? NormKind::kLayer : NormKind::kRms,
            .weight = operand(),
            .bias = operand(),
            .scale = operand(),
            .shift = operand()};
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::int64_t size() {
    const auto size = static_cast<std::int64_t>(below(std::size_t{1} << below(18)));
    return below(2) == 1 ? size / 128 * 128 : size;
  }

  test::Random random_;
};

TEST(PlanNormTest, ConfigsAreValidAndHoldTheirRows) {
  Problems problems;
  int reread = 0, early = 0;
  for (int i = 0; i < 20'000; ++i) {
    const NormProblem problem = problems.forward();
    const config::NormRowConfig config = norm_row_config(problem);
    ASSERT_EQ(config.invalid_reason(), nullptr) << describe(config);
    const std::int64_t held =
        std::int64_t{config.threads_per_row} * config.vectors_per_thread * problem.format.vector();
    EXPECT_EQ(config.reread, held < problem.cols);
    if (config.vector_loads) {
      EXPECT_TRUE(problem.inputs_are_aligned);
      EXPECT_EQ(problem.cols % problem.format.vector(), 0);
    }
    reread += config.reread;
    early += config.early_operands;
    const NormPlan plan = plan_norm(problem, kHopper);
    ASSERT_EQ(plan.kernels.size(), problem.rows > 0 ? 1u : 0u);
    if (problem.rows == 0) continue;
    EXPECT_GE(plan.kernels[0].blocks * config.rows_per_block(), problem.rows);
    EXPECT_LT((plan.kernels[0].blocks - 1) * config.rows_per_block(), problem.rows);
  }
  EXPECT_GT(reread, 100);
  EXPECT_GT(early, 10);
}

// 7168 BF16 columns: no thread idles, and five blocks share a multiprocessor.
TEST(PlanNormTest, RowsOfModelsFillTheMachine) {
  NormProblem problem{.rows = 8192, .cols = 7168, .form = {.weight = NormOperand::kInputType}};
  for (const bool residual : {false, true}) {
    problem.adds_residual = residual;
    const config::NormRowConfig config = norm_row_config(problem);
    EXPECT_EQ(config.threads(), 224);
    EXPECT_EQ(config.vectors_per_thread, 4);
    EXPECT_EQ(config.resident_blocks(), 5);
    EXPECT_EQ(config.early_operands, !residual);
  }
  problem.cols = 4096;
  EXPECT_EQ(norm_row_config(problem).threads(), 128);
  EXPECT_EQ(norm_row_config(problem).resident_blocks(), 9);
}

TEST(PlanNormTest, OneKernelWhereRowsHaveScales) {
  using enum Granularity;
  EXPECT_TRUE(row_kernel_casts(kChannel, true, false, false));
  EXPECT_TRUE(row_kernel_casts(kBlock1x128, true, false, false));
  EXPECT_FALSE(row_kernel_casts(kBlock1x128, true, true, false));
  EXPECT_FALSE(row_kernel_casts(kBlock1x128, false, true, false));
  EXPECT_FALSE(row_kernel_casts(kBlock1x128, true, false, true));
  EXPECT_FALSE(row_kernel_casts(kTensor, true, false, false));
  EXPECT_FALSE(row_kernel_casts(kBlock128x128, true, false, false));
}

// Operands and formats do not matter to a kernel that casts nothing.
TEST(PlanNormTest, StatisticsShareAKernel) {
  NormProblem problem{.rows = 100, .cols = 512, .output = config::NormOutput::kNothing};
  const std::string kernel = plan_norm(problem, kHopper).kernels[0].kernel;
  problem.form.weight = NormOperand::kFloat32;
  problem.format.granularity = Granularity::kTensor;
  problem.format.saturate = false;
  EXPECT_EQ(plan_norm(problem, kHopper).kernels[0].kernel, kernel);
  problem.form.kind = NormKind::kLayer;
  EXPECT_NE(plan_norm(problem, kHopper).kernels[0].kernel, kernel);
}

// Every row is in one span, of one batch, and the workspace has a place for each.
TEST(PlanNormBackwardTest, SpansCoverTheRowsAndFitTheWorkspace) {
  Problems problems;
  Gpu turing = kHopper;
  turing.shared_memory_per_block = 64 * 1024;
  std::map<std::pair<bool, config::NormSums>, int> kinds;
  for (int i = 0; i < 20'000; ++i) {
    const NormBackwardProblem problem = problems.backward();
    const Gpu& gpu = i % 2 == 0 ? kHopper : turing;
    const config::NormBackwardConfig config = norm_backward_config(problem, gpu);
    ASSERT_EQ(config.invalid_reason(), nullptr) << describe(config);
    EXPECT_GE(std::int64_t{config.chunks} * config.chunk(), problem.cols);
    ++kinds[{config.wide(), config.sums}];
    const NormBackwardPlan plan = plan_norm_backward(problem, gpu);
    if (problem.rows > 0 && problem.cols > 0) {
      const int bytes = plan.kernels[0].shared_bytes;
      EXPECT_EQ(bytes, config.shared_bytes());
      EXPECT_LT(bytes, gpu.shared_memory_per_block);
    }
    const auto [rows, blocks] = plan.config;
    if (problem.rows > 0) {
      const std::int64_t of_batch = problem.rows / problem.batches;
      EXPECT_GE(rows * blocks, of_batch);
      EXPECT_LT(rows * (blocks - 1), of_batch);
    } else {
      EXPECT_EQ(blocks, 0);
    }
    EXPECT_LE(blocks * problem.batches, config::norm_spans(problem.cols, problem.batches));
  }
  EXPECT_EQ(kinds.size(), 4u);  // both places of sums beside registers, of wide rows and not
  for (const auto& [kind, count] : kinds) EXPECT_GT(count, 100);
}

TEST(PlanNormBackwardTest, KernelsForWhatIsWanted) {
  NormBackwardProblem problem{.rows = 1000, .cols = 4096, .batches = 4};
  EXPECT_EQ(plan_norm_backward(problem, kHopper).kernels.size(), 1u);
  EXPECT_FALSE(norm_backward_config(problem, kHopper).sums_products);
  problem.of_weight = true;
  EXPECT_EQ(plan_norm_backward(problem, kHopper).kernels.size(), 2u);
  EXPECT_TRUE(norm_backward_config(problem, kHopper).sums_products);
  EXPECT_FALSE(norm_backward_config(problem, kHopper).sums_offsets);
  problem.of_shift = true;
  const NormBackwardPlan plan = plan_norm_backward(problem, kHopper);
  ASSERT_EQ(plan.kernels.size(), 3u);
  EXPECT_EQ(plan.kernels[0].blocks, 252);  // 63 spans of a batch, of 4 rows
  EXPECT_EQ(plan.kernels[1].blocks, 128);  // 32 columns each
  EXPECT_EQ(plan.kernels[2].blocks, 512);  // of each batch
  problem.rows = 0;                        // zeros are written all the same
  EXPECT_EQ(plan_norm_backward(problem, kHopper).kernels.size(), 2u);
  problem.cols = 0;
  EXPECT_TRUE(plan_norm_backward(problem, kHopper).kernels.empty());
}

}  // namespace
}  // namespace octofold::plan
