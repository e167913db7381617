// The operands that attention by warpgroups multiplies: keys, values and queries as the kernel's
// own code leaves them in shared memory, by the lanes of one warpgroup. Barriers are open, so a
// block has no more tiles than stages.
#define __shared__ static
#include "support/attention_run_on_host.h"  // first: it has CUDA's types
//
#include "kernels/attention/warpgroup_query_tile.h"
#include "kernels/attention/warpgroup_tiles.h"
#include "support/test.h"

namespace octofold {

// The barrier is that of the one warpgroup.
void ptx::barrier_sync(unsigned, unsigned) { __syncthreads(); }

namespace {

using attention::Range;
using attention::Rows;
using attention::WarpgroupMemory;
using config::AttentionForm;
using config::KeyLayout;
using config::WarpgroupQueriesConfig;
using test::Attention;
using test::AttentionCase;
using test::ScaleKind;
using enum DType;

template <typename T>
T at(unsigned address) {
  T value;
  std::memcpy(&value, &ptx::shared[address], sizeof(T));
  return value;
}

// Number i of a row of panels.
float number_at(unsigned panels, int panel_bytes, int row, int i) {
  const auto unit = static_cast<unsigned>(i % 64 / 8);
  return test::decode<kFloat16>(at<unsigned short>(
      panels + static_cast<unsigned>(i / 64 * panel_bytes) +
      attention::swizzled(static_cast<unsigned>(row), unit) + static_cast<unsigned>(i % 8 * 2)));
}

// Code i of a row of a panel.
template <DType kFp8>
float code_at(unsigned panel, int row, int i) {
  const unsigned unit =
      attention::swizzled(static_cast<unsigned>(row), static_cast<unsigned>(i / 16));
  return test::decode<kFp8>(ptx::shared[panel + unit + static_cast<unsigned>(i % 16)]);
}

// Expects the right stage of keys, or of values; as numbers, or as codes.
template <WarpgroupQueriesConfig kConfig, bool kOfKeys, typename Side>
void expect_stage(const Side& side, int stage, int first_key, const Rows& rows, Range seen) {
  constexpr AttentionForm kForm = kConfig.form;
  constexpr bool kAsCodes = kOfKeys && kConfig.fp8_scores;
  constexpr int kSize = kOfKeys ? kForm.head_size : kForm.value_size;
  constexpr int kFilled = kAsCodes  ? 32 * kConfig.key_steps()
                          : kOfKeys ? kConfig.key_numbers()
                                    : kConfig.value_numbers();
  constexpr bool kHasScales = kOfKeys ? kForm.k_scales : kForm.v_scales;
  const WarpgroupMemory<kConfig> memory{0};
  const unsigned panels = kOfKeys ? memory.keys(stage) : memory.values(stage);
  for (int row = 0; row < kConfig.keys; ++row) {
    const int key = first_key + row;
    const bool exists = key >= seen.begin && key < seen.end;
    const float scale =
        kHasScales ? at<float>(memory.scales(stage) + 4 * static_cast<unsigned>(row)) : 1;
    for (int i = 0; i < kFilled; ++i) {
      const float number = kAsCodes ? code_at<kForm.k>(panels, row, i)
                                    : number_at(panels, kConfig.panel_bytes(), row, i);
      const float expected = exists && i < kSize ? side.at(static_cast<std::size_t>(rows.sequence),
                                                           key, rows.key_head, i)
                                                 : 0;
      ASSERT_EQ(number * (exists ? scale : 1), expected)
          << "stage " << stage << " key " << key << " of " << i;
    }
    // A scale that is not seen may multiply a weight of 0.
    ASSERT_TRUE(std::isfinite(scale)) << key;
  }
}

template <WarpgroupQueriesConfig kConfig>
void expect_decoded(const AttentionCase& given, int offset = 0) {
  constexpr AttentionForm kForm = kConfig.form;
  static_assert(kConfig.invalid_reason() == nullptr);
  ASSERT_LE(kConfig.shared_bytes(), static_cast<int>(ptx::shared.size()));
  Attention<kForm> attention(given, offset);
  const config::AttentionParams params = attention.params(kConfig.rows());
  const WarpgroupMemory<kConfig> memory{0};
  const std::int64_t blocks =
      std::int64_t{params.key_heads} * params.splits * params.row_tiles * params.batch;
  test::launch(blocks, 128, [&] {
    if (threadIdx.x == 0) ptx::shared.fill(0x7F);
    __syncthreads();
    attention::WarpgroupTiles<kConfig, WarpgroupMemory<kConfig>>(params, memory).run();
    __syncthreads();
    if (threadIdx.x != 0) return;
    const Rows rows =
        attention::rows_of_work<kConfig.rows(), config::RowCount::kAny>(params, blockIdx.x);
    const int keys = given.keys[static_cast<std::size_t>(rows.sequence)];
    const Range seen = attention::sight_of<kConfig.rows()>(params, rows, keys).any;
    const Range tiles = attention::tiles_of<kConfig.form, kConfig.keys>(params, rows, seen);
    ASSERT_LE(2 * (tiles.end - tiles.begin), kConfig.stages);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int stage = 2 * (tile - tiles.begin), first = tile * kConfig.keys;
      expect_stage<kConfig, true>(*attention.k_, stage, first, rows, seen);
      expect_stage<kConfig, false>(*attention.v_, stage + 1, first, rows, seen);
    }
  });
}

TEST(WarpgroupTilesTest, OfDenseKeys) {
  expect_decoded<WarpgroupQueriesConfig{.form = {.head_size = 128}, .keys = 32}>(
      {.queries = {3, 3}, .keys = {70, 9}});
  expect_decoded<WarpgroupQueriesConfig{.form = {.k = kE5M2, .head_size = 72, .copy_bytes = 8},
                                        .keys = 48}>(
      {.queries = {100, 100}, .keys = {130, 100}, .window_left = 20, .window_right = 0});
}

TEST(WarpgroupTilesTest, OfThreePanels) {
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.v = kE5M2, .head_size = 136, .copy_bytes = 4}, .warpgroups = 2, .keys = 32}>(
      {.queries = {2}, .keys = {80}, .heads = 2, .key_heads = 2});
}

