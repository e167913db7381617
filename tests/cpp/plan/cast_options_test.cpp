// Options of a cast beside a plain one: reduced columns, groups, a stack, two levels. The tests
// check their kernels, and that each row of a workspace is written by one tile.

#include "plan/cast.h"
#include "support/granularities.h"
#include "support/product_plans.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::CastSource;
using config::ColumnReductionConfig;
using config::RowCastConfig;
using config::ScaleStepConfig;
using config::SourceKind;
using config::TileCastConfig;
using enum Granularity;

constexpr config::ColumnReductions kSums{.sums = true};
constexpr CastSource kGathered{.kind = SourceKind::kGathered};
constexpr CastSource kMultiplied{.kind = SourceKind::kGathered, .factors = true};
constexpr CastSource kTransposeMultiplied{.kind = SourceKind::kGathered,
                                          .transposed_factors = true};

CastProblem of_columns() { return {.rows = 1000, .cols = 640, .columns = kSums}; }
CastProblem of_groups() { return {.rows = 1000, .cols = 640, .to_transposed = true, .groups = 6}; }
CastProblem of_stack() { return {.rows = 1000, .cols = 640, .to_transposed = true, .matrices = 4}; }
CastProblem of_two_levels() { return {.rows = 1000, .cols = 640, .two_level = true}; }

CastProblem with(CastProblem problem, Granularity granularity, bool to_rows = true,
                 bool to_transposed = true) {
  problem.format.granularity = granularity;
  problem.to_rows = to_rows;
  problem.to_transposed = to_transposed;
  return problem;
}

CastProblem from(CastProblem problem, const CastSource& source) {
  problem.source = source;
  return problem;
}

struct Kind {
  const char* name;
  CastProblem problem;
  std::int64_t blocks;  // of tiles
  bool TileCastConfig::* marked;
};
const Kind kKinds[] = {{"columns", of_columns(), 8 * 5, nullptr},
                       {"groups", of_groups(), (7 + 6) * 5, &TileCastConfig::grouped},
                       {"gathered", from(of_groups(), kGathered), 13 * 5, &TileCastConfig::grouped},
                       {"times", from(of_groups(), kMultiplied), 13 * 5, &TileCastConfig::grouped},
                       {"stack", of_stack(), 4 * 2 * 5, &TileCastConfig::stacked},
                       {"two levels", of_two_levels(), 8 * 5, &TileCastConfig::two_level}};

// The phases of the tiles: of groups one for each slot, of a stack for each matrix, of columns the
// first reduces them, and the last kernel.
std::vector<CastPhase> phases(const Kind& kind, const CastProblem& problem) {
  std::vector<CastPhase> found;
  const std::vector<CastLaunch> launches = cast_launches(problem, kHopper);
  const bool columns = problem.columns.any();
  for (const CastLaunch& launch : launches) {
    std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); },
               launch.config);
    EXPECT_FALSE(std::holds_alternative<RowCastConfig>(launch.config));
    const auto* tiles = std::get_if<TileCastConfig>(&launch.config);
    if (tiles == nullptr) continue;
    if (kind.marked != nullptr) {
      EXPECT_TRUE(tiles->*kind.marked);
    }
    EXPECT_EQ(tiles->columns, columns && found.empty() ? kSums : config::ColumnReductions{});
    if (!columns || found.empty()) {
      EXPECT_EQ(tiles->tile_rows, 128);
      EXPECT_EQ(launch.blocks, kind.blocks);
    }
    found.push_back(tiles->phase);
  }
  if (columns) {
    const auto* last = std::get_if<ColumnReductionConfig>(&launches.back().config);
    EXPECT_TRUE(last != nullptr && last->columns == kSums);
    EXPECT_EQ(launches.back().blocks, 20);
  }
  // Scales that a tile finds take no step of their own.
  if (!columns && found == std::vector{CastPhase::kWhole}) {
    EXPECT_EQ(launches.size(), 1u);
  }
  return found;
}

struct Targets {
  bool to_rows, to_transposed;
};

