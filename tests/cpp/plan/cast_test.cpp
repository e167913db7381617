#include "plan/cast.h"

#include "core/scale_layout.h"
#include "support/granularities.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::RowCastConfig;
using config::ScaleStep;
using config::ScaleStepConfig;
using config::SourceKind;
using config::TileCastConfig;
using config::WideRowCastConfig;

constexpr std::array kRules{config::kDeepGemmRule,          config::kVllmRule,
                            config::kTransformerEngineRule, config::kTorchAoRule,
                            config::kTorchAoTensorRule,     config::kDeepSeekRule,
                            config::kCompressedTensorsRule};

template <typename Config>
const Config* get(const CastLaunch& launch) {
  return std::get_if<Config>(&launch.config);
}

class Problems {
 public:
  CastProblem next() {
    const auto targets = below(3);
    const bool given = below(4) == 0;
    const config::CastSource source = below(2) == 0 ? config::CastSource{} : worked_out();
    const auto granularity = static_cast<Granularity>(below(4));
    return {.rows = size(),
            .cols = source.kind == SourceKind::kActivationGradient ? size() / 2 * 2 : size(),
            .format = {.in = static_cast<DType>(below(3)),
                       .out = static_cast<DType>(3 + below(2)),
                       .granularity = granularity,
                       .rule = kRules[below(kRules.size())],
                       .power_of_two = !given && below(2) == 1,
                       .saturate = below(2) == 1},
            .source = source,
            .to_rows = targets != 1,
            .to_transposed = targets != 0,
            .transposed_by_channel =
                targets == 2 && granularity == Granularity::kBlock1x128 && below(2) == 0,
            .scales_given = given,
            .columns = {.sums = below(8) == 0, .amax = below(8) == 0},
            .x_is_aligned = below(4) != 0,
            .codes_are_aligned = below(4) != 0};
  }

 private:
  config::CastSource worked_out() {
    return config::CastSource::of(
        below(2) == 0 ? SourceKind::kActivation : SourceKind::kActivationGradient,
        static_cast<Activation>(below(7)), static_cast<GateLayout>(below(2)));
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }
  // Returns a size of any magnitude, often a round number.
  std::int64_t size() {
    const auto size = static_cast<std::int64_t>(below(std::size_t{1} << below(21)));
    return below(2) == 1 ? size / 128 * 128 : size;
  }

  test::Random random_;
};

CastProblem problem_of(Granularity granularity, std::int64_t rows, std::int64_t cols,
                       bool to_rows = true, bool to_transposed = false) {
  return {.rows = rows,
          .cols = cols,
          .format = {.granularity = granularity},
          .to_rows = to_rows,
          .to_transposed = to_transposed};
}

TEST(PlanCastTest, EveryConfigIsValid) {
  Problems problems;
  std::array<int, std::variant_size_v<CastConfig>> met{};
  for (int i = 0; i < 100'000; ++i) {
    for (const CastLaunch& launch : cast_launches(problems.next(), kHopper)) {
      std::visit(
          [](const auto& config) {
            EXPECT_EQ(config.invalid_reason(), nullptr) << describe(config);
            EXPECT_GT(config.threads(), 0);
          },
          launch.config);
      EXPECT_GT(launch.blocks, 0);
      ++met[launch.config.index()];
    }
  }
  for (const int count : met) EXPECT_GT(count, 20);  // of each kernel
}

// Matrices that a kernel accesses in vectors have to lie on their boundaries.
TEST(PlanCastTest, VectorsAreNeverMisaligned) {
  Problems problems;
  int loads = 0, stores = 0;
  for (int i = 0; i < 20'000; ++i) {
    const CastProblem problem = problems.next();
    const bool cols_fit = problem.cols % problem.format.vector() == 0;
    for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
      const auto expect_fit = [&](bool vector_loads, bool vector_stores) {
        if (vector_loads) {
          EXPECT_TRUE(problem.x_is_aligned && cols_fit);
          if (problem.source.casts_halves()) {
            EXPECT_EQ(problem.cols / 2 % problem.format.vector(), 0);
          }
          ++loads;
        }
        if (vector_stores) {
          EXPECT_TRUE(problem.codes_are_aligned);
          EXPECT_TRUE(cols_fit || !problem.to_rows);
          EXPECT_TRUE(problem.rows % 8 == 0 || !problem.to_transposed);
          ++stores;
        }
      };
      if (const auto* tiles = get<TileCastConfig>(launch)) {
        expect_fit(tiles->vector_loads, tiles->phase != CastPhase::kAmax && tiles->vector_stores);
      } else if (const auto* rows = get<RowCastConfig>(launch)) {
        expect_fit(rows->vector_loads, rows->vector_stores);
      } else if (const auto* wide = get<WideRowCastConfig>(launch)) {
        expect_fit(true, wide->vector_stores);
      }
    }
  }
  EXPECT_GT(loads, 1000);
  EXPECT_GT(stores, 1000);
}

