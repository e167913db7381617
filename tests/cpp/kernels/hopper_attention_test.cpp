// Attention by products of warpgroups, kernels and all, run on the host beside sums in FP64; and
// where keys are summed in parts, a row has the same bits in any batch.
#define __shared__ static
#include "support/attention_invariance_on_host.h"  // first: it has CUDA's types
//
#include "kernels/attention/warpgroup_latent.h"
#include "kernels/attention/warpgroup_queries.h"
#include "support/test.h"

namespace octofold {
namespace {

using config::AttentionForm;
using config::KeyLayout;
using config::WarpgroupLatentConfig;
using config::WarpgroupQueriesConfig;
using test::Attention;
using test::AttentionCase;
using test::ScaleKind;
using enum DType;

// By so many blocks, or one for each piece.
template <auto kConfig>
void run(Attention<kConfig.form>& attention, const config::AttentionParams& params,
         std::int64_t blocks = 0) {
  attention.template run<kConfig>(params, blocks > 0 ? blocks : attention.pieces(params), [&] {
    if constexpr (kConfig.form.shared_latent) {
      warpgroup_latent_kernel<kConfig>(params);
    } else {
      warpgroup_queries_kernel<kConfig>(params);
    }
  });
}

template <auto kConfig>
void expect_right(const AttentionCase& given, std::int64_t blocks = 0, int offset = 0) {
  Attention<kConfig.form> attention(given, offset);
  run<kConfig>(attention, attention.params(kConfig.rows()), blocks);
  attention.expect_right();
}

TEST(HopperAttentionTest, CausalByBlocksThatStay) {
  expect_right<WarpgroupQueriesConfig{
      .form = {.head_size = 64}, .warpgroups = 2, .keys = 32, .stages = 4}>(
      {.queries = {150, 150}, .keys = {200, 150}, .heads = 2, .key_heads = 1, .window_right = 0},
      3);
}

TEST(HopperAttentionTest, OfBFloat16QueriesAndNarrowKeys) {
  expect_right<WarpgroupQueriesConfig{
      .form = {.q = kBFloat16, .k = kE5M2, .head_size = 72, .copy_bytes = 8},
      .keys = 48,
      .stages = 4}>({.queries = {70, 70}, .keys = {130, 30}, .heads = 2, .key_heads = 2}, 2);
}

TEST(HopperAttentionTest, OfPagesWithScalesAndSplits) {
  expect_right<WarpgroupQueriesConfig{.form = {.v = kE5M2,
                                               .head_size = 128,
                                               .layout = KeyLayout::kPaged,
                                               .k_scales = true,
                                               .v_scales = true,
                                               .split = true},
                                      .warpgroups = 2,
                                      .keys = 64,
                                      .stages = 4}>(test::in_pages());
}

TEST(HopperAttentionTest, OfOneKey) {
  const AttentionCase given{.keys = {1, 1}, .v_scale = ScaleKind::kKeys, .scale = 30};
  expect_right<WarpgroupQueriesConfig{.form = {.v_scales = true}, .keys = 32, .stages = 4}>(given);
  expect_right<WarpgroupLatentConfig{
      .form = {.head_size = 576, .value_size = 512, .shared_latent = true, .v_scales = true}}>(
      given);
}

TEST(HopperAttentionTest, OfPackedSequencesOfWideHeads) {
  expect_right<WarpgroupQueriesConfig{
      .form = {.head_size = 256, .layout = KeyLayout::kPacked, .copy_bytes = 4},
      .warpgroups = 2,
      .keys = 48,
      .stages = 4}>({.queries = {33, 0, 3},
                     .keys = {40, 5, 130},
                     .packed_queries = true,
                     .heads = 2,
                     .key_heads = 1,
                     .window_right = 0,
                     .v_scale = ScaleKind::kHead,
                     .scale = -0.05f},
                    1);
}

// Sums of fewer numbers than keys have, and of more; products of the next keys beside them.
TEST(HopperAttentionTest, OfValuesOfAnotherSize) {
  AttentionCase causal = test::in_pages();
  causal.window_left = -1, causal.window_right = 0, causal.scale = 0.07f;
  expect_right<WarpgroupQueriesConfig{.form = {.head_size = 192,
                                               .value_size = 128,
                                               .layout = KeyLayout::kPaged,
                                               .k_scales = true,
                                               .v_scales = true,
                                               .split = true},
                                      .keys = 48,
                                      .stages = 4}>(causal);
  expect_right<WarpgroupQueriesConfig{
      .form = {.head_size = 96, .value_size = 64}, .keys = 96, .stages = 4}>(
      {.queries = {70, 70}, .keys = {200, 30}, .heads = 2, .key_heads = 2}, 2);
  expect_right<WarpgroupQueriesConfig{
      .form = {.q = kBFloat16, .head_size = 64, .value_size = 128, .layout = KeyLayout::kPacked},
      .keys = 64,
      .stages = 4,
      .fp8_scores = true}>({.queries = {150, 0, 70},
                            .keys = {150, 20, 200},
                            .packed_queries = true,
                            .heads = 2,
                            .key_heads = 1,
                            .window_right = 0,
                            .k_scale = ScaleKind::kHead,
                            .fp8_scores = true},
                           3);
}

// Heads of whole panels and of less than one, whose codes zeros fill up; a factor below 0.
TEST(HopperAttentionTest, OfFp8Scores) {
  AttentionCase of_codes = test::in_pages();
  of_codes.fp8_scores = true;
  expect_right<WarpgroupQueriesConfig{
      .form = {.head_size = 128}, .warpgroups = 2, .keys = 64, .stages = 4, .fp8_scores = true}>(
      {.queries = {150, 150},
       .keys = {200, 150},
       .heads = 2,
       .key_heads = 1,
       .window_right = 0,
       .k_scale = ScaleKind::kHead,
       .fp8_scores = true},
      3);
  expect_right<WarpgroupQueriesConfig{
      .form = {.q = kBFloat16, .k = kE5M2, .head_size = 40, .copy_bytes = 8},
      .keys = 48,
      .stages = 4,
      .fp8_scores = true}>({.queries = {70, 70},
                            .keys = {130, 30},
                            .heads = 2,
                            .key_heads = 2,
                            .scale = -0.05f,
                            .fp8_scores = true},
                           2);
  expect_right<WarpgroupQueriesConfig{.form = {.q = kBFloat16,
                                               .head_size = 72,
                                               .layout = KeyLayout::kPaged,
                                               .k_scales = true,
                                               .v_scales = true,
                                               .copy_bytes = 8,
                                               .split = true},
                                      .warpgroups = 2,
                                      .keys = 96,
                                      .stages = 4,
                                      .fp8_scores = true}>(of_codes);
}

TEST(HopperAttentionTest, OfALatentInPages) {
  expect_right<WarpgroupLatentConfig{.form = {.head_size = 576,
                                              .value_size = 512,
                                              .shared_latent = true,
                                              .layout = KeyLayout::kPaged,
                                              .k_scales = true,
                                              .v_scales = true,
                                              .split = true}}>({.queries = {2, 2},
                                                                .keys = {200, 70},
                                                                .heads = 16,
                                                                .key_heads = 1,
                                                                .k_scale = ScaleKind::kKeys,
                                                                .v_scale = ScaleKind::kKeys,
                                                                .splits = 2,
                                                                .scale = 0.02f},
                                                               2);
}

// ---- What comes into shared memory.

TEST(HopperAttentionTest, OfThreePanels) {
  expect_right<WarpgroupQueriesConfig{
      .form = {.v = kE5M2, .head_size = 136, .copy_bytes = 4}, .warpgroups = 2, .keys = 32}>(
      {.queries = {2}, .keys = {80}, .heads = 2, .key_heads = 2});
}

TEST(HopperAttentionTest, OfCodesAtAnyAddress) {
  expect_right<WarpgroupQueriesConfig{.form = {.head_size = 24, .copy_bytes = 1}, .keys = 32}>(
      {}, 0, 3);
  expect_right<WarpgroupQueriesConfig{.form = {.head_size = 128, .value_size = 24, .copy_bytes = 4},
                                      .keys = 32}>({}, 0, 4);
}

// Threads share panels of keys and of values in other ways where one of the two has pairs of them.
TEST(HopperAttentionTest, OfPanelsInPairs) {
  expect_right<WarpgroupQueriesConfig{.form = {.head_size = 64,
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
  expect_right<WarpgroupQueriesConfig{.form = {.head_size = 96, .value_size = 256},
                                      .warpgroups = 2,
                                      .keys = 48,
                                      .fp8_scores = true}>(
      {.queries = {3, 3}, .keys = {130, 9}, .fp8_scores = true});
}

// Rows of zeros, of tiny numbers and with NaN, among queries that are `times` as large as usual.
template <auto kConfig>
void expect_right_of_odd_queries(float times) {
  constexpr AttentionForm kForm = kConfig.form;
  Attention<kForm> attention({.queries = {70},
                              .keys = {70},
                              .heads = 2,
                              .key_heads = 1,
                              .scale = 0.2f / times,
                              .fp8_scores = kConfig.fp8_scores});
  for (unsigned short& number : attention.q_) {
    number =
        static_cast<unsigned short>(test::encode<kForm.q>(test::decode<kForm.q>(number) * times));
  }
  const auto row = [&](int number) { return attention.q_.begin() + number * kForm.head_size; };
  std::fill_n(row(67), kForm.head_size, 0x8000);
  std::fill_n(row(68), kForm.head_size, 1);
  row(69)[2] = 0x7FFF;
  run<kConfig>(attention, attention.params(kConfig.rows()));
  attention.expect_right();
}

// Numbers of BF16 that FP16 does not hold are divided by a power of two.
TEST(HopperAttentionTest, OfOddQueries) {
  expect_right_of_odd_queries<WarpgroupQueriesConfig{
      .form = {.head_size = 72, .copy_bytes = 8}, .warpgroups = 2, .keys = 16}>(1);
  expect_right_of_odd_queries<WarpgroupQueriesConfig{
      .form = {.q = kBFloat16, .head_size = 200, .copy_bytes = 8}, .warpgroups = 2, .keys = 16}>(
      0x1p20f);
  expect_right_of_odd_queries<WarpgroupQueriesConfig{
      .form = {.head_size = 128}, .warpgroups = 2, .keys = 16, .fp8_scores = true}>(1);
  expect_right_of_odd_queries<WarpgroupQueriesConfig{
      .form = {.q = kBFloat16, .head_size = 8, .copy_bytes = 8},
      .warpgroups = 2,
      .keys = 16,
      .fp8_scores = true}>(0x1p20f);
}

// ---- Keys in parts, by two blocks, which stay.

struct ByWarpgroups {
  template <auto kConfig>
  static constexpr auto run = [](auto& attention, const config::AttentionParams& params) {
    octofold::run<kConfig>(attention, params, 2);
  };
};

TEST(HopperAttentionPartsTest, CausalOfDenseKeys) {
  constexpr AttentionForm kForm{.q = kBFloat16, .head_size = 64, .part_keys = 96};
  test::expect_batch_invariant<WarpgroupQueriesConfig{
                                   .form = kForm, .warpgroups = 2, .keys = 48, .stages = 4},
                               ByWarpgroups>({.heads = 2, .key_heads = 1, .window_right = 0}, 80,
                                             215);
}

TEST(HopperAttentionPartsTest, OfFp8ScoresInAWindowOfPages) {
  constexpr AttentionForm kForm{.head_size = 64,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .part_keys = 64};
  test::expect_batch_invariant<
      WarpgroupQueriesConfig{
          .form = kForm, .warpgroups = 2, .keys = 32, .stages = 4, .fp8_scores = true},
      ByWarpgroups>({.heads = 2,
                     .key_heads = 1,
                     .window_left = 40,
                     .window_right = 0,
                     .k_scale = ScaleKind::kKeys,
                     .v_scale = ScaleKind::kKeys,
                     .fp8_scores = true},
                    80, 215);
}

TEST(HopperAttentionPartsTest, OfALatentInPages) {
  constexpr AttentionForm kForm{.head_size = 192,
                                .value_size = 128,
                                .shared_latent = true,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .part_keys = 128};
  test::expect_batch_invariant<WarpgroupLatentConfig{.form = kForm}, ByWarpgroups>(
      {.heads = 4,
       .key_heads = 1,
       .window_left = 70,
       .window_right = 0,
       .k_scale = ScaleKind::kKeys,
       .v_scale = ScaleKind::kKeys,
       .scale = 0.05f},
      20, 315);
}

}  // namespace
}  // namespace octofold
