// The kernels of attention, run on the host, beside sums in FP64.
#define __shared__ static
#include "support/attention_on_host.h"  // first: it has CUDA's types
//
#include "support/test.h"

namespace octofold {
namespace {

using config::AttentionForm;
using config::FewQueriesConfig;
using config::KeyLayout;
using config::ManyQueriesConfig;
using config::WideHeadsConfig;
using test::Attention;
using test::AttentionCase;
using test::ScaleKind;
using enum DType;

template <AttentionForm kForm>
constexpr FewQueriesConfig few(int stages = 2) {
  return {.form = kForm, .warps = 2, .stages = stages};
}
template <AttentionForm kForm>
constexpr ManyQueriesConfig many(int row_tiles, int keys, int buffers = 2) {
  return {.form = kForm, .warps = 2, .row_tiles = row_tiles, .keys = keys, .buffers = buffers};
}

template <auto kConfig>
void expect_right(const AttentionCase& given, int offset = 0) {
  constexpr AttentionForm kForm = kConfig.form;
  Attention<kForm> attention(given, offset);
  attention.template run<kConfig>(attention.params(kConfig.rows()));
  attention.expect_right();
}

TEST(FewQueriesTest, OfDenseKeys) {
  expect_right<few<{.head_size = 128}>()>({});
  expect_right<few<{.k = kE5M2, .v = kE4M3, .head_size = 64}>(1)>(
      {.keys = {0, 100}, .k_scale = ScaleKind::kTensor, .v_scale = ScaleKind::kHead});
}

TEST(FewQueriesTest, OfRowsInSeveralTiles) {
  expect_right<few<{.head_size = 24, .copy_bytes = 8}>()>({});
  expect_right<few<{.v = kE5M2, .head_size = 72, .copy_bytes = 8}>()>(
      {.queries = {7, 7}, .keys = {40, 5}, .heads = 6, .key_heads = 2, .window_right = 0});
}

TEST(FewQueriesTest, OfPagesWithScalesAndSplits) {
  expect_right<few<{.head_size = 64,
                    .layout = KeyLayout::kPaged,
                    .k_scales = true,
                    .v_scales = true,
                    .split = true}>()>(
      {.keys = {150, 33}, .k_scale = ScaleKind::kKeys, .v_scale = ScaleKind::kKeys, .splits = 3});
}

TEST(FewQueriesTest, OfPackedSequencesInAWindow) {
  expect_right<few<{.head_size = 64,
                    .layout = KeyLayout::kPacked,
                    .k_scales = true,
                    .copy_bytes = 4,
                    .split = true}>()>({.queries = {3, 0, 11},
                                        .keys = {150, 7, 60},
                                        .packed_queries = true,
                                        .window_left = 20,
                                        .window_right = 3,
                                        .k_scale = ScaleKind::kKeys,
                                        .splits = 2});
}

TEST(FewQueriesTest, OfCodesAtAnyAddress) {
  expect_right<few<{.head_size = 64, .copy_bytes = 1}>()>({.scale = -0.3f}, 3);
}

TEST(FewQueriesTest, OfValuesOfAnotherSize) {
  expect_right<few<{.head_size = 24, .value_size = 136, .copy_bytes = 8}>()>({});
  expect_right<few<{.head_size = 192, .value_size = 128, .layout = KeyLayout::kPaged}>()>(
      {.v_scale = ScaleKind::kHead});
}

TEST(FewQueriesTest, OfALatent) {
  expect_right<few<{.head_size = 72,
                    .value_size = 64,
                    .shared_latent = true,
                    .k_scales = true,
                    .v_scales = true,
                    .copy_bytes = 8}>()>(
      {.k_scale = ScaleKind::kKeys, .v_scale = ScaleKind::kKeys});
}

TEST(ManyQueriesTest, OfValuesOfAnotherSize) {
  expect_right<many<{.head_size = 24, .value_size = 40, .copy_bytes = 8}>(1, 32)>(
      {.queries = {20, 20}, .window_right = 0});
  expect_right<many<{.head_size = 96, .value_size = 64}>(2, 32, 1)>({.queries = {40, 40}});
}

TEST(ManyQueriesTest, OfALatent) {
  expect_right<many<{.head_size = 80, .value_size = 64, .shared_latent = true}>(1, 32)>(
      {.queries = {20, 20}, .k_scale = ScaleKind::kHead});
}

TEST(ManyQueriesTest, CausalOfDenseKeys) {
  expect_right<many<{.head_size = 64}>(2, 32)>({.queries = {50, 50},
                                                .keys = {70, 30},
                                                .heads = 2,
                                                .key_heads = 1,
                                                .window_right = 0,
                                                .k_scale = ScaleKind::kHead,
                                                .v_scale = ScaleKind::kTensor});
}

TEST(ManyQueriesTest, OfPagesWithScalesAndSplits) {
  expect_right<many<{.v = kE5M2,
                     .head_size = 72,
                     .layout = KeyLayout::kPaged,
                     .k_scales = true,
                     .v_scales = true,
                     .copy_bytes = 8,
                     .split = true}>(1, 64)>(test::in_pages());
}

TEST(ManyQueriesTest, OfScoresOfHalfATile) {
  constexpr ManyQueriesConfig kConfig = many<{.head_size = 72, .copy_bytes = 4}>(2, 64);
  static_assert(kConfig.score_keys() == kConfig.keys / 2);
  expect_right<kConfig>(
      {.queries = {70, 70}, .keys = {150, 70}, .heads = 1, .key_heads = 1, .window_right = 0});
}

TEST(ManyQueriesTest, OfScalesInOneBuffer) {
  expect_right<many<{.head_size = 8, .k_scales = true, .v_scales = true, .copy_bytes = 8}>(
      1, 32, 1)>({.queries = {40},
                  .keys = {300},
                  .heads = 1,
                  .key_heads = 1,
                  .k_scale = ScaleKind::kKeys,
                  .v_scale = ScaleKind::kKeys});
}

TEST(ManyQueriesTest, OfPackedSequences) {
  expect_right<many<{.k = kE5M2, .head_size = 128, .layout = KeyLayout::kPacked, .copy_bytes = 1}>(
      1, 16, 1)>({.queries = {33, 2, 0},
                  .keys = {20, 45, 9},
                  .packed_queries = true,
                  .heads = 1,
                  .key_heads = 1},
                 5);
}

template <AttentionForm kForm>
constexpr WideHeadsConfig wide(int row_tiles, int keys, int parts, int buffers = 1) {
  return {.form = kForm,
          .warps = 4,
          .row_tiles = row_tiles,
          .keys = keys,
          .parts = parts,
          .buffers = buffers};
}

TEST(WideHeadsTest, OfALatentInPages) {
  constexpr AttentionForm kForm{.head_size = 576,
                                .value_size = 512,
                                .shared_latent = true,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .split = true};
  expect_right<wide<kForm>(1, 16, 4, 2)>({.heads = 16,
                                          .key_heads = 1,
                                          .k_scale = ScaleKind::kKeys,
                                          .v_scale = ScaleKind::kKeys,
                                          .splits = 2,
                                          .scale = 0.02f});
}

TEST(WideHeadsTest, CausalOfPackedSequences) {
  expect_right<wide<{.v = kE5M2, .head_size = 264, .layout = KeyLayout::kPacked, .copy_bytes = 8}>(
      2, 64, 2, 2)>({.queries = {33, 0, 3},
                     .keys = {40, 5, 130},
                     .packed_queries = true,
                     .heads = 2,
                     .key_heads = 1,
                     .window_left = 60,
                     .window_right = 0,
                     .v_scale = ScaleKind::kHead,
                     .scale = -0.05f});
}

TEST(WideHeadsTest, OfOneBuffer) {
  expect_right<wide<{.head_size = 24, .value_size = 280, .k_scales = true, .copy_bytes = 8}>(
      2, 32, 2)>({.queries = {9, 9},
                  .keys = {150, 70},
                  .key_heads = 1,
                  .window_right = 2,
                  .k_scale = ScaleKind::kKeys});
}

TEST(WideHeadsTest, OfCodesThatAreDecodedAsTheyCome) {
  constexpr AttentionForm kForm{
      .head_size = 512, .k_scales = true, .v_scales = true, .copy_bytes = 1};
  constexpr WideHeadsConfig kConfig{
      .form = kForm, .warps = 4, .row_tiles = 1, .keys = 16, .parts = 4, .ahead = false};
  expect_right<kConfig>({.k_scale = ScaleKind::kKeys, .v_scale = ScaleKind::kKeys, .scale = 0.05f},
                        3);
}

template <bool kHasBFloat16>
void expect_bfloat16() {
  if constexpr (kHasBFloat16) {
    expect_right<few<{.q = kBFloat16, .v = kE5M2, .head_size = 64}>()>({});
    expect_right<many<{.q = kBFloat16, .head_size = 8, .copy_bytes = 8}>(1, 32)>(
        {.queries = {20, 20}});
    expect_right<many<{.q = kBFloat16, .head_size = 64}>(1, 32)>({.queries = {20, 20}});
  } else {
    GTEST_SKIP() << "bfloat16 from Ampere on";
  }
}
TEST(AttentionTest, OfBFloat16) { expect_bfloat16<ptx::kHasAmpere>(); }

// A block of zeros has the least of scales, and what was summed before it stays.
template <auto kConfig>
void expect_right_with_scales(const AttentionCase& given, const std::vector<float>& scales) {
  Attention<kConfig.form> attention(given);
  std::ranges::copy(scales, attention.v_->scales_.begin());
  attention.template run<kConfig>(attention.params(kConfig.rows()));
  attention.expect_right();
}
TEST(AttentionTest, ScalesOfValuesMayBeFarApart) {
  constexpr AttentionForm kForm{.head_size = 8, .v_scales = true, .copy_bytes = 8};
  const AttentionCase given{
      .queries = {20}, .keys = {300}, .heads = 1, .key_heads = 1, .v_scale = ScaleKind::kKeys};
  for (const std::vector<float>& scales :
       {std::vector{.01f, 1.2e-38f, .01f}, std::vector{1e-38f, 3.0f, 0.0f},
        std::vector{-100.0f, 1.2e-38f, 0.0f}}) {
    expect_right_with_scales<few<kForm>()>(given, scales);
    expect_right_with_scales<many<kForm>(2, 32)>(given, scales);
  }
}

// A large score is rounded before it is compared with itself.
template <AttentionForm kForm>
void expect_right_of_one_key(ScaleKind v_scale, int splits = 1) {
  const AttentionCase given{.keys = {1, 1}, .v_scale = v_scale, .splits = splits, .scale = 30};
  expect_right<few<kForm>()>(given);
  expect_right<many<kForm>(1, 32)>(given);
  expect_right<wide<kForm>(2, 32, 2)>(given);
}
TEST(AttentionTest, OfOneKey) {
  expect_right_of_one_key<AttentionForm{}>(ScaleKind::kHead);
  expect_right_of_one_key<{.v_scales = true, .split = true}>(ScaleKind::kKeys, 2);
  expect_right_of_one_key<{.v_scales = true, .part_keys = 128}>(ScaleKind::kKeys);
}

// The results of a query of NaN are NaN, in whichever warp and split its keys are.
template <auto kConfig>
void expect_nan(int splits) {
  const AttentionCase given{
      .queries = {3}, .keys = {200}, .heads = 1, .key_heads = 1, .splits = splits};
  Attention<kConfig.form> attention(given);
  std::fill_n(attention.q_.begin() + 8, 8, static_cast<unsigned short>(0x7E00));
  attention.template run<kConfig>(attention.params(kConfig.rows()));
  attention.expect_right();
}
TEST(AttentionTest, OfAQueryOfNan) {
  constexpr AttentionForm kWhole{.head_size = 8, .copy_bytes = 8};
  constexpr AttentionForm kSplit{.head_size = 8, .copy_bytes = 8, .split = true};
  expect_nan<few<kWhole>()>(1);
  expect_nan<few<kSplit>()>(3);
  expect_nan<many<kWhole>(1, 32)>(1);
  expect_nan<many<kSplit>(1, 32)>(2);
}

// The address sanitizer sees what is touched.
TEST(AttentionTest, OffsetsAndCountsThatLieAreHeldToWhatThereIs) {
  constexpr AttentionForm kForm{.head_size = 64, .layout = KeyLayout::kPacked};
  constexpr AttentionForm kPages{.head_size = 64, .layout = KeyLayout::kPaged};
  const AttentionCase given{.queries = {2, 3}, .keys = {20, 9}, .packed_queries = true};
  for (const std::array<int, 3>& lie :
       {std::array{-5, 1'000'000'000, 3}, std::array{9, 1, 1 << 30}, std::array{7, 7, -7}}) {
    Attention<kForm> attention(given);
    const config::AttentionParams params = attention.params(16);
    std::ranges::copy(lie, attention.query_offsets_.begin());
    std::ranges::copy_backward(lie, attention.key_offsets_.end());
    attention.run<few<kForm>()>(params);
    Attention<kPages> pages(given);
    const std::vector<int> counts{lie[0], lie[1]};
    config::AttentionParams of_pages = pages.params(16);
    of_pages.key_counts = counts.data();
    for (int& page : pages.table_) page = page * 3 + lie[2];
    pages.run<few<kPages>()>(of_pages);
  }
}

}  // namespace
}  // namespace octofold
