#include "plan/attention.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/check.h"
#include "kernels/attention/config/params.h"
#include "plan/architectures.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

constexpr const char* kOperation = "attention";

AttentionConfig config_of(const AttentionProblem& problem, const Gpu& gpu) {
  for (const AttentionPlanner* planner : planners(&Architecture::attention, gpu)) {
    if (const std::optional<AttentionConfig> config = planner->choose(problem, gpu)) return *config;
  }
  core::fail(ErrorCode::kUnsupported, "{}: a block has too little shared memory: {} bytes",
             kOperation, gpu.shared_memory_per_block);
}

// Fewer keys are not worth a block of their own: of few queries, of many.
constexpr std::int64_t kLeastKeysOfFew = 256, kLeastKeysOfMany = 128;

// True if rows are many and a warp or a warpgroup has each one's sums.
bool sums_many_rows_in_registers(const AttentionProblem& problem) {
  return problem.has_many_rows() && !problem.has_wide_heads();
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

// So many splits at most: the room of the workspace, and no fewer keys than are worth a block.
std::int64_t most_splits(const AttentionProblem& problem, std::int64_t least_keys) {
  return std::clamp<std::int64_t>(config::ceil_divide(problem.keys, least_keys), 1,
                                  config::attention_splits(problem.all_queries() * problem.heads));
}

int blocks_by_shared_memory(int shared_bytes, const Gpu& gpu) {
  return std::max(1, (gpu.shared_memory_per_block + 1024) / (shared_bytes + 1024));
}

// The time of few queries as an H200 takes it, but for what all shapes and splits take. Fitted to
// two thirds of 1117 problems drawn at random (docs/notes/attention.md).
class FewQueriesTime {
 public:
  FewQueriesTime(const config::FewQueriesConfig& config, const AttentionProblem& problem,
                 const Gpu& gpu)
      : config_(config),
        problem_(problem),
        multiprocessors_(gpu.multiprocessors),
        unsplit_(unsplit_blocks(problem, row_tiles_of(problem, config.rows()))) {
    const int size = std::max(config.form.head_size, config.form.value_size);
    is_half_line_ = size <= 64;
    const int warps = size <= 64 ? 16 : size <= 128 ? 12 : 8;  // registers have room for so many
    places_ = std::clamp(blocks_by_shared_memory(config.shared_bytes(), gpu), 1,
                         std::max(1, warps / config.warps));
    start_ = 1.4 * size / 128;
  }

  // In microseconds.
  double of(std::int64_t splits) const {
    const std::int64_t stages =
        config::ceil_divide<std::int64_t>(config::ceil_divide(problem_.keys, splits), config_.keys);
    const double bytes = static_cast<double>(stages) * config_.stage_bytes();
    const std::int64_t blocks = unsplit_ * splits, at_once = multiprocessors_ * places_;
    const std::int64_t waves = blocks / at_once, left = blocks % at_once;
    double time = static_cast<double>(waves) * of_block(bytes, at_once, places_);
    if (left > 0) {
      const std::int64_t spread = config::ceil_divide<std::int64_t>(left, multiprocessors_);
      time += of_block(bytes, left, spread);
      // Behind a wave, what begins next finds itself beside its like now and then.
      if (waves > 0) {
        time += 0.05 * (of_block(bytes, left, places_) - of_block(bytes, left, spread));
      }
    }
    return splits > 1 ? time + of_combination(splits) : time;
  }

 private:
  // One of so many that run, some of them on its multiprocessor: it starts, reads its bytes and
  // adds its warps up. It reads as fast as its warps can, its multiprocessor, and the memory, for
  // which rows of 64 bytes are half a line. Bytes are those of a microsecond.
  double of_block(double bytes, std::int64_t running, std::int64_t beside) const {
    const double warps = 6800.0 * config_.warps;
    const double multiprocessor = (is_half_line_ ? 29300.0 : 31000.0) / static_cast<double>(beside);
    const double memory =
        (is_half_line_ ? 26700.0 : 30700.0) * multiprocessors_ / static_cast<double>(running);
    return start_ + bytes / std::min({warps, multiprocessor, memory});
  }

  // Its launch, and the sums that it reads.
  double of_combination(std::int64_t splits) const {
    const std::int64_t rows = problem_.all_queries() * problem_.heads;
    return 1.2 + 3.8e-6 * 4.0 * static_cast<double>(rows * splits * problem_.form.value_size);
  }

  const config::FewQueriesConfig& config_;
  const AttentionProblem& problem_;
  int multiprocessors_;
  std::int64_t unsplit_;
  bool is_half_line_;
  int places_;    // of blocks, on a multiprocessor
  double start_;  // of a block, and its end
};

// The splits with which blocks that run at one time are done first, each of which takes what some
// keys more would besides its own. On problems of many rows drawn at random these take 1.004 of the
// best splits' time (docs/notes/attention.md).
template <typename Config>
std::int64_t splits_in_waves(const Config& config, const AttentionProblem& problem,
                             const Gpu& gpu) {
  constexpr std::int64_t kKeysOfStart = 256;
  const std::int64_t blocks = unsplit_blocks(problem, row_tiles_of(problem, config.rows()));
  const std::int64_t most = most_splits(problem, kLeastKeysOfMany);
  const int at_once = blocks_by_shared_memory(config.shared_bytes(), gpu) * gpu.multiprocessors;
  const auto time_of = [&](std::int64_t splits) {
    return config::ceil_divide<std::int64_t>(blocks * splits, at_once) *
           (config::ceil_divide(problem.keys, splits) + kKeysOfStart);
  };
  std::int64_t best = 1;
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    if (time_of(splits) < time_of(best)) best = splits;
  }
  return best;
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
AttentionConfig batch_invariant_config(const AttentionProblem& problem, config::RowCount count,
                                       bool few, const Gpu& gpu) {
  // One sequence stands for all of them.
  AttentionProblem one = problem;
  one.batch = one.heads = one.key_heads = 1;
  one.has_query_offsets = false;
  one.queries = few ? 1 : config::kMostRowsOfFew + 1;
  one.form.row_count = count;
  one.form.part_keys = sums_many_rows_in_registers(one) ? config::kLongPartKeys : config::kPartKeys;
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
    AttentionConfig config;
    std::int64_t row_tiles;
  };
  std::vector<Kernel> kernels;
  const auto add = [&](config::RowCount count, bool few) {
    const AttentionConfig config = batch_invariant_config(problem, count, few, gpu);
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

FewQueriesSplits splits_of(const config::FewQueriesConfig& config, const AttentionProblem& problem,
                           const Gpu& gpu) {
  const FewQueriesTime time(config, problem, gpu);
  const std::int64_t most = most_splits(problem, kLeastKeysOfFew);
  FewQueriesSplits best{1, time.of(1)};
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    const double microseconds = time.of(splits);
    if (microseconds < best.microseconds) best = {splits, microseconds};
  }
  return best;
}

AttentionPlan plan_attention(const AttentionProblem& problem, const Gpu& gpu) {
  require_kernels(Operation::kAttention, kOperation, problem.form.q, gpu);
  AttentionPlan plan;
  const std::int64_t rows = problem.all_queries() * problem.heads;
  if (rows == 0 || problem.batch == 0) return plan;
  if (problem.batch_invariant) return plan_batch_invariant(problem, gpu);
  const AttentionConfig chosen = config_of(problem, gpu);
  std::visit(
      [&]<typename Config>(const Config& config) {
        plan.config.row_tiles = row_tiles_of(problem, config.rows());
        if constexpr (std::is_same_v<Config, config::FewQueriesConfig>) {
          plan.config.splits = splits_of(config, problem, gpu).count;
        } else {
          plan.config.splits = splits_in_waves(config, problem, gpu);
        }
        add_kernel(plan, problem, config, plan.config.row_tiles, gpu);
      },
      chosen);
  add_combination(plan, problem);
  return plan;
}

}  // namespace octofold::plan