// True if there is such a cast and it has tiles of its kind: rows that have scales of their own are
// those of one matrix, as squares of two levels are no lines.
bool is_cast(const CastProblem& problem) {
  const Granularity granularity = problem.format.granularity;
  if (problem.groups > 0) {
    return problem.to_transposed && !(problem.to_rows && granularity == kBlock128x128);
  }
  if (problem.matrices > 1) {
    return problem.to_transposed || granularity == kTensor || granularity == kBlock128x128;
  }
  if (!problem.two_level) return true;
  return granularity == kBlock128x128 ||
         (granularity == kBlock1x128 && problem.to_rows && problem.to_transposed);
}

TEST(PlanCastOptionsTest, PhasesAreThoseThatScalesNeed) {
  using enum CastPhase;
  using Phases = std::vector<CastPhase>;
  for (const Kind& kind : kKinds) {
    for (const DType in : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const auto& [rows, transposed] :
           {Targets{true, false}, Targets{false, true}, Targets{true, true}}) {
        for (const Granularity granularity : test::kGranularities) {
          CastProblem problem = with(kind.problem, granularity, rows, transposed);
          problem.format.in = in;
          if (!is_cast(problem)) continue;
          SCOPED_TRACE(std::string(kind.name) + ", " + std::string(name(granularity)));
          EXPECT_EQ(phases(kind, problem),
                    varies_along_k(granularity) ? Phases{kWhole} : (Phases{kAmax, kEncode}));
          if (problem.two_level) continue;
          problem.scales_given = true;
          EXPECT_EQ(phases(kind, problem), Phases{kEncodeGiven});
        }
      }
    }
    if (kind.problem.two_level) continue;
    SCOPED_TRACE(kind.name);
    CastProblem mixed = with(kind.problem, kBlock1x128);
    mixed.transposed_by_channel = true;
    // For one matrix as small as this, a cluster finds all scales.
    EXPECT_EQ(phases(kind, mixed),
              kind.marked == nullptr ? Phases{kWhole} : (Phases{kAmax, kWholeRows}));
    mixed.transposed_by_channel = false;
    mixed.transposed_by_squares = true;
    EXPECT_EQ(phases(kind, mixed), Phases{kWhole});
    mixed.transposed_by_squares = false;
    mixed.two_level = true;
    EXPECT_EQ(phases(kind, mixed), Phases{kWhole});
  }
}

KernelPlan first_kernel(const CastProblem& problem) {
  return plan_cast(problem, kHopper).kernels.at(0);
}

// By a word, but not by a number that the kernel is told.
TEST(PlanCastOptionsTest, NamesAndDescriptionsTellThemApart) {
  const KernelPlan plain = first_kernel(with({.rows = 1000, .cols = 640}, kBlock128x128, false));
  for (const auto& [problem, word] : {std::pair{of_columns(), "columns"},
                                      {of_groups(), "grouped"},
                                      {from(of_groups(), kGathered), "gathered"},
                                      {of_stack(), "stacked"},
                                      {of_two_levels(), "two_level"}}) {
    const KernelPlan kernel = first_kernel(with(problem, kBlock128x128, false));
    EXPECT_THAT(kernel.description, HasSubstr(word));
    EXPECT_NE(kernel.kernel, plain.kernel);
    EXPECT_THAT(plain.description, Not(HasSubstr(word)));
  }
  for (const char* word : {"grouped", "stacked", "two_level", "squares"}) {
    EXPECT_THAT(plain.kernel, Not(HasSubstr(word)));
  }
  EXPECT_NE(first_kernel(from(of_groups(), kGathered)).kernel,
            first_kernel(from(of_groups(), kMultiplied)).kernel);
  EXPECT_NE(first_kernel(from(of_groups(), kTransposeMultiplied)).kernel,
            first_kernel(from(of_groups(), kMultiplied)).kernel);
  CastProblem groups = of_groups(), stack = with(of_stack(), kBlock128x128);
  groups.groups = 7;
  EXPECT_EQ(first_kernel(groups).kernel, first_kernel(of_groups()).kernel);
  stack.matrices = 5;
  stack.rows = 1250;
  EXPECT_EQ(first_kernel(stack).kernel, first_kernel(with(of_stack(), kBlock128x128)).kernel);

  ConvertProblem convert{.rows = 5, .cols = 7, .scaled = true, .granularity = kBlock128x128};
  const auto values = plan_convert(convert, kHopper).kernels[0].kernel;
  convert.has_channel_scale = true;
  EXPECT_NE(plan_convert(convert, kHopper).kernels[0].kernel, values);
}