TEST(WarpgroupTilesTest, OfPagesWithScalesInAWindow) {
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.head_size = 64, .layout = KeyLayout::kPaged, .k_scales = true, .v_scales = true},
      .keys = 64}>({.queries = {5, 5},
                    .keys = {150, 33},
                    .window_left = 40,
                    .window_right = 1,
                    .k_scale = ScaleKind::kKeys,
                    .v_scale = ScaleKind::kKeys,
                    .splits = 2});
}

// Threads share panels of keys and of values in other ways where one of the two has pairs of them.
TEST(WarpgroupTilesTest, OfValuesOfAnotherSize) {
  expect_decoded<WarpgroupQueriesConfig{.form = {.v = kE5M2, .head_size = 192, .value_size = 128},
                                        .keys = 48}>({.queries = {3, 3}, .keys = {130, 9}});
  expect_decoded<WarpgroupQueriesConfig{.form = {.head_size = 64,
                                                 .value_size = 200,
                                                 .layout = KeyLayout::kPaged,
                                                 .k_scales = true,
                                                 .v_scales = true,
                                                 .copy_bytes = 8},
                                        .warpgroups = 2,
                                        .keys = 48}>({.queries = {5, 5},
                                                      .keys = {150, 33},
                                                      .k_scale = ScaleKind::kKeys,
                                                      .v_scale = ScaleKind::kKeys});
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.head_size = 128, .value_size = 24, .copy_bytes = 4}, .keys = 32}>({}, 4);
}

TEST(WarpgroupTilesTest, OfCodesAtAnyAddress) {
  expect_decoded<WarpgroupQueriesConfig{.form = {.head_size = 24, .copy_bytes = 1}, .keys = 32}>({},
                                                                                                 3);
}

// Codes of one panel of numbers and of two, and of a head that zeros fill up.
TEST(WarpgroupTilesTest, KeysOfFp8ScoresStayCodes) {
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.head_size = 128}, .keys = 32, .fp8_scores = true}>(
      {.queries = {3, 3}, .keys = {70, 9}});
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.k = kE5M2, .head_size = 72, .copy_bytes = 8}, .keys = 48, .fp8_scores = true}>(
      {.queries = {100, 100}, .keys = {130, 100}, .window_left = 20, .window_right = 0});
  expect_decoded<WarpgroupQueriesConfig{
      .form = {.head_size = 40, .layout = KeyLayout::kPaged, .k_scales = true, .copy_bytes = 8},
      .keys = 64,
      .fp8_scores = true}>({.queries = {5, 5}, .keys = {150, 33}, .k_scale = ScaleKind::kKeys});
  expect_decoded<WarpgroupQueriesConfig{.form = {.head_size = 96, .value_size = 256},
                                        .warpgroups = 2,
                                        .keys = 48,
                                        .fp8_scores = true}>({.queries = {3, 3}, .keys = {130, 9}});
}