TEST(PlanCastTest, BlocksCoverTheMatrixAndNoMore) {
  Problems problems;
  for (int i = 0; i < 20'000; ++i) {
    const CastProblem problem = problems.next();
    for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
      if (const auto* rows = get<RowCastConfig>(launch)) {
        EXPECT_EQ(launch.blocks, core::ceil_divide(problem.rows, rows->rows_per_block()));
        const std::int64_t held = std::int64_t{rows->threads_per_row} * rows->vectors_per_thread *
                                  problem.format.vector();
        EXPECT_EQ(rows->reread, held < problem.cols);
      } else if (const auto* wide = get<WideRowCastConfig>(launch)) {
        EXPECT_EQ(launch.blocks, problem.rows * wide->blocks_per_row);
        const std::int64_t vectors = core::ceil_divide(problem.cols, problem.format.vector());
        const std::int64_t of_part = core::ceil_divide(vectors, wide->blocks_per_row);
        EXPECT_LE(16 * of_part, wide->part_bytes);
        EXPECT_LT((wide->blocks_per_row - 1) * of_part, vectors);  // the last part is not empty
      } else if (const auto* tiles = get<TileCastConfig>(launch)) {
        const int parts = tiles->source.parts();
        EXPECT_EQ(problem.cols % parts, 0);
        EXPECT_EQ(launch.blocks, core::ceil_divide(problem.rows, tiles->tile_rows) *
                                     core::ceil_divide(problem.cols / parts, 128));
      }
    }
  }
}

// The rows' scales are found where the codes of both are written.
TEST(PlanCastTest, ChannelsOfTheTransposeTakeAnotherRead) {
  CastProblem problem = problem_of(Granularity::kBlock1x128, 4096, 7168, true, true);
  problem.transposed_by_channel = true;
  const auto launches = cast_launches(problem, kHopper);
  ASSERT_EQ(launches.size(), 4u);
  EXPECT_EQ(get<ScaleStepConfig>(launches[0])->step, ScaleStep::kClear);
  EXPECT_FALSE(get<ScaleStepConfig>(launches[0])->to_rows);
  EXPECT_EQ(get<TileCastConfig>(launches[1])->phase, CastPhase::kAmax);
  EXPECT_FALSE(get<TileCastConfig>(launches[1])->to_rows);
  EXPECT_EQ(get<TileCastConfig>(launches[2])->phase, CastPhase::kWholeRows);
  EXPECT_EQ(get<ScaleStepConfig>(launches[3])->step, ScaleStep::kFinish);
  problem.scales_given = true;
  EXPECT_EQ(cast_launches(problem, kHopper).size(), 1u);
}

// Both halves of a gradient by one tile, where they are whole blocks and lie apart.
TEST(PlanCastTest, HalvesAreTakenTogether) {
  const auto takes_both = [](std::int64_t cols, GateLayout layout, DType in, bool aligned) {
    CastProblem problem = problem_of(Granularity::kBlock1x128, 256, cols, true, true);
    problem.format.in = in;
    problem.source = {SourceKind::kActivationGradient, Activation::kSwiGlu, layout};
    problem.x_is_aligned = aligned;
    return get<TileCastConfig>(cast_launches(problem, kHopper)[0])->source.both_halves;
  };
  EXPECT_TRUE(takes_both(2 * 384, GateLayout::kHalves, DType::kBFloat16, true));
  EXPECT_FALSE(takes_both(2 * 320, GateLayout::kHalves, DType::kBFloat16, true));
  EXPECT_FALSE(takes_both(2 * 384, GateLayout::kInterleaved, DType::kBFloat16, true));
  EXPECT_FALSE(takes_both(2 * 384, GateLayout::kHalves, DType::kFloat32, true));
  EXPECT_FALSE(takes_both(2 * 384, GateLayout::kHalves, DType::kBFloat16, false));
}

TEST(PlanCastTest, BlockAndRowScalesTakeOnePass) {
  for (const auto granularity : {Granularity::kBlock1x128, Granularity::kBlock128x128}) {
    for (const bool both : {false, true}) {
      const auto launches = cast_launches(problem_of(granularity, 4096, 7168, true, both), kHopper);
      ASSERT_EQ(launches.size(), 1u);
      ASSERT_NE(get<TileCastConfig>(launches[0]), nullptr);
      EXPECT_EQ(get<TileCastConfig>(launches[0])->phase, CastPhase::kWhole);
    }
  }
  const auto launches = cast_launches(problem_of(Granularity::kChannel, 4096, 7168), kHopper);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_NE(get<RowCastConfig>(launches[0]), nullptr);
}

