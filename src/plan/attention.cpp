#include "plan/attention.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <variant>

#include "core/check.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/attention/config/workspace.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

constexpr const char* kOperation = "attention";

// Rows to a sequence and key head beyond which warps do not split the keys.
constexpr std::int64_t kMostRowsOfFew = 32;
// Fewer keys are not worth a block of their own: of few queries, of many.
constexpr std::int64_t kLeastKeysOfFew = 256, kLeastKeysOfMany = 128;
// Blocks of few queries to a multiprocessor: so many, where keys are split; splitting them costs
// more than it gains where there are that many without.
constexpr std::int64_t kBlocksWanted = 8, kBlocksEnough = 3;

// The first of `candidates` of which so many blocks fit into a multiprocessor.
template <typename Config, std::size_t kCount>
std::optional<Config> fitting(const Config (&candidates)[kCount], int blocks, const Gpu& gpu) {
  for (const Config& config : candidates) {
    // Of what a multiprocessor has, a block may take all but 1 KB, and each takes 1 KB besides.
    if (blocks * config.shared_bytes() + (blocks - 1) * 1024 <= gpu.shared_memory_per_block) {
      return config;
    }
  }
  return {};
}

template <typename Config>
Config or_unsupported(const std::optional<Config>& config, const Gpu& gpu) {
  if (config) return *config;
  core::fail(ErrorCode::kUnsupported, "{}: a block has too little shared memory: {} bytes",
             kOperation, gpu.shared_memory_per_block);
}

config::FewQueriesConfig few_queries(const config::AttentionForm& form, const Gpu& gpu) {
  using Config = config::FewQueriesConfig;
  if (gpu.compute_capability() < 80) {  // copies do not go on by themselves
    const Config candidates[] = {{form, 4, 1}, {form, 2, 1}};
    return or_unsupported(fitting(candidates, 1, gpu), gpu);
  }
  const Config candidates[] = {{form, 4, 3}, {form, 4, 2}, {form, 2, 3}, {form, 2, 2}};
  const std::optional<Config> beside_another = fitting(candidates, 2, gpu);
  return beside_another ? *beside_another : or_unsupported(fitting(candidates, 1, gpu), gpu);
}

// Of so many rows in all, and of each sequence and key head.
config::ManyQueriesConfig many_queries(const config::AttentionForm& form, std::int64_t rows,
                                       std::int64_t rows_of_sequence, const Gpu& gpu) {
  using Config = config::ManyQueriesConfig;
  // Keys that more rows share are decoded less often, if these fill tiles of all multiprocessors,
  // and if registers hold what a warp sums.
  const Config large[] = {{form, 8, 2, 64, 2}, {form, 8, 2, 32, 2}};
  const std::int64_t tile = large[0].rows();
  if (form.head_size <= 128 && gpu.compute_capability() >= 80 && rows_of_sequence >= tile &&
      rows >= 2 * tile * gpu.multiprocessors) {
    if (const std::optional<Config> config = fitting(large, 1, gpu)) return *config;
  }
  const Config candidates[] = {{form, 8, 1, 64, 2}, {form, 8, 1, 32, 2}, {form, 8, 1, 32, 1},
                               {form, 4, 1, 32, 2}, {form, 4, 1, 32, 1}, {form, 4, 1, 16, 1}};
  return or_unsupported(fitting(candidates, 1, gpu), gpu);
}

// The same for a GPU with products of warpgroups. A third of them leaves each thread fewer
// registers, which hold sums of 128 numbers and scores of 64 keys (or 64 and 96, but for scales of
// keys), and has codes decoded less often. Shared memory is what stages are for.
config::WarpgroupQueriesConfig warpgroup_queries(const config::AttentionForm& form) {
  if (form.head_size <= 64) return {form, 3, form.k_scales || form.v_scales ? 64 : 96, 8};
  if (form.head_size <= 128) return {form, 3, 64, 8};
  return {form, 2, 64, form.head_size <= 192 ? 6 : 4};
}

using Config = std::variant<config::FewQueriesConfig, config::ManyQueriesConfig,
                            config::WarpgroupQueriesConfig>;

Config config_of(const config::AttentionForm& form, std::int64_t rows,
                 std::int64_t rows_of_sequence, const Gpu& gpu) {
  if (rows_of_sequence <= kMostRowsOfFew) return few_queries(form, gpu);
  // PTX that is translated for a later GPU has no products of warpgroups.
  if (product_kernels(gpu) == ProductKernels::kSm90 && !gpu.is_translated) {
    return warpgroup_queries(form);
  }
  return many_queries(form, rows, rows_of_sequence, gpu);
}

}  // namespace

AttentionPlan plan_attention(const AttentionProblem& problem, const Gpu& gpu) {
  require_kernels(Operation::kAttention, kOperation, problem.form.q, gpu);
  AttentionPlan plan;
  const std::int64_t rows = problem.all_queries() * problem.heads;
  if (rows == 0 || problem.batch == 0) return plan;
  const std::int64_t group = problem.heads / problem.key_heads;
  const std::int64_t rows_of_sequence =
      group * (problem.has_query_offsets ? config::ceil_divide(problem.queries, problem.batch)
                                         : problem.queries);
  const Config chosen = config_of(problem.form, rows, rows_of_sequence, gpu);
  const bool few = std::holds_alternative<config::FewQueriesConfig>(chosen);
  const std::int64_t rows_of_tile =
      std::visit([](const auto& config) -> std::int64_t { return config.rows(); }, chosen);
  plan.config.row_tiles = problem.has_query_offsets
                              ? problem.queries * group / rows_of_tile + problem.batch
                              : config::ceil_divide(problem.queries * group, rows_of_tile);

  const std::int64_t unsplit =
      plan.config.row_tiles * problem.key_heads * (problem.has_query_offsets ? 1 : problem.batch);
  const std::int64_t most = std::min<std::int64_t>(
      config::attention_splits(rows),
      config::ceil_divide(problem.keys, few ? kLeastKeysOfFew : kLeastKeysOfMany));
  const bool enough = few && unsplit >= kBlocksEnough * gpu.multiprocessors;
  const std::int64_t wanted = enough ? 1 : (few ? kBlocksWanted : 1) * gpu.multiprocessors;
  plan.config.splits = std::clamp<std::int64_t>(config::ceil_divide(wanted, unsplit), 1,
                                                std::max<std::int64_t>(most, 1));
  const bool split = plan.config.splits > 1;
  const std::int64_t blocks = unsplit * plan.config.splits;
  const auto add = [&](auto config) {
    config.form.split = split;
    plan.kernels.push_back(kernel_plan(kOperation, config.kHeader, config.kKernel, config, blocks));
    plan.kernels.back().shared_bytes = config.shared_bytes();
    plan.kernels.back().as_many_as_run = config.stays();
  };
  std::visit(add, chosen);
  if (split) {
    const config::CombineSplitsConfig combine{.q = problem.form.q,
                                              .head_size = problem.form.head_size};
    plan.kernels.push_back(kernel_plan(kOperation, combine.kHeader, combine.kKernel, combine,
                                       config::ceil_divide(rows, combine.warps)));
  }
  return plan;
}

}  // namespace octofold::plan