TEST(PlanCastOptionsTest, WhatNoKernelIsFor) {
  for (const TileCastConfig& config : {TileCastConfig{.to_transposed = true, .grouped = true},
                                       {.to_transposed = true, .stacked = true},
                                       {.two_level = true, .to_transposed = true},
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
        {.two_level = true, .to_rows = false, .to_transposed = true},  // lines that nobody writes
        {.phase = kGiven, .two_level = true, .to_transposed = true},
        {.phase = kGiven, .transposed_squares = true, .to_transposed = true}}) {
    EXPECT_NE(config.invalid_reason(), nullptr) << describe(config);
  }
  config::Sm90GemmConfig product;
  product.form.b_channel_scale = true;
  EXPECT_EQ(product.invalid_reason(), nullptr);
  product.form.b.scales = kChannel;
  EXPECT_NE(product.invalid_reason(), nullptr);
}

// Sums of no rows are written: they are 0. Groups have slots of no rows, and stacks of tensors
// scales.
TEST(PlanCastOptionsTest, EmptyAndTooLarge) {
  const auto launches = [](CastProblem problem, std::int64_t rows, std::int64_t cols) {
    problem.rows = rows;
    problem.cols = cols;
    return cast_launches(problem, kHopper);
  };
  ASSERT_EQ(launches(of_columns(), 0, 640).size(), 1u);
  EXPECT_TRUE(
      std::holds_alternative<ColumnReductionConfig>(launches(of_columns(), 0, 1)[0].config));
  EXPECT_TRUE(launches(of_columns(), 5, 0).empty());
  EXPECT_EQ(launches(of_groups(), 0, 640).size(), 1u);
  EXPECT_TRUE(launches(of_groups(), 0, 0).empty());
  EXPECT_TRUE(launches(with(of_stack(), kBlock128x128), 0, 640).empty());
  EXPECT_EQ(launches(with(of_stack(), kTensor), 0, 640).size(), 2u);  // zeros, and their scales
  CastProblem large = of_stack();
  large.rows = large.matrices = std::int64_t{1} << 30;  // a tile each
  EXPECT_THROW(cast_launches(large, kHopper), Error);
}

// Columns of the transpose begin and end at multiples of 128, whatever the rows do; but in a stack
// they are as long as a matrix has rows.
TEST(PlanCastOptionsTest, CodesAreStoredInVectors) {
  const auto stores = [](CastProblem problem, auto&& change) {
    change(problem);
    return std::get<TileCastConfig>(cast_launches(problem, kHopper)[0].config).vector_stores;
  };
  CastProblem ragged = of_groups();
  ragged.rows = 1001;
  EXPECT_TRUE(stores(ragged, [](auto&) {}));
  EXPECT_FALSE(stores(ragged, [](auto& p) { p.codes_are_aligned = false; }));
  EXPECT_FALSE(stores(ragged, [](auto& p) { p.groups = 0; }));
  EXPECT_FALSE(stores(with(of_stack(), kBlock128x128), [](auto&) {}));  // 250 rows
  EXPECT_TRUE(stores(with(of_stack(), kBlock128x128), [](auto& p) { p.matrices = 5; }));
}

// Steps of scales leave alone what is not cast; where each row has none, they are those of any
// cast.
TEST(PlanCastOptionsTest, StepsKnowWhichRowsThereAre) {
  const auto step = [](const CastProblem& problem) {
    return std::get<ScaleStepConfig>(cast_launches(problem, kHopper)[0].config);
  };
  const CastProblem gathered = from(of_groups(), kGathered);
  const auto rows = step(with(gathered, kChannel));
  EXPECT_TRUE(rows.grouped && rows.gathered);
  for (const CastProblem& problem : {with(gathered, kChannel, false), with(gathered, kTensor)}) {
    EXPECT_FALSE(step(problem).grouped || step(problem).gathered);
  }
  CastProblem mixed = of_groups();
  mixed.transposed_by_channel = true;
  EXPECT_FALSE(step(mixed).grouped);
}

