// Casts of rows in groups and of gathered rows, run on the host, beside the CPU backend's: the
// same bytes, and none written elsewhere. Offsets and sources that nobody should give write
// nothing outside of the tensors either.
#include "support/casts_on_host.h"  // first: it has CUDA's types

namespace octofold::cast {
namespace {

using config::CastSource;
using config::ScaleStep;
using config::SourceKind;
using Offsets = std::vector<int>;

constexpr std::int64_t kRows = 300, kPlaces = 120, kSlots = 2;

// The input of one cast: x itself in as many rows as are cast, or gathered from fewer.
struct Input {
  Matrix x;
  Offsets offsets{};
  GroupLayout layout{};
  std::vector<int> sources{};
  Floats factors{};
  bool of_transpose = false;  // the factors

  octofold::CastSource source() const {
    if (sources.empty()) return x.view();
    GatheredRows rows{.x = x.view(),
                      .sources = vector<const void>(sources.data(), DType::kInt32, kRows),
                      .slots = kSlots};
    if (!factors.empty()) {
      (of_transpose ? rows.transposed_factors : rows.factors) =
          matrix<const void>(factors.data(), DType::kFloat32, kPlaces, kSlots);
    }
    return rows;
  }
  // The CPU has one cast after the other where only the transpose has factors.
  void cast_on_cpu(CastTargets out, const CastFormat& format) const {
    if (!of_transpose) return cpu::cast(source(), out, format);
    auto rows = std::get<GatheredRows>(source());
    rows.factors = std::exchange(rows.transposed_factors, std::nullopt);
    if (out.rows) {
      GatheredRows plain = rows;
      plain.factors.reset();
      cpu::cast(plain, {.rows = std::exchange(out.rows, std::nullopt)}, format);
    }
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

// By these kernels; of what is hostile all that counts is that nothing is written elsewhere.
template <auto... kConfigs>
void expect_cast(const Input& input, const CastFormat& format, std::optional<Granularity> rows,
                 std::optional<Granularity> transposed, bool hostile = false) {
  Targets device{.given = {.group_layout = input.layout}};
  const bool tight = input.layout == GroupLayout::kTight;
  const std::int64_t spaces = tight ? 0 : std::ssize(input.offsets) - 1;
  const std::int64_t columns = input.offsets.empty() ? kRows : 128 * (kRows / 128 + spaces);
  if (rows) device.rows.emplace(*rows, kRows, input.x.cols());
  if (transposed) device.transposed.emplace(*transposed, input.x.cols(), columns);
  if (!input.offsets.empty()) {
    device.given.offsets =
        vector<const void>(input.offsets.data(), DType::kInt32, std::ssize(input.offsets));
  }
  Targets on_cpu = device;
  cast_by<kConfigs...>(input.source(), device, format);
  if (hostile) return device.expect_guards();
  input.cast_on_cpu(on_cpu.view(), format);
  device.expect_same(on_cpu);
}

// Rows of which every fifth comes from nowhere.
Input gathered(DType in, std::int64_t cols) {
  Input input{.x = random_values(in, kPlaces, cols)};
  for (int row = 0; row < kRows; ++row) input.sources.push_back(row % 5 == 3 ? -1 : row % 240);
  return input;
}
Floats signed_factors() {
  Floats factors;
  for (int i = 0; i < kPlaces * kSlots; ++i) {
    factors.push_back(static_cast<float>(i % 11) / 7 - 0.7f);
  }
  return factors;
}

// Tiles that write the transpose of groups too.
constexpr TileCastConfig with_transpose(TileCastConfig tiles) {
  tiles.to_transposed = tiles.grouped = true;
  tiles.group_m = 2;
  return tiles;
}

// By one kernel, in every partition.
template <TileCastConfig kConfig, bool kGathered = false>
void expect_tiles_as_on_cpu(std::int64_t cols, Granularity transposed) {
  constexpr DType kIn = kConfig.format.in;
  Input input{.x = random_values(kIn, kGathered ? kPlaces : kRows, cols)};
  if constexpr (kGathered) {
    for (int row = 0; row < kRows; ++row) input.sources.push_back(row * 7 % 240);
    for (const int row : {0, 5, 6, 139, 141, 267}) {
      input.sources[as_size(row)] = -1;
    }
    std::fill_n(input.sources.begin() + 150, 20, -1);
    input.of_transpose = kConfig.source.transposed_factors;
    if (kConfig.source.factors || input.of_transpose) {
      input.factors = signed_factors();
    }
  }
  const std::optional<Granularity> rows =
      kConfig.to_rows ? std::optional(kConfig.format.granularity) : std::nullopt;
  for (const Offsets& offsets : kPartitions) {
    input.offsets = offsets;
    input.layout = offsets.back() % 128 == 0 ? GroupLayout::kTight : GroupLayout::kSpaced;
    if (input.of_transpose) {
      std::fill(input.sources.begin() + offsets.back(), input.sources.end(), -1);
    }
    expect_cast<kConfig>(input, kConfig.format, rows, transposed);
  }
  if constexpr (kGathered) {
    for (std::size_t i = 0; i < 100; ++i) input.sources[i] = i % 2 == 0 ? 240 : -1'000'000;
    input.sources[3] = std::numeric_limits<int>::max();
    input.sources[4] = std::numeric_limits<int>::min();
  }
  for (const Offsets& offsets : kHostile) {
    input.offsets = offsets;
    expect_cast<kConfig>(input, kConfig.format, rows, transposed, true);
  }
}

TEST(GroupCastsTest, BlocksOfBothTargets) {
  expect_tiles_as_on_cpu<with_transpose({})>(136, kBlock1x128);
}

// If there is no value but zeros, the rule makes NaN: behind a group there are zeros all the same.
TEST(GroupCastsTest, SquaresOfTheTransposeAlone) {
  constexpr CastFormat kFormat{
      .in = DType::kFloat32, .granularity = kBlock128x128, .rule = config::kDeepSeekRule};
  expect_tiles_as_on_cpu<unaligned(with_transpose({.format = kFormat, .to_rows = false}))>(
      77, kBlock128x128);
}

TEST(GroupCastsTest, SquaresBesideRowsOfBlocks) {
  constexpr CastFormat kFormat{.in = DType::kFloat16, .rule = config::kDeepSeekRule};
  expect_tiles_as_on_cpu<with_transpose({.format = kFormat, .transposed_squares = true})>(
      136, kBlock128x128);
}

TEST(GroupCastsTest, GatheredRowsTimesFactors) {
  constexpr CastSource kSource{.kind = SourceKind::kGathered, .factors = true};
  expect_tiles_as_on_cpu<with_transpose({.source = kSource}), true>(136, kBlock1x128);
}

// Rows as they are; those of no group come from nowhere.
TEST(GroupCastsTest, GatheredRowsAndTheTransposeTimesFactors) {
  constexpr CastSource kSource{.kind = SourceKind::kGathered, .transposed_factors = true};
  expect_tiles_as_on_cpu<with_transpose({.source = kSource}), true>(136, kBlock1x128);
  constexpr TileCastConfig kElements =
      unaligned({.format = {.in = DType::kFloat32, .rule = config::kDeepSeekRule},
                 .source = kSource,
                 .to_transposed = true,
                 .grouped = true});
  expect_tiles_as_on_cpu<kElements, true>(50, kBlock1x128);
}

// The scales of the transpose's channels by steps, rows with the codes.
TEST(GroupCastsTest, GatheredRowsBesideChannelsTimesFactors) {
  constexpr DType kIn = DType::kBFloat16;
  constexpr CastFormat kLines{.in = kIn};
  constexpr CastFormat kChannels{.in = kIn, .granularity = kChannel};
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
  Input input = gathered(kIn, 136);
  input.of_transpose = true;
  input.factors = signed_factors();
  for (const Offsets& offsets : kPartitions) {
    input.offsets = offsets;
    std::fill(input.sources.begin() + offsets.back(), input.sources.end(), -1);
    expect_cast<scale_step(kAmax, ScaleStep::kClear), kAmax, kEncode,
                scale_step(kAmax, ScaleStep::kFinish)>(input, kLines, kBlock1x128, kChannel);
  }
}

TEST(GroupCastsTest, GatheredElements) {
  constexpr TileCastConfig kElements =
      unaligned(with_transpose({.format = {.in = DType::kFloat16, .rule = config::kDeepSeekRule},
                                .source = {.kind = SourceKind::kGathered, .factors = true}}));
  expect_tiles_as_on_cpu<kElements, true>(50, kBlock1x128);
}

// By steps, the scales of channels both ways; rows that no group has keep theirs.
TEST(GroupCastsTest, ChannelsOfBothTargets) {
  constexpr DType kIn = DType::kBFloat16;
  constexpr CastFormat kFormat{.in = kIn, .granularity = kChannel};
  constexpr TileCastConfig kAmax{.format = kFormat,
                                 .source = {.kind = SourceKind::kGathered},
                                 .phase = CastPhase::kAmax,
                                 .to_transposed = true,
                                 .grouped = true};
  Input input = gathered(kIn, 64);
  for (const auto& [partitions, hostile] : {std::pair(kPartitions, false), {kHostile, true}}) {
    for (const Offsets& offsets : partitions) {
      input.offsets = offsets;
      expect_cast<scale_step(kAmax, ScaleStep::kClear), kAmax, in_phase(kAmax, CastPhase::kEncode),
                  scale_step(kAmax, ScaleStep::kFinish)>(input, kFormat, kChannel, kChannel,
                                                         hostile);
    }
  }
}

// Without groups: whole rows, and small tiles of rows alone.
template <DType kIn, auto kConfig>
void expect_gathered_rows(std::int64_t cols, bool with_factors) {
  Input input{.x = random_values(kIn, kPlaces, cols)};
  for (int row = 0; row < kRows; ++row) input.sources.push_back(row % 3 == 1 ? -1 : row % 240);
  if (with_factors) {
    for (int i = 0; i < kPlaces * kSlots; ++i)
      input.factors.push_back(std::exp2(static_cast<float>(i % 5) - 2.5f));
  }
  const std::optional rows(kConfig.format.granularity);
  expect_cast<kConfig>(input, kConfig.format, rows, std::nullopt);
  for (int row = 0; row < kRows; row += 2) {
    input.sources[as_size(row)] = 240 + row * 1'000'000;
  }
  expect_cast<kConfig>(input, kConfig.format, rows, std::nullopt, true);
}

TEST(GatheredCastsTest, RowsOfChannels) {
  constexpr CastSource kSource{.kind = SourceKind::kGathered, .factors = true};
  constexpr CastFormat kFormat{.in = DType::kFloat16, .granularity = kChannel};
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