// Queries of the second of two warpgroups.
template <AttentionForm kForm>
void expect_queries(bool flip, bool vectors) {
  constexpr WarpgroupQueriesConfig kConfig{.form = kForm, .warpgroups = 2, .keys = 16};
  Attention<kForm> attention({.queries = {70}, .keys = {70}, .heads = 2, .key_heads = 1});
  config::AttentionParams params = attention.params(kConfig.rows());
  params.q_vectors = vectors;
  const WarpgroupMemory<kConfig> memory{0};
  test::launch(1, 128, [&] {
    const Rows rows = attention::rows_of_work<kConfig.rows(), config::RowCount::kAny>(
        params, 1);  // the first rows
    const attention::WarpgroupQueryTile<kConfig> tile(params, memory, 1);
    tile.copy(rows, rows.first + 64);
    tile.await(flip);
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int row = 0; row < 64; ++row) {
      for (int i = 0; i < kConfig.key_numbers(); ++i) {
        const int own = 64 + row;
        const float given =
            i < kForm.head_size
                ? test::decode<kForm.q>(
                      attention.q_[static_cast<std::size_t>(own * kForm.head_size + i)])
                : 0;
        const float number =
            number_at(memory.queries(1), kConfig.query_panel_bytes(), row, i) * tile.unit(row);
        ASSERT_EQ(number, flip ? -given : given) << "row " << row << " of " << i;
      }
    }
  });
}

TEST(WarpgroupQueryTileTest, OfFloat16) {
  expect_queries<{.head_size = 64}>(false, true);
  expect_queries<{.head_size = 72, .copy_bytes = 8}>(true, false);
}

TEST(WarpgroupQueryTileTest, BFloat16IsDividedByAPowerOfTwo) {
  expect_queries<{.q = kBFloat16, .head_size = 64}>(true, true);
  expect_queries<{.q = kBFloat16, .head_size = 200, .copy_bytes = 8}>(false, true);
}

// The same as codes, with rows of zeros, of tiny numbers and with NaN.
template <AttentionForm kForm>
void expect_codes(bool flip) {
  constexpr WarpgroupQueriesConfig kConfig{
      .form = kForm, .warpgroups = 2, .keys = 16, .fp8_scores = true};
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr int kOfTile = 64;  // the tile's first row among all
  constexpr int kNanRow = 5;
  Attention<kForm> attention({.queries = {70}, .keys = {70}, .heads = 2, .key_heads = 1});
  const auto query_at = [&](int row, int i) -> unsigned short& {
    return attention.q_[static_cast<std::size_t>((kOfTile + row) * kForm.head_size + i)];
  };
  for (int i = 0; i < kForm.head_size; ++i) {
    query_at(3, i) = 0x8000;
    query_at(4, i) = static_cast<unsigned short>(i % 2);
  }
  query_at(kNanRow, 2) = 0x7FFF;
  const config::AttentionParams params = attention.params(kConfig.rows());
  const WarpgroupMemory<kConfig> memory{0};
  test::launch(1, 128, [&] {
    const Rows rows = attention::rows_of_work<kConfig.rows(), config::RowCount::kAny>(
        params, 1);  // the first rows
    const attention::WarpgroupQueryTile<kConfig> tile(params, memory, 1);
    tile.copy(rows, rows.first + kOfTile);
    tile.await(flip);
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int row = 0; row < 64; ++row) {
      float largest = 0x1p-100f;
      for (int i = 0; i < kForm.head_size; ++i) {
        largest = std::max(largest, std::abs(test::decode<kForm.q>(query_at(row, i))));
      }
      const float top = test::fp8_query_code(largest);
      if (row != kNanRow) {
        ASSERT_EQ(tile.unit(row), largest / top) << row;
      }
      for (int i = 0; i < 32 * kConfig.key_steps(); ++i) {
        const float code = code_at<kE4M3>(memory.queries(1), row, i);
        const float given = i < kForm.head_size ? test::decode<kForm.q>(query_at(row, i)) : 0;
        const float scaled = given * (top / largest) * (flip ? -1.0f : 1.0f);
        if (row == kNanRow) {
          ASSERT_TRUE(std::isnan(code) || i >= kForm.head_size) << i;
        } else {
          ASSERT_EQ(code, test::decode<kE4M3>(test::encode<kE4M3>(scaled)))
              << "row " << row << " of " << i;
        }
      }
    }
  });
}

TEST(WarpgroupQueryTileTest, Fp8ScoresHaveCodesOfAScaleOfEachRow) {
  expect_codes<{.head_size = 64}>(false);
  expect_codes<{.head_size = 128}>(true);
  expect_codes<{.q = kBFloat16, .head_size = 72, .copy_bytes = 8}>(false);
  expect_codes<{.q = kBFloat16, .head_size = 8, .copy_bytes = 8}>(true);
}

}  // namespace
}  // namespace octofold
