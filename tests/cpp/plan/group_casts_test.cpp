// Casts of rows in groups, and of gathered rows: their kernels, and where groups stand.
#include <algorithm>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <variant>
#include <vector>

#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_layout.h"
#include "plan/cast.h"
#include "support/random.h"

namespace octofold::plan {
namespace {

using config::CastPhase;
using config::CastSource;
using config::GroupBounds;
using config::RowCastConfig;
using config::ScaleStepConfig;
using config::SourceKind;
using config::TileCastConfig;
using enum Granularity;
using testing::HasSubstr;

constexpr CastSource kGathered{.kind = SourceKind::kGathered};
constexpr CastSource kMultiplied{.kind = SourceKind::kGathered, .factors = true};

TEST(DivisorTest, IsExactBelowTwoToThe31st) {
  test::Random random;
  constexpr unsigned kMost = 0x7FFFFFFF;
  for (unsigned i = 0; i < 100'000; ++i) {
    const unsigned divisor = i < 2000 ? i + 1 : 1 + static_cast<unsigned>(random()) % kMost;
    const auto by = config::Divisor::of(divisor);
    const auto expect_exact = [&](unsigned value) {
      EXPECT_EQ(by.quotient(value), value / divisor) << value << " / " << divisor;
    };
    const unsigned value = static_cast<unsigned>(random()) % (kMost + 1u);
    const unsigned multiple = value / divisor * divisor;
    expect_exact(value);
    expect_exact(multiple);
    if (multiple > 0) expect_exact(multiple - 1);
    expect_exact(kMost);
    expect_exact(divisor);
    expect_exact(divisor - 1);
  }
}

GroupBounds rows_of(const std::vector<int>& offsets, std::int64_t rows, std::int64_t slot) {
  return config::rows_of_slot(offsets.data(), static_cast<int>(offsets.size()) - 1, rows,
                              static_cast<int>(slot));
}

// Each group's rows come once, from the group's own first slot on, and no slot has others.
TEST(GroupLayoutTest, EachRowStandsInItsOwnGroupOnce) {
  test::Random random;
  for (int i = 0; i < 2000; ++i) {
    const auto rows = static_cast<std::int64_t>(random() % 2000);
    const int groups = 1 + static_cast<int>(random() % 20);
    std::vector<int> offsets{0};
    for (int group = 0; group < groups; ++group) {
      offsets.push_back(static_cast<int>(random() % static_cast<unsigned>(rows + 1)));
      if (random() % 3 == 0) offsets.back() = offsets.back() / 128 * 128;
      if (random() % 4 == 0) offsets.back() = offsets[offsets.size() - 2];
    }
    std::ranges::sort(offsets);
    const std::int64_t slots = config::group_slots(rows, groups);
    std::vector<int> owner(static_cast<std::size_t>(slots), -1);
    for (int group = 0; group < groups; ++group) {
      const int begin = offsets[static_cast<std::size_t>(group)];
      const int end = offsets[static_cast<std::size_t>(group) + 1];
      for (int row = begin; row < end; row += 128) {
        const std::int64_t slot = begin / 128 + group + (row - begin) / 128;
        ASSERT_LT(slot, slots);
        EXPECT_EQ(owner[static_cast<std::size_t>(slot)], -1);
        owner[static_cast<std::size_t>(slot)] = group;
        const GroupBounds found = rows_of(offsets, rows, slot);
        EXPECT_EQ(found.begin, row);
        EXPECT_EQ(found.end, end);
      }
    }
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const GroupBounds found = rows_of(offsets, rows, slot);
      EXPECT_EQ(found.begin < found.end, owner[static_cast<std::size_t>(slot)] >= 0);
    }
  }
}

TEST(GroupLayoutTest, NoOffsetsReachBeyondTheRows) {
  test::Random random;
  constexpr int kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
  for (int i = 0; i < 2000; ++i) {
    const auto rows = static_cast<std::int64_t>(random() % 700);
    std::vector<int> offsets(2 + random() % 9);
    for (int& offset : offsets) {
      const auto kind = random() % 4;
      offset = kind == 0 ? kLeast : kind == 1 ? kMost : static_cast<int>(random() % 1400) - 300;
    }
    const int groups = static_cast<int>(offsets.size()) - 1;
    const GroupBounds all = config::grouped_rows(offsets.data(), groups, rows);
    EXPECT_TRUE(0 <= all.begin && all.begin <= all.end && all.end <= rows);
    for (std::int64_t slot = 0; slot < config::group_slots(rows, groups); ++slot) {
      const GroupBounds found = rows_of(offsets, rows, slot);
      if (found.begin >= found.end) continue;
      EXPECT_TRUE(all.begin <= found.begin && found.end <= all.end);
    }
  }
}

CastProblem problem_of(Granularity granularity, bool to_rows = true) {
  return {.rows = 1000,
          .cols = 640,
          .format = {.granularity = granularity},
          .to_rows = to_rows,
          .to_transposed = true,
          .groups = 6};
}

// The phases of the tiles, one for each slot and 128 columns.
std::vector<CastPhase> phases(const CastProblem& problem) {
  std::vector<CastPhase> found;
  for (const CastLaunch& launch : cast_launches(problem, kHopper)) {
    std::visit([](const auto& config) { EXPECT_EQ(config.invalid_reason(), nullptr); },
               launch.config);
    const auto* tiles = std::get_if<TileCastConfig>(&launch.config);
    if (tiles == nullptr) continue;
    EXPECT_TRUE(tiles->grouped);
    EXPECT_EQ(tiles->tile_rows, 128);
    EXPECT_EQ(launch.blocks, (7 + 6) * 5);
    found.push_back(tiles->phase);
  }
  return found;
}

TEST(PlanGroupCastsTest, TilesAreSlots) {
  using enum CastPhase;
  using Phases = std::vector<CastPhase>;
  for (const CastSource& source : {CastSource{}, kGathered, kMultiplied}) {
    const auto of_source = [&](CastProblem problem) {
      problem.source = source;
      return phases(problem);
    };
    EXPECT_EQ(of_source(problem_of(kBlock1x128)), Phases{kWhole});
    EXPECT_EQ(of_source(problem_of(kBlock128x128, false)), Phases{kWhole});
    EXPECT_EQ(of_source(problem_of(kTensor)), (Phases{kAmax, kEncode}));
    EXPECT_EQ(of_source(problem_of(kChannel)), (Phases{kAmax, kEncode}));
    CastProblem mixed = problem_of(kBlock1x128);
    mixed.transposed_by_channel = true;
    EXPECT_EQ(of_source(mixed), (Phases{kAmax, kWholeRows}));
    mixed.transposed_by_channel = false;
    mixed.transposed_by_squares = true;
    EXPECT_EQ(of_source(mixed), Phases{kWhole});
    mixed.scales_given = true;
    mixed.transposed_by_squares = false;
    EXPECT_EQ(of_source(mixed), Phases{kEncodeGiven});
  }
}

// Columns of the transpose begin and end at multiples of 128, whatever the rows do.
TEST(PlanGroupCastsTest, CodesAreStoredInVectors) {
  CastProblem problem = problem_of(kBlock1x128);
  problem.rows = 1001;
  const auto stores = [&] {
    return std::get<TileCastConfig>(cast_launches(problem, kHopper)[0].config).vector_stores;
  };
  EXPECT_TRUE(stores());
  problem.codes_are_aligned = false;
  EXPECT_FALSE(stores());
  problem.codes_are_aligned = true;
  problem.groups = 0;
  EXPECT_FALSE(stores());
}

// Steps of scales leave alone what is not cast; where each row has none, they are those of any
// cast.
TEST(PlanGroupCastsTest, StepsKnowWhichRowsThereAre) {
  const auto step = [](const CastProblem& problem) {
    return std::get<ScaleStepConfig>(cast_launches(problem, kHopper)[0].config);
  };
  CastProblem problem = problem_of(kChannel);
  problem.source = kGathered;
  EXPECT_TRUE(step(problem).grouped && step(problem).gathered);
  problem.to_rows = false;
  EXPECT_FALSE(step(problem).grouped || step(problem).gathered);
  problem = problem_of(kTensor);
  problem.source = kGathered;
  EXPECT_FALSE(step(problem).grouped || step(problem).gathered);
  problem = problem_of(kBlock1x128);
  problem.transposed_by_channel = true;
  EXPECT_FALSE(step(problem).grouped);
}

// What is gathered has no pieces to be staged, and tiles as x itself has.
TEST(PlanGroupCastsTest, GatheredRowsAloneAreCastAsRowsAre) {
  CastProblem problem = problem_of(kBlock1x128);
  problem.groups = 0;
  problem.to_transposed = false;
  const auto plain = cast_launches(problem, kHopper);
  problem.source = kMultiplied;
  const auto gathered = cast_launches(problem, kHopper);
  EXPECT_EQ(gathered[0].blocks, plain[0].blocks);
  const auto& config = std::get<TileCastConfig>(gathered[0].config);
  EXPECT_FALSE(config.is_staged());
  EXPECT_EQ(config.shared_bytes(), 0);
  problem.format.granularity = kChannel;
  problem.cols = 500'000;  // rows that clusters would copy
  EXPECT_TRUE(std::get<RowCastConfig>(cast_launches(problem, kHopper)[0].config).reread);
}

TEST(PlanGroupCastsTest, NamesAndDescriptionsTellThemApart) {
  CastProblem problem = problem_of(kBlock1x128);
  const auto grouped = plan_cast(problem, kHopper).kernels[0];
  EXPECT_THAT(grouped.description, HasSubstr("grouped"));
  problem.groups = 7;  // a number that the kernel is told
  EXPECT_EQ(plan_cast(problem, kHopper).kernels[0].kernel, grouped.kernel);
  problem.groups = 0;
  const auto plain = plan_cast(problem, kHopper).kernels[0];
  EXPECT_THAT(plain.kernel, Not(HasSubstr("grouped")));
  EXPECT_THAT(plain.kernel, Not(HasSubstr("squares")));
  problem.source = kGathered;
  const auto gathered = plan_cast(problem, kHopper).kernels[0];
  EXPECT_THAT(gathered.description, HasSubstr("gathered"));
  problem.source = kMultiplied;
  EXPECT_NE(plan_cast(problem, kHopper).kernels[0].kernel, gathered.kernel);
}

TEST(PlanGroupCastsTest, WhatNoKernelIsFor) {
  TileCastConfig config{.to_transposed = true, .grouped = true};
  EXPECT_EQ(config.invalid_reason(), nullptr);
  config.to_transposed = false;
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = {.format = {.granularity = kBlock128x128}, .to_transposed = true, .grouped = true};
  EXPECT_NE(config.invalid_reason(), nullptr);  // squares of rows
  config = {.to_transposed = true, .columns = {.sums = true}, .grouped = true};
  EXPECT_NE(config.invalid_reason(), nullptr);
  config = {.transposed_squares = true, .to_transposed = true};
  EXPECT_EQ(config.invalid_reason(), nullptr);
  config.phase = CastPhase::kEncodeGiven;
  EXPECT_NE(config.invalid_reason(), nullptr);
}

TEST(PlanGroupCastsTest, NoRowsAndNoColumns) {
  CastProblem problem = problem_of(kBlock1x128);
  problem.rows = 0;
  ASSERT_EQ(cast_launches(problem, kHopper).size(), 1u);  // slots of no rows
  problem.cols = 0;
  EXPECT_TRUE(cast_launches(problem, kHopper).empty());
}

}  // namespace
}  // namespace octofold::plan
