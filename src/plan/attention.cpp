#include "plan/attention.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/check.h"
#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/attention/config/wide_heads.h"
#include "kernels/attention/config/workspace.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

constexpr const char* kOperation = "attention";

// Numbers of a row beyond which a warp does not hold queries and sums of it.
constexpr int kMostOfWarp = 256;
// Fewer keys are not worth a block of their own: of few queries, of many.
constexpr std::int64_t kLeastKeysOfFew = 256, kLeastKeysOfMany = 128;

// The rows of a sequence and key head.
std::int64_t rows_of_sequence(const AttentionProblem& problem) {
  const std::int64_t queries = problem.has_query_offsets
                                   ? config::ceil_divide(problem.queries, problem.batch)
                                   : problem.queries;
  return queries * (problem.heads / problem.key_heads);
}

// The first of `candidates` of which so many blocks fit into a multiprocessor.
template <typename Config, std::size_t kCount>
std::optional<Config> fitting(const Config (&candidates)[kCount], int blocks, const Gpu& gpu) {
  for (const Config& config : candidates) {
    // A block may take all but 1 KB of a multiprocessor's shared memory; each takes 1 KB besides.
    if (config.invalid_reason() == nullptr &&
        blocks * config.shared_bytes() + (blocks - 1) * 1024 <= gpu.shared_memory_per_block) {
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
  // One block to a multiprocessor, with 128 KB on their way, reads faster than several.
  const int size = std::max(form.head_size, form.value_size);
  const Config large[] = {{form, 8, size <= 64 ? 4 : 2, size <= 128 ? 32 : 16}};
  if (const std::optional<Config> config = fitting(large, 1, gpu)) return *config;
  const Config candidates[] = {{form, 4, 3}, {form, 4, 2}, {form, 2, 3}, {form, 2, 2}};
  const std::optional<Config> beside_another = fitting(candidates, 2, gpu);
  return beside_another ? *beside_another : or_unsupported(fitting(candidates, 1, gpu), gpu);
}

// The configuration for so many rows in all, and for those of each sequence and key head.
config::ManyQueriesConfig many_queries(const config::AttentionForm& form, std::int64_t rows,
                                       std::int64_t rows_of_sequence, const Gpu& gpu) {
  using Config = config::ManyQueriesConfig;
  // Keys that more rows share are decoded less often, if these fill tiles of all multiprocessors,
  // and if registers hold what a warp sums.
  const Config large[] = {{form, 8, 2, 64, 2}, {form, 8, 2, 32, 2}};
  const std::int64_t tile = large[0].rows();
  if (form.value_size <= 128 && form.head_size <= 192 && gpu.compute_capability() >= 80 &&
      rows_of_sequence >= tile && rows >= 2 * tile * gpu.multiprocessors) {
    if (const std::optional<Config> config = fitting(large, 1, gpu)) return *config;
  }
  const Config candidates[] = {{form, 8, 1, 64, 2}, {form, 8, 1, 32, 2}, {form, 8, 1, 32, 1},
                               {form, 4, 1, 32, 2}, {form, 4, 1, 32, 1}, {form, 4, 1, 16, 1}};
  return or_unsupported(fitting(candidates, 1, gpu), gpu);
}

// The same for a GPU with products of warpgroups. A third of them leaves each thread fewer
// registers, which hold sums of 128 numbers and scores of 64 keys (or 64 and 96), and has codes
// decoded less often. Scales take registers too, of consumers and producers; so do pages, and codes
// of wide heads, of producers. Shared memory is what stages are for. FP8 scores are of heads that
// are one chain of products.
config::WarpgroupQueriesConfig warpgroup_queries(const config::AttentionForm& form,
                                                 bool allows_fp8_scores, const Gpu& gpu) {
  using Config = config::WarpgroupQueriesConfig;
  const bool scales = form.k_scales || form.v_scales;
  const bool paged = form.layout == config::KeyLayout::kPaged;
  // Registers hold the places of added parts besides scales, and units of rows beside factors of
  // FP8 queries.
  const bool has_room =
      !(form.adds_parts() && scales) && !(form.part_keys > 0 && form.v_scales && allows_fp8_scores);
  const int warpgroups = form.value_size <= 128 && has_room ? 3 : 2;
  int keys = 64;
  if (form.value_size <= 64) {
    if (!scales && form.head_size <= 192) keys = 96;
  } else if (form.value_size <= 128) {
    if (scales) keys = 48;
  } else if (form.value_size > 192) {
    if (scales || paged) keys = 48;
  }
  const bool fp8_scores = allows_fp8_scores && form.head_size <= Config::kMostOfChain;
  const Config candidates[] = {{form, warpgroups, keys, keys < 64 ? 10 : 8, fp8_scores},
                               {form, warpgroups, keys, 8, fp8_scores},
                               {form, warpgroups, keys, 6, fp8_scores},
                               {form, warpgroups, keys, 4, fp8_scores}};
  return or_unsupported(fitting(candidates, 1, gpu), gpu);
}

// PTX that is translated for a later GPU has no products of warpgroups.
bool has_warpgroups(const Gpu& gpu) {
  return product_kernels(gpu) == ProductKernels::kSm90 && !gpu.is_translated;
}

// For so many rows of each sequence and key head. Beyond 32 rows a block has 64, as long as it
// fits.
config::WideHeadsConfig wide_heads(const config::AttentionForm& form, std::int64_t rows,
                                   const Gpu& gpu) {
  using Config = config::WideHeadsConfig;
  if (rows > 32) {
    const Config candidates[] = {{form, 8, 4, 32, 4, 2}, {form, 8, 4, 32, 2}};
    if (const std::optional<Config> config = fitting(candidates, 1, gpu)) return *config;
  }
  if (rows > 16) {
    const Config candidates[] = {{form, 8, 2, 32, 4}, {form, 4, 2, 16, 4}};
    if (const std::optional<Config> config = fitting(candidates, 1, gpu)) return *config;
  }
  const Config candidates[] = {{form, 8, 1, 32, 4}, {form, 4, 1, 16, 4}};
  if (const std::optional<Config> config = fitting(candidates, 2, gpu)) return *config;
  const Config alone[] = {{form, 8, 1, 32, 4}, {form, 4, 1, 16, 4}, {form, 4, 1, 16, 4, 1, false}};
  return or_unsupported(fitting(alone, 1, gpu), gpu);
}

using Config = std::variant<config::FewQueriesConfig, config::ManyQueriesConfig,
                            config::WarpgroupQueriesConfig, config::WideHeadsConfig,
                            config::WarpgroupLatentConfig>;

Config config_of(const AttentionProblem& problem, const Gpu& gpu) {
  const config::AttentionForm& form = problem.form;
  const std::int64_t rows = rows_of_sequence(problem);
  const bool few = rows <= config::kMostRowsOfFew;
  if (std::max(form.head_size, form.value_size) > kMostOfWarp) {
    const config::WarpgroupLatentConfig latent[] = {{form}};
    if (!few && has_warpgroups(gpu) && fitting(latent, 1, gpu)) return latent[0];
    return wide_heads(form, rows, gpu);
  }
  if (few) return few_queries(form, gpu);
  if (has_warpgroups(gpu)) return warpgroup_queries(form, problem.allows_fp8_scores, gpu);
  return many_queries(form, problem.all_queries() * problem.heads, rows, gpu);
}

// Tiles of rows: of all sequences with offsets, which may begin anywhere, else of each.
std::int64_t row_tiles_of(const AttentionProblem& problem, std::int64_t rows_of_tile) {
  const std::int64_t rows = problem.queries * (problem.heads / problem.key_heads);
  return problem.has_query_offsets ? rows / rows_of_tile + problem.batch
                                   : config::ceil_divide(rows, rows_of_tile);
}

std::int64_t unsplit_blocks(const AttentionProblem& problem, std::int64_t row_tiles) {
  return row_tiles * problem.key_heads * (problem.has_query_offsets ? 1 : problem.batch);
}

// The splits with which blocks that run `resident` at a time are done first, each of which takes
// what some keys more would besides its own.
std::int64_t splits_in_waves(std::int64_t blocks, std::int64_t keys, std::int64_t most,
                             std::int64_t resident) {
  constexpr std::int64_t kKeysOfStart = 256;
  const auto time_of = [&](std::int64_t splits) {
    return config::ceil_divide(blocks * splits, resident) *
           (config::ceil_divide(keys, splits) + kKeysOfStart);
  };
  std::int64_t best = 1;
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    if (time_of(splits) < time_of(best)) best = splits;
  }
  return best;
}

// At most `most`.
template <typename Config>
std::int64_t splits_of(const Config& config, const AttentionProblem& problem, std::int64_t blocks,
                       std::int64_t most, const Gpu& gpu) {
  if constexpr (std::is_same_v<Config, config::ManyQueriesConfig> ||
                std::is_same_v<Config, config::WarpgroupQueriesConfig>) {
    return std::min(config::ceil_divide<std::int64_t>(gpu.multiprocessors, blocks), most);
  } else {
    const int beside = std::max(1, gpu.shared_memory_per_block / (config.shared_bytes() + 1024));
    return splits_in_waves(blocks, problem.keys, most, beside * gpu.multiprocessors);
  }
}

// The kernel of `config`, for so many tiles of rows.
template <typename Config>
void add_kernel(AttentionPlan& plan, const AttentionProblem& problem, Config config,
                std::int64_t row_tiles, const Gpu& gpu) {
  config.form.split = plan.config.splits > 1;
  std::int64_t blocks = unsplit_blocks(problem, row_tiles) * plan.config.splits;
  // A multiprocessor holds one block of those that stay.
  if (config.stays()) blocks = std::min<std::int64_t>(blocks, gpu.multiprocessors);
  plan.kernels.push_back(kernel_plan(kOperation, config.kHeader, config.kKernel, config, blocks));
  plan.kernels.back().shared_bytes = config.shared_bytes();
}

// The one that combines splits, if there are any.
void add_combination(AttentionPlan& plan, const AttentionProblem& problem) {
  if (plan.config.splits == 1) return;
  const config::CombineSplitsConfig combine{.q = problem.form.q,
                                            .value_size = problem.form.value_size,
                                            .in_order = problem.batch_invariant};
  const std::int64_t rows = problem.all_queries() * problem.heads;
  plan.kernels.push_back(
      kernel_plan(kOperation, combine.kHeader, combine.kKernel, combine,
                  config::ceil_divide(rows * combine.warps_of_row(), combine.warps)));
}

// The configuration for rows of sequences with few or with many, by form and GPU alone.
Config batch_invariant_config(const AttentionProblem& problem, config::RowCount count, bool few,
                              const Gpu& gpu) {
  // One sequence stands for all of them.
  AttentionProblem one = problem;
  one.batch = one.heads = one.key_heads = 1;
  one.has_query_offsets = false;
  one.queries = few ? 1 : config::kMostRowsOfFew + 1;
  one.form.row_count = count;
  const Config chosen = config_of(one, gpu);
  const bool is_long = std::holds_alternative<config::ManyQueriesConfig>(chosen) ||
                       std::holds_alternative<config::WarpgroupQueriesConfig>(chosen);
  one.form.part_keys = is_long ? config::kLongPartKeys : config::kPartKeys;
  if (problem.keys <= one.form.part_keys) one.form.part_keys = config::kAllPartKeys;
  return config_of(one, gpu);
}

// Tiles of the rows of sequences that have few, however queries are dealt out.
std::int64_t tiles_of_few(const AttentionProblem& problem, std::int64_t rows_of_tile) {
  return std::min(
      row_tiles_of(problem, rows_of_tile),
      problem.batch * config::ceil_divide<std::int64_t>(config::kMostRowsOfFew, rows_of_tile));
}

// Keys are cut into parts of a fixed number. Each has a block where that pays, and places in the
// workspace; else a block has all parts of its rows, and adds them as the other kernel does.
AttentionPlan plan_batch_invariant(const AttentionProblem& problem, const Gpu& gpu) {
  struct Kernel {
    Config config;
    std::int64_t row_tiles;
  };
  std::vector<Kernel> kernels;
  const auto add = [&](config::RowCount count, bool few) {
    const Config config = batch_invariant_config(problem, count, few, gpu);
    const std::int64_t tile = std::visit([](const auto& of) { return of.rows(); }, config);
    kernels.push_back({config, count == config::RowCount::kFew ? tiles_of_few(problem, tile)
                                                               : row_tiles_of(problem, tile)});
  };
  // The rows of a sequence decide, or with offsets those of all that there are.
  const bool few = problem.queries * (problem.heads / problem.key_heads) <= config::kMostRowsOfFew;
  if (few || !problem.has_query_offsets) {
    add(config::RowCount::kAny, few);
  } else {
    add(config::RowCount::kFew, true);
    add(config::RowCount::kMany, false);
  }
  AttentionPlan plan;
  plan.config.row_tiles = kernels.back().row_tiles;
  const std::int64_t rows = problem.all_queries() * problem.heads;
  const bool fills_gpu = unsplit_blocks(problem, plan.config.row_tiles) >= gpu.multiprocessors;
  const bool is_apart = config::attention_has_parts_apart(rows, problem.keys);
  if (is_apart && (!fills_gpu || few || kernels.size() > 1)) {
    const int part_keys =
        std::visit([](const auto& of) { return of.form.part_keys; }, kernels.front().config);
    plan.config.splits =
        std::max<std::int64_t>(1, config::ceil_divide<std::int64_t>(problem.keys, part_keys));
  }
  for (const Kernel& kernel : kernels) {
    std::visit([&](const auto& of) { add_kernel(plan, problem, of, kernel.row_tiles, gpu); },
               kernel.config);
  }
  add_combination(plan, problem);
  return plan;
}

}  // namespace

AttentionPlan plan_attention(const AttentionProblem& problem, const Gpu& gpu) {
  require_kernels(Operation::kAttention, kOperation, problem.form.q, gpu);
  AttentionPlan plan;
  const std::int64_t rows = problem.all_queries() * problem.heads;
  if (rows == 0 || problem.batch == 0) return plan;
  if (problem.batch_invariant) return plan_batch_invariant(problem, gpu);
  const Config chosen = config_of(problem, gpu);
  const bool few = std::holds_alternative<config::FewQueriesConfig>(chosen);
  const std::int64_t most_splits = std::clamp<std::int64_t>(
      config::ceil_divide(problem.keys, few ? kLeastKeysOfFew : kLeastKeysOfMany), 1,
      config::attention_splits(rows));
  std::visit(
      [&](const auto& config) {
        plan.config.row_tiles = row_tiles_of(problem, config.rows());
        plan.config.splits = splits_of(
            config, problem, unsplit_blocks(problem, plan.config.row_tiles), most_splits, gpu);
        add_kernel(plan, problem, config, plan.config.row_tiles, gpu);
      },
      chosen);
  add_combination(plan, problem);
  return plan;
}

}  // namespace octofold::plan
