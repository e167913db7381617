// Attention by products of warpgroups, kernels and all, run on the host beside sums in FP64.
#define __shared__ static
#include "support/attention_run_on_host.h"  // first: it has CUDA's types
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
void expect_right(const AttentionCase& given, std::int64_t blocks = 0, int offset = 0) {
  Attention<kConfig.form> attention(given, offset);
  const config::AttentionParams params = attention.params(kConfig.rows());
  attention.template run<kConfig>(params, blocks > 0 ? blocks : attention.pieces(params), [&] {
    if constexpr (kConfig.form.shared_latent) {
      warpgroup_latent_kernel<kConfig>(params);
    } else {
      warpgroup_queries_kernel<kConfig>(params);
    }
  });
  attention.expect_right();
}

// Two sequences in pages, with scales of keys that blocks share.
AttentionCase in_pages() {
  return {.queries = {20, 40},
          .keys = {300, 40},
          .packed_queries = true,
          .heads = 2,
          .key_heads = 1,
          .window_left = 150,
          .window_right = 2,
          .k_scale = ScaleKind::kKeys,
          .v_scale = ScaleKind::kKeys,
          .splits = 2};
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
                                      .stages = 4}>(in_pages());
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
  AttentionCase causal = in_pages();
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
  AttentionCase of_codes = in_pages();
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

}  // namespace
}  // namespace octofold
