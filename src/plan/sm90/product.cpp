#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "core/format.h"
#include "plan/sm90/cost.h"
#include "plan/sm90/planner.h"
#include "plan/sm90/tilings.h"

namespace octofold::plan::sm90 {
namespace {

using config::ConsumerOrder;
using config::OperandLoad;
using config::OutputStore;
using config::Sm90GemmConfig;

// Deeper pipelines than this gained nothing.
constexpr int kMostStages = 16;

// With fewer, whole tiles of D in shared memory cost more than they save.
constexpr int kFewestStages = 4;

// The bytes of boxes for C on a multiprocessor: twice those that hide the latency of memory.
constexpr int kBoxBytes = 96 * 1024;

// Raises a number of the configuration's as far as it fits.
template <typename Fits>
void raise(int& count, int most, Fits&& fits) {
  while (count < most) {
    ++count;
    if (fits()) continue;
    --count;
    return;
  }
}

// D leaves in this way, from as many stages as fit; in what they leave, as many slabs as are of
// use.
Sm90GemmConfig with_store(Sm90GemmConfig config, OutputStore store, int memory) {
  const auto fits = [&] { return config::Sm90SmemLayout(config).total <= memory; };
  config.store = store;
  config.stages = kMostStages;
  while (config.stages > 2 && !fits()) --config.stages;
  if (store != OutputStore::kTmaSlabs) return config;
  const int most = config.owned_columns() / config.slab_columns() * config.sub_tiles();
  raise(config.slabs, most, fits);
  return config;
}

// In the way that suits the problem.
Sm90GemmConfig with_store(const Sm90GemmConfig& config, const GemmProblem& problem, int memory) {
  const bool turns_fp32 = config.swapped && config.form.out == DType::kFloat32;
  if (!problem.output_fits_tma || turns_fp32) {
    const Sm90GemmConfig in_slabs = with_store(config, OutputStore::kSlabs, memory);
    // Threads that copy operands lack registers for them.
    const bool can = problem.operands_fit_tma && in_slabs.invalid_reason() == nullptr;
    return can ? in_slabs : with_store(config, OutputStore::kDirect, memory);
  }
  // Slabs of groups that add to another C lack registers.
  const bool adds_to_groups =
      config::groups_rows(config.work) && config.form.c != Addend::kNone && !problem.c_is_out;
  const bool has_pieces =
      !config.swapped && !adds_to_groups && config.owned_columns() % config.slab_columns() == 0;
  if (!problem.operands_fit_tma) {  // slabs of 16-bit elements take registers that these lack
    const bool in_slabs = has_pieces && config.form.out == DType::kFloat32;
    return with_store(config, in_slabs ? OutputStore::kTmaSlabs : OutputStore::kDirect, memory);
  }
  const Sm90GemmConfig whole = with_store(config, OutputStore::kTma, memory);
  if (whole.stages >= kFewestStages || !has_pieces) return whole;
  const Sm90GemmConfig in_slabs = with_store(config, OutputStore::kTmaSlabs, memory);
  return in_slabs.stages > whole.stages ? in_slabs : whole;
}

// D leaves onto C, from boxes that hold a tile's C at least, so that all of it comes while the tile
// is multiplied; few stages are enough then. Nothing where they do not fit.
std::optional<Sm90GemmConfig> with_store_onto_c(Sm90GemmConfig config, const GemmProblem& problem,
                                                int memory) {
  const bool can = problem.product.form.c != Addend::kNone && problem.c_fits_tma &&
                   problem.operands_fit_tma && problem.output_fits_tma && !config.swapped &&
                   config.split_k == 1;
  if (!can) return std::nullopt;
  config.store = OutputStore::kTmaPrefetchedC;
  config.adds_in_place = false;
  config.stages = kFewestStages;
  config.boxes = 0;
  const auto fits = [&] { return config::Sm90SmemLayout(config).total <= memory; };
  const int box_bytes = config::Sm90SmemLayout(config).output_box_bytes;
  raise(config.boxes, kBoxBytes / config.blocks_per_multiprocessor / box_bytes, fits);
  raise(config.stages, kMostStages, fits);
  if (config.boxes < config.boxes_of_tile()) return std::nullopt;
  return config;
}

// The kernels of this problem with this tiling: D leaves in the way that suits it; onto C, where
// that can be. All tilings that leave K whole give a row the same bits; into how many parts others
// split it depends on how many rows there are.
std::vector<Sm90GemmConfig> configure(const GemmProblem& problem, const Tiling& tiling,
                                      const Gpu& gpu) {
  if (problem.batch_invariant && tiling.split_k > 1) return {};
  const bool promote = !problem.product.form.fast_accumulation;
  Sm90GemmConfig config{
      .form = problem.product.form,
      .gated = problem.gated,
      .dynamic = problem.dynamic,
      .work = problem.work,
      .swapped = tiling.swapped,
      .tile_rows = tiling.rows,
      .tile_columns = tiling.columns,
      .consumer_warpgroups = tiling.consumer_warpgroups,
      .cluster_rows = tiling.cluster_rows,
      .cluster_columns = tiling.cluster_columns,
      .split_k = tiling.split_k,
      .blocks_per_multiprocessor = tiling.blocks_per_multiprocessor,
      .load = problem.operands_fit_tma     ? OperandLoad::kTma
              : problem.operands_fit_words ? OperandLoad::kWords
                                           : OperandLoad::kThreads,
      .order = promote ? tiling.order : ConsumerOrder::kFree,
      .wait_ahead = promote && tiling.wait_ahead,
  };
  const int memory = std::min(config::shared_memory_of_block(tiling.blocks_per_multiprocessor),
                              gpu.shared_memory_per_block);
  std::vector<Sm90GemmConfig> configs{with_store(config, problem, memory)};
  configs.front().adds_in_place = problem.c_is_out && config::by_tma(configs.front().store);
  if (const auto onto_c = with_store_onto_c(config, problem, memory)) configs.push_back(*onto_c);
  std::erase_if(configs, [](const auto& each) { return each.invalid_reason() != nullptr; });
  return configs;
}

std::string name_of(const Sm90GemmConfig& config) {
  const TilingName name({.swapped = config.swapped,
                         .rows = config.tile_rows,
                         .columns = config.tile_columns,
                         .consumer_warpgroups = config.consumer_warpgroups,
                         .cluster_rows = config.cluster_rows,
                         .cluster_columns = config.cluster_columns,
                         .split_k = config.split_k,
                         .blocks_per_multiprocessor = config.blocks_per_multiprocessor,
                         .order = config.order,
                         .wait_ahead = config.wait_ahead});
  return std::string(name.text()) + (config.prefetches_c() ? ".onto_c" : "");
}

// Clusters that can find a tile.
int most_clusters(const GemmProblem& problem, const Sm90GemmConfig& config) {
  int rows_of_a = config.cluster_tile_rows(), rows_of_b = config.cluster_tile_columns();
  if (config.swapped) std::swap(rows_of_a, rows_of_b);
  return static_cast<int>(most_tiles(problem, rows_of_a, rows_of_b));
}

// The tilings of all problems alike, in numbers of their own kind.
std::span<const Tiling> tilings_for(const GemmProblem& problem) {
  return problem.gated.exists ? gated_tilings() : tilings();
}

// Blocks of the smallest tile, 8 rows of A and 64 of B, in the most slices have to fit into an int.
// Rows are rounded up to a stage, or to whole tiles of clusters, of 256 rows at most.
constexpr std::int64_t kLargest = std::numeric_limits<int>::max() - 2 * config::kStageDepth;
constexpr SizeLimits kLimits{
    .largest = kLargest, .most_tiles = kLargest / 4, .rows_of_a = 8, .rows_of_b = 64};

class Products final : public ProductPlanner {
 public:
  void require_sizes(const GemmProblem& problem) const override {
    plan::require_sizes(problem, kLimits);
  }

