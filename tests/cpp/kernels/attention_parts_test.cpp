// A row of an attention has the same bits in any batch: kernels that sum keys in parts, run on the
// host.
#define __shared__ static
#include "support/attention_invariance_on_host.h"  // first: it has CUDA's types
//
#include "support/test.h"

namespace octofold {
namespace {

using config::AttentionForm;
using config::FewQueriesConfig;
using config::KeyLayout;
using config::ManyQueriesConfig;
using config::RowCount;
using config::WideHeadsConfig;
using test::Attention;
using test::AttentionCase;
using test::ScaleKind;
using enum DType;

struct ByWarps {
  template <auto kConfig>
  static constexpr auto run = [](auto& attention, const config::AttentionParams& params) {
    attention.template run<kConfig>(params);
  };
};

constexpr AttentionForm kDense{.head_size = 64, .part_keys = 64};
constexpr AttentionForm kPages{.head_size = 64,
                               .layout = KeyLayout::kPaged,
                               .k_scales = true,
                               .v_scales = true,
                               .part_keys = 64};

constexpr AttentionForm kPagesOfLongParts = [] {
  AttentionForm form = kPages;
  form.part_keys = 256;
  return form;
}();

AttentionCase causal() { return {.heads = 2, .key_heads = 1, .window_right = 0, .scale = 1}; }
AttentionCase in_a_window_of_pages() {
  return {.heads = 2,
          .key_heads = 1,
          .window_left = 22,
          .window_right = 0,
          .k_scale = ScaleKind::kKeys,
          .v_scale = ScaleKind::kKeys,
          .scale = 1};
}

TEST(AttentionPartsTest, OfFewQueries) {
  constexpr FewQueriesConfig kConfig{.form = kDense, .warps = 2, .stages = 2, .keys = 32};
  test::expect_batch_invariant<kConfig, ByWarps>(causal(), 14, 235);
}

// In which the first step is another warp's for the last query.
TEST(AttentionPartsTest, OfFewQueriesInAWindowOfPages) {
  constexpr FewQueriesConfig kConfig{
      .form = kPagesOfLongParts, .warps = 2, .stages = 1, .keys = 32};
  AttentionCase given = in_a_window_of_pages();
  given.window_left = 80;
  test::expect_batch_invariant<kConfig, ByWarps>(given, 14, 215);
}

TEST(AttentionPartsTest, OfManyQueries) {
  constexpr ManyQueriesConfig kConfig{.form = kDense, .warps = 2, .row_tiles = 1, .keys = 32};
  test::expect_batch_invariant<kConfig, ByWarps>(causal(), 30, 235);
}

TEST(AttentionPartsTest, OfManyQueriesInAWindowOfPages) {
  constexpr ManyQueriesConfig kConfig{
      .form = kPages, .warps = 2, .row_tiles = 1, .keys = 32, .buffers = 1};
  test::expect_batch_invariant<kConfig, ByWarps>(in_a_window_of_pages(), 20, 215);
}

TEST(AttentionPartsTest, OfWideHeads) {
  constexpr AttentionForm kWide{.head_size = 72,
                                .value_size = 264,
                                .layout = KeyLayout::kPaged,
                                .k_scales = true,
                                .v_scales = true,
                                .copy_bytes = 8,
                                .part_keys = 64};
  constexpr WideHeadsConfig kConfig{
      .form = kWide, .warps = 4, .row_tiles = 2, .keys = 32, .parts = 2};
  test::expect_batch_invariant<kConfig, ByWarps>(in_a_window_of_pages(), 20, 215);
}

// A part of which a row sees nothing does not reach it, whatever others see there.
template <auto kConfig>
void expect_parts_apart(int queries) {
  const auto bits_of = [&]<auto kOf>(std::vector<std::size_t> spoiled) {
    AttentionCase given = in_a_window_of_pages();
    given.packed_queries = true;
    return test::rows_of_first<kOf.form>({queries, 215, {}, {}, std::move(spoiled)}, given,
                                         kOf.rows(), ByWarps::run<kOf>);
  };
  constexpr auto kSplit = test::with_splits<kConfig>();
  const auto sound = bits_of.template operator()<kConfig>({});
  for (const auto& rows : {bits_of.template operator()<kConfig>({185, 191}),
                           bits_of.template operator()<kSplit>({185, 191})}) {
    int spoiled = 0;
    for (const auto& [place, bits] : rows) {
      if (place.first - 22 > 191) {
        EXPECT_EQ(bits.results, sound.at(place).results) << place.first;
      } else {
        spoiled += bits.results != sound.at(place).results;
      }
    }
    EXPECT_GT(spoiled, 0);
  }
}
TEST(AttentionPartsTest, NanInOtherParts) {
  expect_parts_apart<FewQueriesConfig{.form = kPages, .warps = 2, .stages = 1, .keys = 32}>(16);
  expect_parts_apart<ManyQueriesConfig{.form = kPages, .warps = 2, .row_tiles = 1, .keys = 32}>(30);
}

// Two kernels, each with the sequences that the other one leaves.
TEST(AttentionPartsTest, SequencesOfFewAndOfManyRows) {
  constexpr auto form_of = [](RowCount count) {
    AttentionForm form = kDense;
    form.row_count = count;
    return form;
  };
  constexpr FewQueriesConfig kFew{
      .form = form_of(RowCount::kFew), .warps = 2, .stages = 1, .keys = 32};
  constexpr ManyQueriesConfig kMany{
      .form = form_of(RowCount::kMany), .warps = 2, .row_tiles = 1, .keys = 32};
  AttentionCase given = causal();
  given.queries = {16, 17, 0, 40, 1};
  given.keys = {70, 100, 9, 40, 130};
  given.packed_queries = true;
  Attention<kDense> attention(given);
  const config::AttentionParams params = attention.params(kMany.rows());
  attention.run<kFew>(params, 2 * 5, [&] { few_queries_kernel<kFew>(params); });
  EXPECT_EQ(attention.out_[0] == 0x7FFF, false);
  EXPECT_EQ(attention.out_[16 * 2 * 64], 0x7FFF);
  EXPECT_EQ(attention.out_.back() == 0x7FFF, false);
  attention.run<kMany>(params);
  attention.expect_right();
}

}  // namespace
}  // namespace octofold
