#include "plan/cast.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include "octofold/error.h"

#include "core/scale_layout.h"

namespace octofold::plan {
namespace {

using config::CastDirection;
using config::CastStep;
using testing::HasSubstr;

constexpr std::array kRules{config::kDeepGemmRule,          config::kVllmRule,
                            config::kTransformerEngineRule, config::kTorchAoRule,
                            config::kTorchAoTensorRule,     config::kDeepSeekRule,
                            config::kCompressedTensorsRule};

class Problems {
 public:
  CastProblem next() {
    return {.rows = size(),
            .cols = size(),
            .in = static_cast<DType>(below(3)),
            .out = static_cast<DType>(3 + below(2)),
            .unit = static_cast<Granularity>(below(4)),
            .direction = static_cast<CastDirection>(below(3)),
            .rule = kRules[below(kRules.size())],
            .power_of_two = below(2) == 1,
            .saturate = below(2) == 1,
            .x_is_aligned = below(4) != 0,
            .codes_are_aligned = below(4) != 0};
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  // Of every magnitude, often a round number.
  std::int64_t size() {
    const auto size = static_cast<std::int64_t>(below(std::size_t{1} << below(21)));
    return below(2) == 1 ? size / 128 * 128 : size;
  }

  std::mt19937_64 random_{20261121};
};

TEST(PlanCastTest, EveryConfigIsValid) {
  Problems problems;
  for (int i = 0; i < 20'000; ++i) {
    for (const CastLaunch& step : cast_launches(problems.next(), kHopper)) {
      EXPECT_EQ(step.config.invalid_reason(), nullptr) << describe(step.config);
      EXPECT_GT(step.blocks, 0);
    }
  }
}

// What each kernel accesses in vectors has to lie on their boundaries.
TEST(PlanCastTest, VectorsAreNeverMisaligned) {
  Problems problems;
  for (int i = 0; i < 20'000; ++i) {
    const CastProblem problem = problems.next();
    for (const CastLaunch& step : cast_launches(problem, kHopper)) {
      const config::CastConfig& config = step.config;
      if (config.step == CastStep::kClear || config.step == CastStep::kFinish) continue;
      if (config.vector_loads) {
        EXPECT_TRUE(problem.x_is_aligned);
        EXPECT_EQ(problem.cols % config.vector(), 0);
      }
      if (config.step == CastStep::kAmax || !config.vector_stores) continue;
      EXPECT_TRUE(problem.codes_are_aligned);
      if (config.has_rows()) {
        EXPECT_EQ(problem.cols % config.vector(), 0);
      }
      if (config.has_transposed()) {
        EXPECT_EQ(problem.rows % 8, 0);
      }
    }
  }
}

TEST(PlanCastTest, BlocksCoverTheMatrixAndNoMore) {
  Problems problems;
  for (int i = 0; i < 20'000; ++i) {
    const CastProblem problem = problems.next();
    for (const CastLaunch& step : cast_launches(problem, kHopper)) {
      const config::CastConfig& config = step.config;
      if (config.step == CastStep::kRows) {
        EXPECT_EQ(step.blocks, core::ceil_divide(problem.rows, config.rows_per_block()));
        const std::int64_t held =
            std::int64_t{config.threads_per_row} * config.vectors_per_thread * config.vector();
        EXPECT_EQ(config.reread, held < problem.cols);
      } else if (config.step == CastStep::kWideRows) {
        EXPECT_EQ(step.blocks, problem.rows * config.blocks_per_row);
        const std::int64_t vectors = core::ceil_divide(problem.cols, config.vector());
        const std::int64_t of_part = core::ceil_divide(vectors, config.blocks_per_row);
        EXPECT_LE(16 * of_part, config.part_bytes);
        EXPECT_LT((config.blocks_per_row - 1) * of_part, vectors);  // the last part is not empty
      } else if (config.step != CastStep::kClear && config.step != CastStep::kFinish) {
        EXPECT_EQ(step.blocks, core::ceil_divide(problem.rows, config.tile_rows) *
                                   core::ceil_divide(problem.cols, 128));
      }
    }
  }
}

TEST(PlanCastTest, TheLastStepKnowsTheTypeOfXWhereScalesDependOnIt) {
  CastProblem problem{.rows = 64, .cols = 64, .in = DType::kFloat16, .unit = Granularity::kTensor};
  problem.rule = config::kCompressedTensorsRule;
  EXPECT_EQ(cast_launches(problem, kHopper).back().config.step, CastStep::kFinish);
  EXPECT_EQ(cast_launches(problem, kHopper).back().config.in, DType::kFloat16);
  // Others share one kernel among all types.
  problem.rule = config::kDeepGemmRule;
  EXPECT_EQ(cast_launches(problem, kHopper).back().config.in, config::CastConfig{}.in);
}

TEST(PlanCastTest, BlockAndRowScalesTakeOnePass) {
  CastProblem problem{.rows = 4096, .cols = 7168};
  for (const auto direction : {CastDirection::kRows, CastDirection::kBoth}) {
    for (const auto unit : {Granularity::kBlock1x128, Granularity::kBlock128x128}) {
      problem.direction = direction;
      problem.unit = unit;
      EXPECT_EQ(plan_cast(problem, kHopper).size(), 1u);
    }
  }
  problem.direction = CastDirection::kRows;
  problem.unit = Granularity::kChannel;
  EXPECT_EQ(plan_cast(problem, kHopper).size(), 1u);
  EXPECT_EQ(plan_cast(problem, kHopper)[0].config.step, CastStep::kRows);
}

TEST(PlanCastTest, WideRowsAreOfClusters) {
  const auto config = [](std::int64_t cols) {
    const CastProblem problem{.rows = 64, .cols = cols, .unit = Granularity::kChannel};
    return plan_cast(problem, kHopper)[0].config;
  };
  EXPECT_EQ(config(16384).threads_per_row, 256);
  EXPECT_EQ(config(16392).threads_per_row, 512);
  EXPECT_EQ(config(32768).step, CastStep::kRows);
  EXPECT_EQ(config(32776).step, CastStep::kWideRows);
  EXPECT_EQ(config(36864).blocks_per_row, 2);
  EXPECT_EQ(config(36872).blocks_per_row, 4);
  EXPECT_EQ(config(131072).blocks_per_row, 8);
  EXPECT_EQ(config(131072).part_bytes, 36 * 1024);
  EXPECT_EQ(config(300'000).part_bytes, 111 * 1024);
  EXPECT_EQ(config(454'656).step, CastStep::kWideRows);
  // Too much for a cluster too, or not to be copied in vectors.
  for (const std::int64_t cols : {454'664, 40'007}) {
    EXPECT_EQ(config(cols).step, CastStep::kRows);
    EXPECT_TRUE(config(cols).reread);
  }
}

TEST(PlanCastTest, ClustersHoldWhatTheGpuHas) {
  Gpu gpu = kHopper;
  gpu.shared_memory_per_block = 99 * 1024;
  CastProblem problem{.rows = 64, .cols = 147'456, .unit = Granularity::kChannel};
  EXPECT_EQ(plan_cast(problem, gpu)[0].config.step, CastStep::kWideRows);
  problem.cols += 8;
  EXPECT_EQ(plan_cast(problem, gpu)[0].config.step, CastStep::kRows);
}

// An empty matrix has no codes, but the scales that core::scale_grid says.
TEST(PlanCastTest, EmptyMatrices) {
  const auto count = [](Granularity unit, CastDirection direction, std::int64_t rows,
                        std::int64_t cols) {
    const CastProblem problem{.rows = rows, .cols = cols, .unit = unit, .direction = direction};
    return plan_cast(problem, kHopper).size();
  };
  EXPECT_EQ(count(Granularity::kBlock1x128, CastDirection::kRows, 0, 5), 0u);
  EXPECT_EQ(count(Granularity::kBlock128x128, CastDirection::kBoth, 5, 0), 0u);
  EXPECT_EQ(count(Granularity::kTensor, CastDirection::kRows, 0, 5), 2u);  // clear, finish
  EXPECT_EQ(count(Granularity::kChannel, CastDirection::kRows, 5, 0), 1u);
  EXPECT_EQ(count(Granularity::kChannel, CastDirection::kRows, 0, 5), 0u);
  EXPECT_EQ(count(Granularity::kChannel, CastDirection::kTransposed, 0, 5), 2u);
  EXPECT_EQ(count(Granularity::kChannel, CastDirection::kTransposed, 5, 0), 0u);
}

// Steps that do not depend on rule, types or overflow are the same kernel for all of them.
TEST(PlanCastTest, StepsAreShared) {
  CastProblem problem{.rows = 64, .cols = 256, .unit = Granularity::kTensor};
  const std::vector<CastLaunch> plan = plan_cast(problem, kHopper);
  problem.rule = config::kVllmRule;
  problem.power_of_two = true;
  problem.saturate = false;
  const std::vector<CastLaunch> other = plan_cast(problem, kHopper);
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(plan[0].config, other[0].config);
  EXPECT_EQ(plan[1].config, other[1].config);
  EXPECT_NE(plan[2].config, other[2].config);
}

// The JIT compiles one kernel per name.
TEST(PlanCastTest, NamesDifferWhereConfigsDo) {
  Problems problems;
  std::set<std::string> names;
  std::vector<config::CastConfig> configs;
  for (int i = 0; i < 2'000; ++i) {
    for (const CastLaunch& step : cast_launches(problems.next(), kHopper)) {
      if (std::ranges::find(configs, step.config) != configs.end()) continue;
      configs.push_back(step.config);
      EXPECT_TRUE(names.insert(kernel_name(kCastKernel, step.config)).second);
    }
  }
  EXPECT_GT(names.size(), 500u);
}

TEST(PlanCastTest, SaysWhatTheGpuLacks) {
  const Gpu ampere{.compute_major = 8, .compute_minor = 0, .multiprocessors = 108};
  try {
    plan_cast({.rows = 1, .cols = 1}, ampere);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("got 8.0"));
  }
  EXPECT_THROW(plan_convert({.rows = 1, .cols = 1}, ampere), Error);
}

TEST(PlanCastTest, RefusesWhatNoGridHolds) {
  EXPECT_THROW(plan_cast({.rows = std::int64_t{1} << 40, .cols = 256}, kHopper), Error);
}

TEST(PlanConvertTest, EveryConfigIsValidAndCoversTheMatrix) {
  std::mt19937_64 random(7);
  const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  for (int i = 0; i < 20'000; ++i) {
    const bool scaled = below(2) == 1;
    const ConvertProblem problem{.rows = below(5000),
                                 .cols = below(5000),
                                 .in = static_cast<DType>(scaled ? 3 + below(2) : below(5)),
                                 .out = static_cast<DType>(scaled ? below(3) : below(5)),
                                 .scaled = scaled,
                                 .unit = static_cast<Granularity>(below(4)),
                                 .saturate = below(2) == 1,
                                 .is_aligned = below(2) == 1};
    const ConvertPlan plan = plan_convert(problem, kHopper);
    EXPECT_EQ(plan.config.invalid_reason(), nullptr) << describe(plan.config);
    EXPECT_EQ(plan.blocks, core::ceil_divide(problem.rows, plan.config.tile_rows()) *
                               core::ceil_divide(problem.cols, plan.config.tile_cols()));
    if (plan.config.vectors) {
      EXPECT_TRUE(problem.is_aligned);
      EXPECT_EQ(problem.cols % plan.config.vector(), 0);
    }
  }
}

}  // namespace
}  // namespace octofold::plan