  Candidates candidates(const GemmProblem& problem, const Gpu& gpu) const override {
    Candidates candidates;
    for (const Tiling& tiling : tilings_for(problem)) {
      for (const Sm90GemmConfig& config : configure(problem, tiling, gpu)) {
        // Without promotion tilings that differ in their order alone are one.
        if (std::ranges::find(candidates, ProductConfig(config),
                              &Candidate<ProductConfig>::config) == candidates.end()) {
          candidates.push_back({name_of(config), config});
        }
      }
    }
    return candidates;
  }

  // Each swapped tile of A's rows reads all of B: with many of them no such tiling was ever the
  // best, nor with a tile that is mostly of rows that are not there.
  static bool fits_rows(const Tiling& tiling, std::int64_t rows) {
    if (!tiling.swapped) return true;
    return rows <= 2 * tiling.columns && tiling.columns <= std::max<std::int64_t>(16, 2 * rows);
  }

  Reckonings reckon(const GemmProblem& problem, const Gpu& gpu) const override {
    Reckonings all;
    for (const Tiling& tiling : tilings_for(problem)) {
      // An A that is cast has no others.
      if (!problem.dynamic.exists && !fits_rows(tiling, expected_group(problem).m)) continue;
      for (const Sm90GemmConfig& config : configure(problem, tiling, gpu)) {
        all.push_back({config, predicted_microseconds(problem, config, tiling, gpu)});
      }
    }
    return all;
  }

  std::vector<KernelPlan> kernels(const GemmProblem& problem, const ProductConfig& chosen,
                                  const Gpu& gpu) const override {
    const auto& config = std::get<Sm90GemmConfig>(chosen);
    int clusters = most_clusters(problem, config);
    // A block stays for all its tiles, unless it shares one.
    if (config.split_k == 1)
      clusters = std::min(
          clusters, clusters_at_once(config.cluster_size(), config.blocks_per_multiprocessor, gpu));
    KernelPlan kernel = kernel_plan("gemm", config.kHeader, config.kKernel, config,
                                    clusters * config.cluster_size());
    kernel.cluster_size = config.cluster_size();
    kernel.shared_bytes = config::Sm90SmemLayout(config).total;
    return {kernel};
  }
};

}  // namespace

const ProductPlanner& product_planner() {
  static const Products planner;
  return planner;
}

}  // namespace octofold::plan::sm90