TEST(PlanCastOptionsTest, StepsHaveTheScalesOfAllMatrices) {
  const auto blocks = [](CastProblem problem, std::int64_t rows, std::int64_t matrices = 4) {
    problem.rows = rows;
    problem.matrices = matrices;
    const CastLaunch launch = cast_launches(problem, kHopper)[0];
    EXPECT_TRUE(std::get<ScaleStepConfig>(launch.config).stacked);
    return launch.blocks;
  };
  EXPECT_EQ(blocks(with(of_stack(), kTensor), 1000), 1);
  EXPECT_EQ(blocks(with(of_stack(), kTensor), 1000, 1000), 4);
  EXPECT_EQ(blocks(with(of_stack(), kChannel, false), 1000), 10);  // 4 · 640 / 256
  EXPECT_EQ(blocks(with(of_stack(), kChannel), 4000), 16);
}

// Rows that have scales of their own, or squares that end with each matrix anyway.
TEST(PlanCastOptionsTest, RowsOfAStackAreThoseOfOneMatrix) {
  CastProblem squares = with(of_stack(), kBlock128x128, true, false);
  squares.rows = 4 * 256;
  CastProblem wide = squares;
  wide.cols = 100'000;
  for (CastProblem problem : {with(of_stack(), kChannel, true, false),
                              with(of_stack(), kBlock1x128, true, false), squares, wide}) {
    const CastPlan stack = plan_cast(problem, kHopper);
    problem.matrices = 1;
    const CastPlan one = plan_cast(problem, kHopper);
    ASSERT_EQ(stack.kernels.size(), one.kernels.size());
    for (std::size_t i = 0; i < one.kernels.size(); ++i) {
      EXPECT_EQ(stack.kernels[i].kernel, one.kernels[i].kernel);
      EXPECT_EQ(stack.kernels[i].blocks, one.kernels[i].blocks);
    }
  }
}

// A block of threads has rows of one matrix, which are cast or left alone.
TEST(PlanCastOptionsTest, UnusedMatricesAreLeftAloneByEachKernel) {
  const auto skips = [](const CastLaunch& launch) {
    return std::visit(
        [](const auto& config) {
          if constexpr (requires { config.skips_unused; }) return config.skips_unused;
          return false;
        },
        launch.config);
  };
  for (const Granularity granularity : test::kGranularities) {
    for (const auto& [to_rows, to_transposed] :
         {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
      CastProblem problem = with(of_stack(), granularity, to_rows, to_transposed);
      for (const CastLaunch& launch : cast_launches(problem, kHopper)) EXPECT_FALSE(skips(launch));
      problem.skips_unused = true;
      for (const std::int64_t cols : {640, 100'000}) {
        problem.cols = cols;
        for (const std::int64_t matrices : {1, 4}) {
          problem.matrices = matrices;
          for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
            EXPECT_TRUE(skips(launch));
            std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); },
                       launch.config);
          }
        }
      }
    }
  }
}

// Gathered rows have no pieces to be staged, and have tiles as x itself has.
TEST(PlanCastOptionsTest, GatheredRowsAloneAreCastAsRowsAre) {
  const CastProblem rows = {.rows = 1000, .cols = 640};
  const CastLaunch gathered = cast_launches(from(rows, kMultiplied), kHopper)[0];
  EXPECT_EQ(gathered.blocks, cast_launches(rows, kHopper)[0].blocks);
  const auto& config = std::get<TileCastConfig>(gathered.config);
  EXPECT_FALSE(config.is_staged());
  EXPECT_EQ(config.shared_bytes(), 0);
  // Rows that clusters would copy.
  const CastProblem wide = {.rows = 1000, .cols = 500'000, .format = {.granularity = kChannel}};
  const CastLaunch launch = cast_launches(from(wide, kMultiplied), kHopper)[0];
  EXPECT_TRUE(std::get<RowCastConfig>(launch.config).reread);
}

// The same tilings as without factors: weight gradients of all shapes, swapped and sliced ones.
TEST(PlanTwoLevelTest, ProductsAreCutAsWithoutFactors) {
  GemmProblem problem = as_allocated({.product = {.m = 4096, .n = 4096, .k = 8192}});
  const auto plain = test::sm90_candidates(problem);
  problem.product.form.b_channel_scale = true;
  const auto candidates = test::sm90_candidates(problem);
  ASSERT_EQ(candidates.size(), plain.size());
  bool swapped = false, sliced = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(candidates[i].name, plain[i].name);
    swapped |= candidates[i].config.rows_have_factors();
    sliced |= candidates[i].config.split_k > 1;
  }
  EXPECT_TRUE(swapped);
  EXPECT_TRUE(sliced);
}

}  // namespace
}  // namespace octofold::plan
