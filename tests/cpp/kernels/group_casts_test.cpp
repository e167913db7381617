// Casts of rows in groups and of gathered rows, run on the host, beside the CPU backend's: the
// same bytes, and none written elsewhere. Offsets and sources that nobody should give write
// nothing outside of the tensors either.
#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"

#include "support/casts_on_host.h"  // first: it has CUDA's types
//
#include "cpu/backend.h"
#include "support/test.h"

namespace octofold::cast {
namespace {

using config::CastRule;
using config::CastSource;
using config::ScaleStep;
using config::SourceKind;
using Offsets = std::vector<int>;

constexpr std::int64_t kRows = 300, kPlaces = 120, kSlots = 2;

// The input of one cast: x itself in as many rows as are cast, or gathered from fewer.
template <DType kIn>
struct Input {
  std::vector<Storage<kIn>> x;
  Offsets offsets{};
  GroupLayout layout{};
  std::vector<int> sources{};
  std::vector<float> factors{};
  bool of_transpose = false;  // the factors
  std::int64_t cols;

  CastParams params() const {
    CastParams params{};
    params.x = x.data();
    params.x_stride = cols;
    params.rows = kRows;
    params.cols = cols;
    params.offsets = offsets.data();
    params.groups = static_cast<int>(offsets.size()) - 1;
    params.group_layout = layout;
    params.slots = config::Divisor::of(kSlots);
    params.sources = sources.data();
    params.factors = factors.data();
    params.places = kPlaces * kSlots;
    return params;
  }
  void cast_on_cpu(CastTargets out, const config::CastFormat& format) const {
    out.group_layout = layout;
    if (!offsets.empty()) {
      out.offsets = vector(offsets.data(), DType::kInt32, std::ssize(offsets));
    }
    if (sources.empty()) {
      return cpu::cast(matrix<const void>(x.data(), kIn, kRows, cols), out, format);
    }
    GatheredRows rows{.x = matrix<const void>(x.data(), kIn, kPlaces, cols),
                      .sources = vector(sources.data(), DType::kInt32, kRows),
                      .slots = kSlots};
    if (factors.empty()) return cpu::cast(rows, out, format);
    if (of_transpose && out.rows) {
      cpu::cast(rows, {.rows = out.rows}, format);
      out.rows.reset();
    }
    rows.factors = matrix(factors.data(), DType::kFloat32, kPlaces, kSlots);
    cpu::cast(rows, out, format);
  }
};

// Groups of rows that end before them all: empty ones, such as end within a slot, and at its end.
const std::vector<Offsets> kPartitions{
    {0, 300}, {0, 128, 256, 257, 290}, {0, 0, 5, 5, 140, 268, 268}, {0, 0}, {0, 128, 128, 256}};

// Offsets that no caller should give.
const std::vector<Offsets> kHostile{
    {300, 200, 100, 0},
    {std::numeric_limits<int>::min(), std::numeric_limits<int>::max(), -1, 7},
    {0, 1'000'000, 2'000'000, 150},
    {-5, 17, 12, 400},
    {129, 129, 128, 300}};

// Targets of the casts to be compared, and what runs them.
template <DType kIn, typename Run>
void expect_as_on_cpu(const Input<kIn>& input, const config::CastFormat& format,
                      std::optional<Granularity> rows, std::optional<Granularity> transposed,
                      bool hostile, Run&& run) {
  std::vector<Target> device, cpu;
  const bool tight = input.layout == GroupLayout::kTight;
  const std::int64_t spaces = tight ? 0 : std::ssize(input.offsets) - 1;
  const std::int64_t columns = input.offsets.empty() ? kRows : 128 * (kRows / 128 + spaces);
  if (rows) device.emplace_back(*rows, kRows, input.cols);
  if (transposed) device.emplace_back(*transposed, input.cols, columns);
  cpu = device;
  CastParams params = input.params();
  CastTargets targets;
  if (rows) {
    params.row_target = device.front().target();
    targets.rows = cpu.front().view();
  }
  if (transposed) {
    params.transposed_target = device.back().target();
    targets.transposed = cpu.back().view();
  }
  run(params);
  for (const Target& target : device) target.expect_guards();
  if (hostile) return;
  input.cast_on_cpu(targets, format);
  for (std::size_t i = 0; i < device.size(); ++i) device[i].expect_same(cpu[i]);
}

// By one kernel, in every partition.
template <TileCastConfig kConfig, bool kGathered = false>
void expect_tiles_as_on_cpu(std::int64_t cols, Granularity transposed) {
  constexpr DType kIn = kConfig.format.in;
  Input<kIn> input{.x = random_values<kIn>(kGathered ? kPlaces : kRows, cols), .cols = cols};
  if constexpr (kGathered) {
    for (int row = 0; row < kRows; ++row) input.sources.push_back(row * 7 % 240);
    for (const int row : {0, 5, 6, 139, 141, 267}) {
      input.sources[as_size(row)] = -1;
    }
    std::fill_n(input.sources.begin() + 150, 20, -1);
    input.of_transpose = kConfig.source.transposed_factors;
    if (kConfig.source.factors || input.of_transpose) {
      for (int i = 0; i < kPlaces * kSlots; ++i) {
        input.factors.push_back(static_cast<float>(i % 11) / 7 - 0.7f);
      }
    }
  }
  const std::optional<Granularity> rows =
      kConfig.to_rows ? std::optional(kConfig.format.granularity) : std::nullopt;
  const auto run = [](const CastParams& params) { launch<kConfig>(params); };
  for (const Offsets& offsets : kPartitions) {
    input.offsets = offsets;
    input.layout = offsets.back() % 128 == 0 ? GroupLayout::kTight : GroupLayout::kSpaced;
    if (input.of_transpose) {
      std::fill(input.sources.begin() + offsets.back(), input.sources.end(), -1);
    }
    expect_as_on_cpu(input, kConfig.format, rows, transposed, false, run);
  }
  if constexpr (kGathered) {
    for (std::size_t i = 0; i < 100; ++i) input.sources[i] = i % 2 == 0 ? 240 : -1'000'000;
    input.sources[3] = std::numeric_limits<int>::max();
    input.sources[4] = std::numeric_limits<int>::min();
  }
  for (const Offsets& offsets : kHostile) {
    input.offsets = offsets;
    expect_as_on_cpu(input, kConfig.format, rows, transposed, true, run);
  }
}

TEST(GroupCastsTest, BlocksOfBothTargets) {
  expect_tiles_as_on_cpu<TileCastConfig{.to_transposed = true, .group_m = 2, .grouped = true}>(
      136, kBlock1x128);
}

// If there is no value but zeros, the rule makes NaN: behind a group there are zeros all the same.
TEST(GroupCastsTest, SquaresOfTheTransposeAlone) {
  expect_tiles_as_on_cpu<TileCastConfig{.format = {.in = DType::kFloat32,
                                                   .granularity = kBlock128x128,
                                                   .rule = config::kDeepSeekRule},
                                        .to_rows = false,
                                        .to_transposed = true,
                                        .vector_loads = false,
                                        .vector_stores = false,
                                        .group_m = 2,
                                        .grouped = true}>(77, kBlock128x128);
}

TEST(GroupCastsTest, SquaresBesideRowsOfBlocks) {
  expect_tiles_as_on_cpu<TileCastConfig{
      .format = {.in = DType::kFloat16, .rule = config::kDeepSeekRule},
      .transposed_squares = true,
      .to_transposed = true,
      .group_m = 2,
      .grouped = true}>(136, kBlock128x128);
}

TEST(GroupCastsTest, GatheredRowsTimesFactors) {
  expect_tiles_as_on_cpu<TileCastConfig{.source = {.kind = SourceKind::kGathered, .factors = true},
                                        .to_transposed = true,
                                        .group_m = 2,
                                        .grouped = true},
                         true>(136, kBlock1x128);
}

// Rows as they are; those of no group come from nowhere.
TEST(GroupCastsTest, GatheredRowsAndTheTransposeTimesFactors) {
  constexpr CastSource kSource{.kind = SourceKind::kGathered, .transposed_factors = true};
  expect_tiles_as_on_cpu<
      TileCastConfig{.source = kSource, .to_transposed = true, .group_m = 2, .grouped = true},
      true>(136, kBlock1x128);
  expect_tiles_as_on_cpu<TileCastConfig{
                             .format = {.in = DType::kFloat32, .rule = config::kDeepSeekRule},
                             .source = kSource,
                             .to_transposed = true,
                             .vector_loads = false,
                             .vector_stores = false,
                             .grouped = true},
                         true>(50, kBlock1x128);
}

// The scales of the transpose's channels by steps, rows with the codes.
TEST(GroupCastsTest, GatheredRowsBesideChannelsTimesFactors) {
  constexpr DType kIn = DType::kBFloat16;
  constexpr config::CastFormat kLines{.in = kIn};
  constexpr config::CastFormat kChannels{.in = kIn, .granularity = kChannel};
  constexpr ScaleStepConfig kClear{
      .format = kChannels, .step = ScaleStep::kClear, .to_rows = false, .to_transposed = true};
  constexpr TileCastConfig kAmax{.format = kChannels,
                                 .source = {.kind = SourceKind::kGathered, .factors = true},
                                 .phase = CastPhase::kAmax,
                                 .to_rows = false,
                                 .to_transposed = true,
                                 .grouped = true};
  constexpr TileCastConfig kEncode{
      .format = kLines,
      .source = {.kind = SourceKind::kGathered, .transposed_factors = true},
      .phase = CastPhase::kWholeRows,
      .to_transposed = true,
      .grouped = true};
  constexpr ScaleStepConfig kFinish{
      .format = kChannels, .step = ScaleStep::kFinish, .to_rows = false, .to_transposed = true};
  Input<kIn> input{.x = random_values<kIn>(kPlaces, 136), .cols = 136};
  input.of_transpose = true;
  for (int row = 0; row < kRows; ++row) input.sources.push_back(row % 5 == 3 ? -1 : row % 240);
  for (int i = 0; i < kPlaces * kSlots; ++i) {
    input.factors.push_back(static_cast<float>(i % 11) / 7 - 0.7f);
  }
  const auto run = [](const CastParams& params) {
    launch<kClear>(params);
    launch<kAmax>(params);
    launch<kEncode>(params);
    launch<kFinish>(params);
  };
  for (const Offsets& offsets : kPartitions) {
    input.offsets = offsets;
    std::fill(input.sources.begin() + offsets.back(), input.sources.end(), -1);
    expect_as_on_cpu(input, kLines, kBlock1x128, kChannel, false, run);
  }
}

TEST(GroupCastsTest, GatheredElements) {
  expect_tiles_as_on_cpu<TileCastConfig{
                             .format = {.in = DType::kFloat16, .rule = config::kDeepSeekRule},
                             .source = {.kind = SourceKind::kGathered, .factors = true},
                             .to_transposed = true,
                             .vector_loads = false,
                             .vector_stores = false,
                             .group_m = 2,
                             .grouped = true},
                         true>(50, kBlock1x128);
}

// By steps, the scales of channels both ways; rows that no group has keep theirs.
TEST(GroupCastsTest, ChannelsOfBothTargets) {
  constexpr DType kIn = DType::kBFloat16;
  constexpr config::CastFormat kFormat{.in = kIn, .granularity = kChannel};
  constexpr CastSource kGathered{.kind = SourceKind::kGathered};
  constexpr TileCastConfig kAmax{.format = kFormat,
                                 .source = kGathered,
                                 .phase = CastPhase::kAmax,
                                 .to_transposed = true,
                                 .grouped = true};
  constexpr TileCastConfig kEncode{.format = kFormat,
                                   .source = kGathered,
                                   .phase = CastPhase::kEncode,
                                   .to_transposed = true,
                                   .grouped = true};
  constexpr ScaleStepConfig kClear{.format = kFormat,
                                   .step = ScaleStep::kClear,
                                   .to_transposed = true,
                                   .grouped = true,
                                   .gathered = true};
  constexpr ScaleStepConfig kFinish{.format = kFormat,
                                    .step = ScaleStep::kFinish,
                                    .to_transposed = true,
                                    .grouped = true,
                                    .gathered = true};
  Input<kIn> input{.x = random_values<kIn>(kPlaces, 64), .cols = 64};
  for (int row = 0; row < kRows; ++row) input.sources.push_back(row % 5 == 3 ? -1 : row % 240);
  const auto run = [](const CastParams& params) {
    launch<kClear>(params);
    launch<kAmax>(params);
    launch<kEncode>(params);
    launch<kFinish>(params);
  };
  for (const Offsets& offsets : kPartitions) {
    input.offsets = offsets;
    expect_as_on_cpu(input, kFormat, kChannel, kChannel, false, run);
  }
  for (const Offsets& offsets : kHostile) {
    input.offsets = offsets;
    expect_as_on_cpu(input, kFormat, kChannel, kChannel, true, run);
  }
}

// Without groups: whole rows, and small tiles of rows alone.
template <DType kIn, auto kConfig>
void expect_gathered_rows(std::int64_t cols, bool with_factors) {
  Input<kIn> input{.x = random_values<kIn>(kPlaces, cols), .cols = cols};
  for (int row = 0; row < kRows; ++row) input.sources.push_back(row % 3 == 1 ? -1 : row % 240);
  if (with_factors) {
    for (int i = 0; i < kPlaces * kSlots; ++i)
      input.factors.push_back(std::exp2(static_cast<float>(i % 5) - 2.5f));
  }
  const auto run = [](const CastParams& params) { launch<kConfig>(params); };
  const std::optional rows(kConfig.format.granularity);
  expect_as_on_cpu(input, kConfig.format, rows, std::nullopt, false, run);
  for (int row = 0; row < kRows; row += 2) {
    input.sources[as_size(row)] = 240 + row * 1'000'000;
  }
  expect_as_on_cpu(input, kConfig.format, rows, std::nullopt, true, run);
}

TEST(GatheredCastsTest, RowsOfChannels) {
  constexpr CastSource kSource{.kind = SourceKind::kGathered, .factors = true};
  constexpr config::CastFormat kFormat{.in = DType::kFloat16, .granularity = kChannel};
  expect_gathered_rows<DType::kFloat16, RowCastConfig{.format = kFormat,
                                                      .source = kSource,
                                                      .threads_per_row = 32,
                                                      .vectors_per_thread = 2}>(136, true);
  expect_gathered_rows<DType::kFloat16, RowCastConfig{.format = kFormat,
                                                      .source = kSource,
                                                      .vector_loads = false,
                                                      .vector_stores = false,
                                                      .threads_per_row = 32,
                                                      .vectors_per_thread = 1,
                                                      .reread = true}>(301, true);
}

TEST(GatheredCastsTest, RowsOfBlocks) {
  expect_gathered_rows<DType::kFloat32, TileCastConfig{.format = {.in = DType::kFloat32},
                                                       .source = {.kind = SourceKind::kGathered},
                                                       .tile_rows = 32,
                                                       .rows_per_thread = 4}>(160, false);
}

}  // namespace
}  // namespace octofold::cast
