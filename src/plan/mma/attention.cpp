#include <algorithm>
#include <optional>
#include <vector>

#include "plan/mma/planner.h"

namespace octofold::plan::mma {
namespace {

using Few = config::FewQueriesConfig;

// The ones for few queries that may be done first. A block of eight warps has 128 KB on their way,
// and a multiprocessor for itself; of smaller ones some start while others read.
std::vector<Few> few_queries_candidates(const config::AttentionForm& form, const Gpu& gpu) {
  const int size = std::max(form.head_size, form.value_size);
  std::vector<Few> all = {{form, 8, 2, 16}, {form, 4, 2, 16}};
  if (size <= 128) all = {{form, 8, 2, 32}, {form, 4, 3, 32}, {form, 4, 2, 32}};
  if (size <= 64) all = {{form, 8, 4, 32}, {form, 8, 2, 32}};
  if (form.part_keys > 0) all.resize(1);  // the bits of parts may not follow the batch
  std::erase_if(all, [&](const Few& config) {
    return config.invalid_reason() != nullptr ||
           config.shared_bytes() > gpu.shared_memory_per_block;
  });
  return all;
}

std::optional<Few> few_queries(const AttentionProblem& problem, const Gpu& gpu) {
  const config::AttentionForm& form = problem.form;
  if (gpu.compute_capability() < 80) {  // copies do not go on by themselves
    const Few candidates[] = {{form, 4, 1}, {form, 2, 1}};
    return first_that_fits(candidates, 1, gpu);
  }
  const std::vector<Few> all = few_queries_candidates(form, gpu);
  if (!all.empty()) {
    return std::ranges::min(
        all, {}, [&](const Few& config) { return splits_of(config, problem, gpu).microseconds; });
  }
  const Few candidates[] = {{form, 4, 3}, {form, 4, 2}, {form, 2, 3}, {form, 2, 2}};
  const std::optional<Few> beside_another = first_that_fits(candidates, 2, gpu);
  return beside_another ? *beside_another : first_that_fits(candidates, 1, gpu);
}

// The configuration for so many rows in all, and for those of each sequence and key head.
std::optional<config::ManyQueriesConfig> many_queries(const config::AttentionForm& form,
                                                      std::int64_t rows,
                                                      std::int64_t rows_of_sequence,
                                                      const Gpu& gpu) {
  using Config = config::ManyQueriesConfig;
  // Keys that more rows share are decoded less often, if these fill tiles of all multiprocessors,
  // and if registers hold what a warp sums.
  const Config large[] = {{form, 8, 2, 64, 2}, {form, 8, 2, 32, 2}};
  const std::int64_t tile = large[0].rows();
  if (form.value_size <= 128 && form.head_size <= 192 && gpu.compute_capability() >= 80 &&
      rows_of_sequence >= tile && rows >= 2 * tile * gpu.multiprocessors) {
    if (const std::optional<Config> config = first_that_fits(large, 1, gpu)) return *config;
  }
  const Config candidates[] = {{form, 8, 1, 64, 2}, {form, 8, 1, 32, 2}, {form, 8, 1, 32, 1},
                               {form, 4, 1, 32, 2}, {form, 4, 1, 32, 1}, {form, 4, 1, 16, 1}};
  return first_that_fits(candidates, 1, gpu);
}

// For so many rows of each sequence and key head. Beyond 32 rows a block has 64, as long as it
// fits.
std::optional<config::WideHeadsConfig> wide_heads(const config::AttentionForm& form,
                                                  std::int64_t rows, const Gpu& gpu) {
  using Config = config::WideHeadsConfig;
  if (rows > 32) {
    const Config candidates[] = {{form, 8, 4, 32, 4, 2}, {form, 8, 4, 32, 2}};
    if (const std::optional<Config> config = first_that_fits(candidates, 1, gpu)) return *config;
  }
  if (rows > 16) {
    const Config candidates[] = {{form, 8, 2, 32, 4}, {form, 4, 2, 16, 4}};
    if (const std::optional<Config> config = first_that_fits(candidates, 1, gpu)) return *config;
  }
  const Config candidates[] = {{form, 8, 1, 32, 4}, {form, 4, 1, 16, 4}};
  if (const std::optional<Config> config = first_that_fits(candidates, 2, gpu)) return *config;
  const Config alone[] = {{form, 8, 1, 32, 4}, {form, 4, 1, 16, 4}, {form, 4, 1, 16, 4, 1, false}};
  return first_that_fits(alone, 1, gpu);
}

class Attention final : public AttentionPlanner {
 public:
  std::optional<AttentionConfig> choose(const AttentionProblem& problem,
                                        const Gpu& gpu) const override {
    const std::int64_t rows = problem.rows_of_sequence();
    if (problem.has_wide_heads()) return wide_heads(problem.form, rows, gpu);
    if (!problem.has_many_rows()) return few_queries(problem, gpu);
    return many_queries(problem.form, problem.all_queries() * problem.heads, rows, gpu);
  }
};

}  // namespace

const AttentionPlanner& attention_planner() {
  static const Attention planner;
  return planner;
}

}  // namespace octofold::plan::mma