// Tiles alone, whatever the granularity, and the same kernel for all rules that apply scales alike.
TEST(PlanCastTest, GivenScalesTakeOnePass) {
  for (const Granularity granularity : test::kGranularities) {
    CastProblem problem = problem_of(granularity, 64, 100'000, true, true);
    problem.scales_given = true;
    const auto launches = cast_launches(problem, kHopper);
    ASSERT_EQ(launches.size(), 1u);
    ASSERT_NE(get<TileCastConfig>(launches[0]), nullptr);
    EXPECT_EQ(get<TileCastConfig>(launches[0])->phase, CastPhase::kEncodeGiven);
    problem.format.rule = config::kTorchAoRule;
    EXPECT_EQ(cast_launches(problem, kHopper)[0].config, launches[0].config);
    problem.format.rule = config::kDeepSeekRule;
    EXPECT_NE(cast_launches(problem, kHopper)[0].config, launches[0].config);
  }
}

TEST(PlanCastTest, WideRowsAreOfClusters) {
  const auto launch = [](std::int64_t cols) {
    return cast_launches(problem_of(Granularity::kChannel, 64, cols), kHopper)[0];
  };
  EXPECT_EQ(get<RowCastConfig>(launch(16384))->threads_per_row, 256);
  EXPECT_EQ(get<RowCastConfig>(launch(16392))->threads_per_row, 512);
  EXPECT_NE(get<RowCastConfig>(launch(32768)), nullptr);
  const auto wide = [&](std::int64_t cols) {
    const CastLaunch launched = launch(cols);
    const auto* config = get<WideRowCastConfig>(launched);
    EXPECT_NE(config, nullptr) << cols;
    return config != nullptr ? *config : WideRowCastConfig{};
  };
  EXPECT_EQ(wide(32776).blocks_per_row, 2);
  EXPECT_EQ(wide(36864).blocks_per_row, 2);
  EXPECT_EQ(wide(36872).blocks_per_row, 4);
  EXPECT_EQ(wide(131072).blocks_per_row, 8);
  EXPECT_EQ(wide(131072).part_bytes, 36 * 1024);
  EXPECT_EQ(wide(300'000).part_bytes, 111 * 1024);
  EXPECT_EQ(wide(454'656).blocks_per_row, 8);
  // Too much for a cluster too, or not to be copied in vectors.
  for (const std::int64_t cols : {454'664, 40'007}) {
    const CastLaunch launched = launch(cols);
    ASSERT_NE(get<RowCastConfig>(launched), nullptr);
    EXPECT_TRUE(get<RowCastConfig>(launched)->reread);
  }
}

TEST(PlanCastTest, WideRowsAreLaunchedAsClusters) {
  const CastPlan plan = plan_cast(problem_of(Granularity::kChannel, 64, 131'072), kHopper);
  ASSERT_EQ(plan.kernels.size(), 1u);
  EXPECT_EQ(plan.kernels[0].cluster_size, 8);
  EXPECT_EQ(plan.kernels[0].shared_bytes, 2 * 36 * 1024);
  EXPECT_TRUE(plan.kernels[0].as_many_as_run);
  const CastPlan tiles = plan_cast(problem_of(Granularity::kBlock1x128, 64, 131'072), kHopper);
  EXPECT_EQ(tiles.kernels[0].cluster_size, 1);
  EXPECT_FALSE(tiles.kernels[0].as_many_as_run);
}

TEST(PlanCastTest, ClustersHoldWhatTheGpuHas) {
  Gpu gpu = kHopper;
  gpu.shared_memory_per_block = 99 * 1024;
  CastProblem problem = problem_of(Granularity::kChannel, 64, 147'456);
  EXPECT_NE(get<WideRowCastConfig>(cast_launches(problem, gpu)[0]), nullptr);
  problem.cols += 8;
  EXPECT_NE(get<RowCastConfig>(cast_launches(problem, gpu)[0]), nullptr);
}

// An empty matrix has no codes, but the scales that core::scale_grid says.
TEST(PlanCastTest, EmptyMatrices) {
  const auto count = [](Granularity granularity, bool to_rows, bool to_transposed,
                        std::int64_t rows, std::int64_t cols) {
    return cast_launches(problem_of(granularity, rows, cols, to_rows, to_transposed), kHopper)
        .size();
  };
  EXPECT_EQ(count(Granularity::kBlock1x128, true, false, 0, 5), 0u);
  EXPECT_EQ(count(Granularity::kBlock128x128, true, true, 5, 0), 0u);
  EXPECT_EQ(count(Granularity::kTensor, true, false, 0, 5), 2u);  // clear, finish
  EXPECT_EQ(count(Granularity::kChannel, true, false, 5, 0), 1u);
  EXPECT_EQ(count(Granularity::kChannel, true, false, 0, 5), 0u);
  EXPECT_EQ(count(Granularity::kChannel, false, true, 0, 5), 2u);
  EXPECT_EQ(count(Granularity::kChannel, false, true, 5, 0), 0u);
  CastProblem given = problem_of(Granularity::kTensor, 0, 5);
  given.scales_given = true;
  EXPECT_EQ(cast_launches(given, kHopper).size(), 0u);
}

// Steps that do not depend on rule, types or overflow are the same kernel for all of them.
TEST(PlanCastTest, StepsAreShared) {
  CastProblem problem = problem_of(Granularity::kTensor, 64, 256);
  const std::vector<CastLaunch> plan = cast_launches(problem, kHopper);
  problem.format.rule = config::kDeepSeekRule;
  problem.format.power_of_two = true;
  problem.format.saturate = false;
  const std::vector<CastLaunch> other = cast_launches(problem, kHopper);
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(plan[0].config, other[0].config);
  EXPECT_EQ(plan[1].config, other[1].config);
  EXPECT_NE(plan[2].config, other[2].config);
  EXPECT_EQ(get<ScaleStepConfig>(plan[3])->step, ScaleStep::kFinish);
  // Scales of float16 are finished as those of bfloat16 are, but for a rule that reads the type.
  for (const bool reads : {false, true}) {
    problem.format.rule = reads ? config::kTorchAoTensorRule : config::kDeepSeekRule;
    problem.format.in = DType::kBFloat16;
    const CastConfig finish = cast_launches(problem, kHopper)[3].config;
    problem.format.in = DType::kFloat16;
    EXPECT_EQ(cast_launches(problem, kHopper)[3].config == finish, !reads);
  }
}

// The JIT compiles one kernel per name.
TEST(PlanCastTest, NamesDifferWhereConfigsDo) {
  Problems problems;
  std::set<std::string> names;
  std::vector<CastConfig> configs;
  for (int i = 0; i < 2'000; ++i) {
    const CastProblem problem = problems.next();
    const std::vector<CastLaunch> launches = cast_launches(problem, kHopper);
    const CastPlan plan = plan_cast(problem, kHopper);
    ASSERT_EQ(plan.kernels.size(), launches.size());
    for (std::size_t step = 0; step < launches.size(); ++step) {
      if (std::ranges::find(configs, launches[step].config) != configs.end()) continue;
      configs.push_back(launches[step].config);
      EXPECT_TRUE(names.insert(plan.kernels[step].kernel).second);
    }
  }
  EXPECT_GT(names.size(), 500u);
}

TEST(PlanCastTest, DescriptionsSayWhatIsNotUsual) {
  CastProblem problem = problem_of(Granularity::kBlock1x128, 256, 256, true, true);
  problem.format.power_of_two = true;
  EXPECT_EQ(plan_cast(problem, kHopper).kernels[0].description,
            "cast: in bfloat16, out e4m3, granularity 1x128, power_of_two, saturate, to_rows, "
            "to_transposed, "
            "vector_loads, vector_stores, tile_rows 128, rows_per_thread 8, group_m 2");
  problem.scales_given = true;
  EXPECT_THAT(plan_cast(problem, kHopper).kernels[0].description,
              HasSubstr("phase codes, scales given"));
}

TEST(PlanCastTest, RefusesWhatNoGridHolds) {
  EXPECT_THROW(plan_cast({.rows = std::int64_t{1} << 40, .cols = 256}, kHopper), Error);
}

TEST(PlanConvertTest, EveryConfigIsValidAndCoversTheMatrix) {
  test::Random random;
  const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  for (int i = 0; i < 20'000; ++i) {
    const bool scaled = below(2) == 1;
    const ConvertProblem problem{.rows = below(5000),
                                 .cols = below(5000),
                                 .in = static_cast<DType>(scaled ? 3 + below(2) : below(5)),
                                 .out = static_cast<DType>(scaled ? below(3) : below(5)),
                                 .scaled = scaled,
                                 .granularity = static_cast<Granularity>(below(4)),
                                 .saturate = below(2) == 1,
                                 .is_aligned = below(2) == 1};
    const ConvertPlan plan = plan_convert(problem, kHopper);
    EXPECT_EQ(plan.config.invalid_reason(), nullptr) << describe(plan.config);
    const std::int64_t blocks = core::ceil_divide(problem.rows, plan.config.tile_rows()) *
                                core::ceil_divide(problem.cols, plan.config.tile_cols());
    ASSERT_EQ(plan.kernels.size(), blocks > 0 ? 1u : 0u);
    if (blocks > 0) {
      EXPECT_EQ(plan.kernels[0].blocks, blocks);
    }
    if (plan.config.vectors) {
      EXPECT_TRUE(problem.is_aligned);
      EXPECT_EQ(problem.cols % plan.config.vector(), 0);
    }
  }
}

}  // namespace
}  // namespace octofold::plan
