// Checks that rows of an attention have the same bits in any batch, by kernels run on the host.
#pragma once

#include "support/attention_on_host.h"  // first: it has CUDA's types
//
#include "support/test.h"

namespace octofold::test {

// The first sequence of a batch, whose keys and values are those of the same number in any other.
struct FirstSequence {
  int queries = 1;  // the last of which is at the last key
  int keys = 1;
  std::vector<int> other_queries{}, other_keys{};  // of the sequences behind it
  std::vector<std::size_t> spoiled{};              // keys of it whose numbers are NaN
};

// The bits of a row that kernels compute at a place of a sequence: its results and the logarithm;
// and where parts have blocks, what they leave in FP32, which shows what results round away.
struct RowBits {
  std::vector<unsigned> results, parts;
};
using RowsAtPlaces = std::map<std::pair<int, int>, RowBits>;  // by place and head

// `run(attention, params)` runs a kernel whose blocks have so many rows. `given` has what does not
// differ: heads, windows, scales.
template <AttentionForm kForm, typename Run>
RowsAtPlaces rows_of_first(const FirstSequence& sequence, AttentionCase given, int tile_rows,
                           Run&& run) {
  given.queries = sequence.other_queries;
  given.queries.insert(given.queries.begin(), sequence.queries);
  given.keys = sequence.other_keys;
  given.keys.insert(given.keys.begin(), sequence.keys);
  if (kForm.split) {
    const int most = *std::ranges::max_element(given.keys);
    given.splits = config::ceil_divide(most, kForm.part_keys);
  }
  Attention<kForm> attention(given);
  for (const std::size_t key : sequence.spoiled) {
    attention.k_->spoil(0, key);
    attention.v_->spoil(0, key);
  }
  const int first_place = sequence.keys - sequence.queries;
  for (int query = 0; query < sequence.queries; ++query) {
    for (int i = 0; i < given.heads * kForm.head_size; ++i) {
      const int number = (first_place + query) * 131 + i * 37;
      attention.q_[as_size(query * given.heads * kForm.head_size + i)] =
          static_cast<unsigned short>(encode<kForm.q>(static_cast<float>(number % 97) / 48 - 1));
    }
  }
  if (kForm.layout == KeyLayout::kPaged && kForm.v_scales) {
    // The scales of a page are a matter of its place in the sequence. A few are far larger than
    // those of the rows that end before them, in the same tile.
    for (int page = 0; page << given.page_shift < sequence.keys; ++page) {
      for (int head = 0; head < given.key_heads; ++head) {
        const int at = attention.table_[as_size(page)] * given.key_heads + head;
        attention.v_->scales_[as_size(at)] = page == 9 || page == 13 || page == 19 ? 8.0f : 0.002f;
        attention.k_->scales_[as_size(at)] = 0.75f + static_cast<float>(page % 3);
      }
    }
  }
  const config::AttentionParams params = attention.params(tile_rows);
  run(attention, params);
  if (sequence.spoiled.empty()) attention.expect_right();
  RowsAtPlaces rows;
  for (int query = 0; query < sequence.queries; ++query) {
    for (int head = 0; head < given.heads; ++head) {
      const int row = query * given.heads + head;
      const auto first = attention.out_.begin() + row * kForm.value_size;
      RowBits& bits = rows[{first_place + query, head}];
      bits.results.assign(first, first + kForm.value_size);
      bits.results.push_back(std::bit_cast<unsigned>(attention.log_sum_exp_[as_size(row)]));
      for (int part = 0; kForm.split && part < given.splits; ++part) {
        const int at = row * given.splits + part;
        const int places = attention.query_offsets_.back() * given.heads * given.splits;
        const float* const states = params.partials + as_size(places) * kForm.value_size;
        if (states[2 * at + 1] == 0) continue;  // it has seen nothing
        bits.parts.push_back(static_cast<unsigned>(part));
        const auto add = [&](float number) {
          bits.parts.push_back(std::bit_cast<unsigned>(number));
        };
        std::for_each_n(states + 2 * at, 2, add);
        std::for_each_n(params.partials + at * kForm.value_size, kForm.value_size, add);
      }
    }
  }
  return rows;
}

// Rows at places of `expected` have the same bits in `actual`, which has at least one of them.
inline void expect_same_rows(const RowsAtPlaces& actual, const RowsAtPlaces& expected,
                             const char* what) {
  int compared = 0;
  for (const auto& [place, bits] : actual) {
    const auto found = expected.find(place);
    if (found == expected.end()) continue;
    ++compared;
    const RowBits& wanted = found->second;
    ASSERT_EQ(bits.results, wanted.results) << what << ": place " << place.first;
    if (bits.parts.empty() || wanted.parts.empty()) continue;
    ASSERT_EQ(bits.parts, wanted.parts) << what << ": parts of place " << place.first;
  }
  EXPECT_GT(compared, 0) << what;
}

template <auto kConfig>
constexpr auto with_splits() {
  auto config = kConfig;
  config.form.split = true;
  return config;
}

// Checks a kernel with parts: `Run::run<config>(attention, params)`. Sequences as long as those
// that their queries see are as good as longer ones; so is company, and blocks that share the keys.
template <auto kConfig, typename Run>
void expect_batch_invariant(AttentionCase given, int queries, int keys) {
  constexpr auto kSplit = with_splits<kConfig>();
  const auto whole = [&](const FirstSequence& sequence) {
    return rows_of_first<kConfig.form>(sequence, given, kConfig.rows(), Run::template run<kConfig>);
  };
  const auto split = [&](const FirstSequence& sequence) {
    return rows_of_first<kSplit.form>(sequence, given, kSplit.rows(), Run::template run<kSplit>);
  };
  given.packed_queries = true;
  const RowsAtPlaces all = split({queries, keys});
  expect_same_rows(whole({queries, keys}), all, "by one block");
  expect_same_rows(split({1, keys - queries + 1}), all, "the first query alone, split");
  expect_same_rows(split({1, keys}), all, "the last query alone, split");
  expect_same_rows(whole({1, keys - queries + 1}), all, "the first query alone");
  expect_same_rows(split({2, keys - 3}), all, "two queries, split");
  const FirstSequence among_others{queries - 5, keys - 2, {2, queries + 7}, {keys / 2, keys + 99}};
  expect_same_rows(whole(among_others), all, "among others");
  expect_same_rows(split(among_others), all, "among others, split");
  given.packed_queries = false;
  expect_same_rows(whole({queries, keys, {queries}, {keys / 3}}), all, "dense queries");
}

}  // namespace octofold::test
