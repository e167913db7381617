#include "plan/cast.h"

#include "core/scale_layout.h"
#include "support/cast_problems.h"
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
using test::casts::Cast;
using test::casts::kGathered;
using test::casts::kMultiplied;
using test::casts::kTransposeMultiplied;
using enum Granularity;

constexpr config::ColumnReductions kSums{.sums = true};

constexpr std::array kRules{config::kDeepGemmRule,          config::kVllmRule,
                            config::kTransformerEngineRule, config::kTorchAoRule,
                            config::kTorchAoTensorRule,     config::kDeepSeekRule,
                            config::kCompressedTensorsRule};

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
            .transposed_by_channel = targets == 2 && granularity == kBlock1x128 && below(2) == 0,
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

CastProblem problem_of(Granularity granularity, std::int64_t rows, std::int64_t cols) {
  return {.rows = rows, .cols = cols, .format = {.granularity = granularity}};
}

// Matrices that a kernel accesses in vectors have to lie on their boundaries.
void expect_vectors_fit(const CastProblem& problem, bool vector_loads, bool vector_stores) {
  const bool cols_fit = problem.cols % problem.format.vector() == 0;
  if (vector_loads) {
    EXPECT_TRUE(problem.x_is_aligned && cols_fit);
    if (problem.source.casts_halves()) {
      EXPECT_EQ(problem.cols / 2 % problem.format.vector(), 0);
    }
  }
  if (vector_stores) {
    EXPECT_TRUE(problem.codes_are_aligned);
    EXPECT_TRUE(cols_fit || !problem.to_rows);
  }
}

// Blocks cover the matrix and no more.
void expect_fits(const CastProblem& problem, std::int64_t blocks, const TileCastConfig& tiles) {
  expect_vectors_fit(problem, tiles.vector_loads,
                     tiles.phase != CastPhase::kAmax && tiles.vector_stores);
  EXPECT_TRUE(problem.rows_of_matrix() % 8 == 0 || !tiles.to_transposed || tiles.grouped ||
              tiles.phase == CastPhase::kAmax || tiles.vector_stores == tiles.ragged);
  const int parts = tiles.source.parts();
  EXPECT_EQ(problem.cols % parts, 0);
  EXPECT_EQ(blocks, core::ceil_divide(problem.rows, tiles.tile_rows) *
                        core::ceil_divide(problem.cols / parts, 128));
}
void expect_fits(const CastProblem& problem, std::int64_t blocks, const RowCastConfig& rows) {
  expect_vectors_fit(problem, rows.vector_loads, rows.vector_stores);
  EXPECT_EQ(blocks, core::ceil_divide(problem.rows, rows.rows_per_block()));
  const std::int64_t held =
      std::int64_t{rows.threads_per_row} * rows.vectors_per_thread * problem.format.vector();
  EXPECT_EQ(rows.reread, held < problem.cols);
}
void expect_fits(const CastProblem& problem, std::int64_t blocks, const WideRowCastConfig& wide) {
  expect_vectors_fit(problem, true, wide.vector_stores);
  EXPECT_EQ(blocks, problem.rows * wide.blocks_per_row);
  const std::int64_t vectors = core::ceil_divide(problem.cols, problem.format.vector());
  const std::int64_t of_part = core::ceil_divide(vectors, wide.blocks_per_row);
  EXPECT_LE(16 * of_part, wide.part_bytes);
  EXPECT_LT((wide.blocks_per_row - 1) * of_part, vectors);  // the last part is not empty
}
void expect_fits(const CastProblem&, std::int64_t, const ScaleStepConfig&) {}
void expect_fits(const CastProblem&, std::int64_t, const config::ColumnReductionConfig&) {}

