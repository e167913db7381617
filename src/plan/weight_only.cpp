#include "plan/weight_only.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/scale_layout.h"
#include "kernels/weight_only/config/config.h"
#include "plan/architectures.h"
#include "plan/capability.h"
#include "plan/tma.h"

namespace octofold::plan {

const char* operation_of(const WeightOnlyProblem& problem) {
  if (config::has_groups(problem.work)) {
    return problem.transposed ? "grouped_gemm_weight_only_gradient" : "grouped_gemm_weight_only";
  }
  return problem.transposed ? "gemm_weight_only_gradient" : "gemm_weight_only";
}

namespace {

// The tiles that a group is expected to have, and the share of groups that have any.
struct OfGroup {
  double tiles = 0, matrices = 0;
};

// Rows fall to groups one by one, so that a group's rows follow Poisson's law with their mean.
// Tiles are then as many as groups with more than 0 rows, than a tile's, than two tiles' and so on.
OfGroup of_group(double mean, int tile_rows) {
  constexpr double kMany = 256;  // of which the last tile is half empty
  if (mean > kMany) return {mean / tile_rows + 0.5 * (tile_rows - 1) / tile_rows, 1};
  double probability = std::exp(-mean), up_to = probability;  // of `count` rows
  OfGroup expected{0, 1 - probability};
  const int end = static_cast<int>(2 * mean) + 32;
  for (int count = 0; count < end; ++count) {
    if (count % tile_rows == 0) expected.tiles += std::max(1 - up_to, 0.0);
    probability *= mean / (count + 1);
    up_to += probability;
  }
  return expected;
}

}  // namespace

RowTiles row_tiles(const WeightOnlyProblem& problem, int tile_rows) {
  const std::int64_t rows = problem.rows, groups = problem.groups;
  if (!config::has_groups(problem.work)) {
    const std::int64_t tiles = core::ceil_divide(rows, tile_rows);
    return {tiles, static_cast<double>(tiles), 1};
  }
  const bool is_masked = problem.work == config::Work::kMaskedRows;
  const std::int64_t most = is_masked
                                ? groups * core::ceil_divide(rows, tile_rows)
                                : (rows + std::min(rows, groups) * (tile_rows - 1)) / tile_rows;
  const double mean = is_masked ? static_cast<double>(problem.expected)
                                : static_cast<double>(rows) / static_cast<double>(groups);
  // Routers prefer some groups to others.
  constexpr double kShares[] = {0.75, 0.875, 1, 1.125, 1.25};
  OfGroup sum;
  for (const double share : kShares) {
    const OfGroup each = of_group(share * mean, tile_rows);
    sum = {sum.tiles + each.tiles, sum.matrices + each.matrices};
  }
  const auto of_all = static_cast<double>(groups);
  const double limit = static_cast<double>(std::max<std::int64_t>(most, 1));
  const double weight = of_all / std::size(kShares);
  return {most, std::clamp(weight * sum.tiles, 1.0, limit),
          std::clamp(weight * sum.matrices, 1.0, of_all)};
}

double expected_rows(const WeightOnlyProblem& problem) {
  if (!config::has_groups(problem.work)) return static_cast<double>(problem.rows);
  const RowTiles rows = row_tiles(problem, 1);
  return rows.expected / rows.matrices;
}

WeightOnlyProblem as_allocated(WeightOnlyProblem problem) {
  const auto is_whole = [](std::int64_t size, std::int64_t bytes) { return size % bytes == 0; };
  const std::int64_t w_columns = problem.transposed ? problem.columns : problem.depth;
  problem.is_aligned = is_whole(problem.depth * size_of(problem.x), 16) &&
                       is_whole(w_columns * size_of(problem.w), 16);
  problem.out_is_aligned = problem.columns % 4 == 0;
  problem.fits_tma = problem.is_aligned && problem.depth > 0;
  problem.has_workspace =
      !config::has_groups(problem.work) &&
      config::weight_only_splits(problem.rows, problem.columns, problem.depth) > 1;
  return problem;
}

std::int64_t rows_of(const core::WeightOnlyProduct& product) {
  const std::int64_t rows = product.out.shape[0];
  switch (product.groups.work) {
    case config::Work::kMaskedRows: return product.groups.max_rows;
    case config::Work::kGroupedRows:  // offsets have 32 bits
      return std::min<std::int64_t>(rows, std::numeric_limits<int>::max());
    default: return rows;
  }
}

WeightOnlyProblem problem_of(const core::WeightOnlyProduct& product) {
  const TensorView &x = product.x.data, &w = product.w.data;
  const MutableTensorView& out = product.out;
  const core::Groups& groups = product.groups;
  return {.rows = rows_of(product),
          .columns = out.shape[1],
          .depth = x.shape[1],
          .w = w.dtype,
          .x = x.dtype,
          .out = out.dtype,
          .transposed = product.transposed,
          .w_scales = product.w.granularity,
          .x_blocks = product.x.scale && varies_along_k(product.x.granularity),
          .is_aligned = has_vectors(x) && has_vectors(w),
          .out_is_aligned =
              is_aligned(out, std::int64_t{4} * size_of(out.dtype)) && out.shape[1] % 4 == 0,
          .has_workspace = product.workspace && product.workspace->element_count() > 0,
          .fits_tma = tma_obstacle(x) == nullptr && tma_obstacle(w) == nullptr,
          .work = groups.work,
          .groups = groups.count,
          .expected = groups.work == config::Work::kMaskedRows ? groups.expected_rows : 0,
          .gathered = product.gathered.has_value(),
          .batch_invariant = product.batch_invariant};
}

WeightOnlyPlanner::Candidates weight_only_candidates(const WeightOnlyProblem& problem,
                                                     const Gpu& gpu) {
  return candidates_by(planners(&Architecture::weight_only, gpu), problem, gpu);
}

WeightOnlyPlan plan_weight_only(const WeightOnlyProblem& problem, const Gpu& gpu,
                                std::string_view candidate) {
  require_kernels(Operation::kWeightOnly, operation_of(problem), problem.x, gpu);
  const auto plan = plan_by(planners(&Architecture::weight_only, gpu), problem, gpu, candidate);
  if (plan) return *plan;
  core::fail(ErrorCode::kInternal, "{}: no tile fits {} bytes of shared memory",
             operation_of(problem), gpu.shared_memory_per_block);
}

std::string planned_candidate(const WeightOnlyProblem& problem, const Gpu& gpu) {
  return name_among(weight_only_candidates(problem, gpu), plan_weight_only(problem, gpu).config);
}

std::vector<std::string> best_candidates(const WeightOnlyProblem& problem, const Gpu& gpu,
                                         std::size_t most) {
  return best_names(planners(&Architecture::weight_only, gpu), problem, gpu, most);
}

}  // namespace octofold::plan
