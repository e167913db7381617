// From an attention to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "kernels/attention/config/attention.h"
#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/attention/config/wide_heads.h"
#include "plan/fields.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

struct AttentionProblem {
  config::AttentionForm form{};  ///< but for `split` and what is behind it
  bool allows_fp8_scores = false;
  std::int64_t batch = 1;
  std::int64_t queries = 1;  ///< of each sequence, or of all
  bool has_query_offsets = false;
  std::int64_t keys = 1;  ///< of a sequence at most, or near it; of all with packed keys
  std::int64_t heads = 1;
  std::int64_t key_heads = 1;
  bool batch_invariant = false;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("form", form);
    field("allows_fp8_scores", allows_fp8_scores);
    field("batch", batch);
    field("queries", queries);
    field("has_query_offsets", has_query_offsets);
    field("keys", keys);
    field("heads", heads);
    field("key_heads", key_heads);
    field("batch_invariant", batch_invariant);
  }
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;

  std::int64_t all_queries() const { return has_query_offsets ? queries : batch * queries; }
  /// Rows to a sequence and key head: of all sequences the mean, where offsets divide queries.
  std::int64_t rows_of_sequence() const {
    return (has_query_offsets ? config::ceil_divide(queries, batch) : queries) *
           (heads / key_heads);
  }
  /// True if warps do not split the keys.
  bool has_many_rows() const { return rows_of_sequence() > config::kMostRowsOfFew; }
  /// True if a warp does not hold queries and sums of a row.
  bool has_wide_heads() const {
    constexpr int kMostOfWarp = 256;
    return form.head_size > kMostOfWarp || form.value_size > kMostOfWarp;
  }
};

/// How the blocks of threads divide the work: the kernels' parameters say it again.
struct AttentionWork {
  std::int64_t row_tiles = 0;  ///< of each sequence and key head, or with offsets of all sequences
  std::int64_t splits = 1;     ///< of the keys; with batch_invariant their parts, or 1
};

using AttentionPlan = Plan<AttentionWork>;

/// In how many splits of the keys few queries are attended to soonest, and in what time.
struct FewQueriesSplits {
  std::int64_t count;
  double microseconds;  ///< as reckoned, but for what all shapes take
};
FewQueriesSplits splits_of(const config::FewQueriesConfig& config, const AttentionProblem& problem,
                           const Gpu& gpu);

/// The configuration of the kernel of any of the architectures.
using AttentionConfig =
    std::variant<config::FewQueriesConfig, config::ManyQueriesConfig, config::WideHeadsConfig,
                 config::WarpgroupQueriesConfig, config::WarpgroupLatentConfig>;
using AttentionPlanner = Planner<AttentionProblem, AttentionConfig>;

/// The first of `candidates` of which so many blocks fit into a multiprocessor.
template <typename Config, std::size_t kCount>
std::optional<Config> first_that_fits(const Config (&candidates)[kCount], int blocks,
                                      const Gpu& gpu) {
  for (const Config& config : candidates) {
    // A block may take all but 1 KB of a multiprocessor's shared memory; each takes 1 KB besides.
    if (config.invalid_reason() == nullptr &&
        blocks * config.shared_bytes() + (blocks - 1) * 1024 <= gpu.shared_memory_per_block) {
      return config;
    }
  }
  return {};
}

/// A kernel for few or for many queries to a key head, and one that combines where keys are split.
/// None where there are no queries. Throws Error(kUnsupported) for a GPU without kernels.
///
/// With batch_invariant what is done for a row does not depend on batch and queries, but for one
/// border: whether its sequence has more than kMostRowsOfFew rows to a key head. Where only the GPU
/// knows that, by query_offsets, there are kernels for both sides of it, the second of which
/// `row_tiles` is of.
AttentionPlan plan_attention(const AttentionProblem& problem, const Gpu& gpu);

}  // namespace octofold::plan