TEST(PlanCastTest, EveryLaunchIsValidAndFitsTheMatrix) {
  Problems problems;
  std::array<int, std::variant_size_v<CastConfig>> met{};
  for (int i = 0; i < 100'000; ++i) {
    const CastProblem problem = problems.next();
    for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
      std::visit(
          [&](const auto& config) {
            EXPECT_EQ(config.invalid_reason(), nullptr) << describe(config);
            EXPECT_GT(config.threads(), 0);
            expect_fits(problem, launch.blocks, config);
          },
          launch.config);
      EXPECT_GT(launch.blocks, 0);
      ++met[launch.config.index()];
    }
  }
  for (const int count : met) EXPECT_GT(count, 20);  // of each kernel
}

// The same kernel for all rules that apply scales alike.
TEST(PlanCastTest, GivenScalesShareAKernel) {
  for (const Granularity granularity : test::kGranularities) {
    CastProblem problem = problem_of(granularity, 64, 100'000);
    problem.to_transposed = problem.scales_given = true;
    const CastConfig given = cast_launches(problem, kHopper)[0].config;
    problem.format.rule = config::kTorchAoRule;
    EXPECT_EQ(cast_launches(problem, kHopper)[0].config, given);
    problem.format.rule = config::kDeepSeekRule;
    EXPECT_NE(cast_launches(problem, kHopper)[0].config, given);
  }
}

TEST(PlanCastTest, WhatNoKernelIsFor) {
  for (const TileCastConfig& config : {TileCastConfig{.to_transposed = true, .grouped = true},
                                       {.to_transposed = true, .stacked = true},
                                       {.transposed_squares = true, .to_transposed = true}}) {
    EXPECT_EQ(config.invalid_reason(), nullptr);
  }
  constexpr auto kGiven = CastPhase::kEncodeGiven;
  for (const TileCastConfig& config :
       {TileCastConfig{.grouped = true},
        {.format = {.granularity = kBlock128x128}, .to_transposed = true, .grouped = true},
        {.to_transposed = true, .columns = kSums, .grouped = true},
        {.to_transposed = true, .grouped = true, .stacked = true},
        {.to_transposed = true, .columns = kSums, .stacked = true},
        {.source = kGathered, .to_transposed = true, .stacked = true},
        {.source = kTransposeMultiplied},
        {.format = {.granularity = kBlock128x128},
         .source = kTransposeMultiplied,
         .to_transposed = true},
        {.source = kTransposeMultiplied, .transposed_squares = true, .to_transposed = true},
        {.tile_rows = 32, .rows_per_thread = 4, .stacked = true},
        {.phase = kGiven, .transposed_squares = true, .to_transposed = true},
        {.phase = kGiven, .amax_given = true},
        {.amax_given = true}}) {
    EXPECT_NE(config.invalid_reason(), nullptr) << describe(config);
  }
  CastProblem large{.cols = 640, .to_transposed = true};
  large.rows = large.matrices = std::int64_t{1} << 30;  // a tile each
  EXPECT_THROW(cast_launches(large, kHopper), Error);
  EXPECT_THROW(plan_cast({.rows = std::int64_t{1} << 40, .cols = 256}, kHopper), Error);
}

// Gathered rows have no pieces to be staged, and have tiles as x itself has.
TEST(PlanCastTest, GatheredRowsAloneAreCastAsRowsAre) {
  const Cast rows = Cast(DType::kBFloat16, kBlock1x128).of(1000, 640).to_rows_alone();
  const CastLaunch launch =
      cast_launches(rows.with([](Cast& cast) { cast.source = kMultiplied; }), kHopper)[0];
  EXPECT_EQ(launch.blocks, cast_launches(rows, kHopper)[0].blocks);
  const auto& config = std::get<TileCastConfig>(launch.config);
  EXPECT_FALSE(config.is_staged());
  EXPECT_EQ(config.shared_bytes(), 0);
}

// Largest magnitudes that are given have the kernels of those that were found, unless values beyond
// them are divided, or both targets share one.
TEST(PlanCastTest, KernelsOfGivenMagnitudesAreThoseOfFoundOnes) {
  for (const config::CastRule& rule :
       {config::kDeepGemmRule, config::kTorchAoRule, config::kTransformerEngineRule,
        config::kCompressedTensorsRule, config::kVllmRule, config::kDeepSeekRule}) {
    const bool divides = rule.arithmetic == config::CastArithmetic::kDivide;
    const auto plain = [&](Granularity granularity) {
      return Cast(DType::kBFloat16, granularity, rule).of(2000, 640);
    };
    const auto expect_shared = [&](const Cast& problem, bool shared) {
      const CastLaunch found = cast_launches(problem, kHopper)[2];
      auto codes =
          std::get<TileCastConfig>(cast_launches(problem.of_given_amax(), kHopper)[1].config);
      EXPECT_EQ(codes.amax_given, !shared);
      codes.amax_given = false;
      EXPECT_EQ(codes, std::get<TileCastConfig>(found.config));
    };
    expect_shared(plain(kBlock1x128).beside(kChannel), !divides);
    expect_shared(plain(kChannel), !divides);
    expect_shared(plain(kTensor).to_rows_alone(), !divides);
    expect_shared(plain(kTensor).transposed_alone(), !divides);
    expect_shared(plain(kTensor), false);
  }
}

// Steps that do not depend on rule, types or overflow are the same kernel for all of them.
TEST(PlanCastTest, StepsAreShared) {
  CastProblem problem = problem_of(kTensor, 64, 256);
  const std::vector<CastLaunch> plan = cast_launches(problem, kHopper);
  problem.format.rule = config::kDeepSeekRule;
  problem.format.power_of_two = true;
  problem.format.saturate = false;
  const std::vector<CastLaunch> other = cast_launches(problem, kHopper);
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(plan[0].config, other[0].config);
  EXPECT_EQ(plan[1].config, other[1].config);
  EXPECT_NE(plan[2].config, other[2].config);
  EXPECT_EQ(std::get<ScaleStepConfig>(plan[3].config).step, ScaleStep::kFinish);
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
  CastProblem problem = problem_of(kBlock1x128, 256, 256);
  problem.to_transposed = true;
  problem.format.power_of_two = true;
  EXPECT_EQ(plan_cast(problem, kHopper).kernels[0].description,
            "cast: in bfloat16, out e4m3, granularity 1x128, power_of_two, saturate, to_rows, "
            "to_transposed, "
            "vector_loads, vector_stores, tile_rows 128, rows_per_thread 8, group_m 2");
  problem.scales_given = true;
  EXPECT_THAT(plan_cast(problem, kHopper).kernels[0].description,
              HasSubstr("phase codes, scales given"));
}

// Numbers that a kernel is told are not.
TEST(PlanCastTest, KernelsAreSharedByGroupsAndStacksOfAnyNumber) {
  const auto kernel = [](std::int64_t rows, std::int64_t groups, std::int64_t matrices) {
    CastProblem problem = problem_of(kBlock128x128, rows, 640);
    problem.to_transposed = true;
    problem.to_rows = groups == 0;
    problem.groups = groups;
    problem.matrices = matrices;
    return plan_cast(problem, kHopper).kernels.at(0).kernel;
  };
  EXPECT_EQ(kernel(1000, 6, 1), kernel(1000, 7, 1));
  EXPECT_EQ(kernel(1000, 0, 4), kernel(1250, 0, 5));
  for (const std::string& name : {kernel(1000, 6, 1), kernel(1000, 0, 4)}) {
    EXPECT_NE(name, kernel(1000, 0, 1));
  }
}

// ---- Casts that share launches.

CastProblem cast_of(std::int64_t rows, std::int64_t cols, Granularity granularity = kBlock128x128,
                    std::int64_t matrices = 1) {
  return {.rows = rows,
          .cols = cols,
          .format = {.granularity = granularity},
          .to_transposed = true,
          .matrices = matrices};
}

TEST(PlanCastBatchTest, SizesMakeNoOtherKind) {
  for (const Granularity granularity : test::kGranularities) {
    const auto kind = batch_kind(cast_of(256, 512, granularity));
    ASSERT_TRUE(kind);
    EXPECT_EQ(*kind, batch_kind(cast_of(1024, 768, granularity)));
    EXPECT_EQ(*kind, batch_kind(cast_of(8 * 1000, 264, granularity, 8)));
    EXPECT_EQ(*kind, batch_kind(*kind));
  }
}

TEST(PlanCastBatchTest, WhatKernelsDependOnDoes) {
  const CastProblem one = cast_of(256, 512);
  const auto differs = [&](auto&& change) {
    CastProblem other = one;
    change(other);
    const auto kind = batch_kind(other);
    return kind.has_value() && kind != batch_kind(one);
  };
  EXPECT_TRUE(differs([](auto& p) { p.format.in = DType::kFloat32; }));
  EXPECT_TRUE(differs([](auto& p) { p.format.rule = config::kTorchAoRule; }));
  EXPECT_TRUE(differs([](auto& p) { p.to_rows = false; }));
  EXPECT_TRUE(differs([](auto& p) { p.scales_given = true; }));
  EXPECT_TRUE(differs([](auto& p) { p.x_is_aligned = false; }));
  EXPECT_TRUE(differs([](auto& p) { p.cols = 500; }));
  EXPECT_TRUE(differs([](auto& p) { p.rows = 4 * 66, p.matrices = 4; }));
  EXPECT_FALSE(differs([](auto& p) { p.rows = 4 * 64, p.matrices = 4; }));
}

TEST(PlanCastBatchTest, SomeCastsAreAlone) {
  const auto is_alone = [](auto&& change) {
    CastProblem problem = cast_of(256, 512, kChannel);
    change(problem);
    return !batch_kind(problem).has_value();
  };
  EXPECT_FALSE(is_alone([](auto&) {}));
  EXPECT_TRUE(is_alone([](auto& p) { p.source.kind = config::SourceKind::kGathered; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.columns.sums = true; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.groups = 2; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.skips_unused = true; }));
  EXPECT_TRUE(is_alone([](auto& p) { p.amax_given = true; }));
}

// A batch takes a stack's kernels, for rows with a scale each, too, which alone have one of rows.
TEST(PlanCastBatchTest, KernelsAreThoseOfAStack) {
  for (const Granularity granularity : test::kGranularities) {
    for (const auto& [rows, transposed] :
         {std::pair{true, true}, std::pair{true, false}, std::pair{false, true}}) {
      CastProblem problem = cast_of(1024, 640, granularity, 4);
      problem.to_rows = rows;
      problem.to_transposed = transposed;
      const CastBatchPlan plan = plan_cast_batch(*batch_kind(problem), kHopper);
      ASSERT_EQ(plan.kernels.size(), plan.config.kernels.size());
      ASSERT_EQ(plan.kernels.size(), varies_along_k(granularity) ? 1u : 4u);
      for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
        const CastConfig& kernel = plan.config.kernels[i];
        EXPECT_EQ(plan.kernels[i].header, "kernels/cast/batch.h");
        std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); }, kernel);
        if (const auto* tiles = std::get_if<TileCastConfig>(&kernel)) {
          EXPECT_TRUE(tiles->stacked);
          EXPECT_EQ(batch_blocks(kernel, problem), 4 * 2 * 5);
          EXPECT_EQ(batch_blocks(kernel, cast_of(0, 640)), 0);
        } else {
          const auto& step = std::get<ScaleStepConfig>(kernel);
          const std::int64_t units = granularity == kTensor ? 4
                                     : transposed           ? std::int64_t{4} * 640
                                                            : 1024;
          EXPECT_EQ(batch_blocks(kernel, problem), (units + step.threads() - 1) / step.threads());
        }
      }
    }
  }
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
