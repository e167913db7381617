#include "plan/product.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "core/format.h"
#include "kernels/shared/arithmetic.h"
#include "plan/architectures.h"
#include "plan/capability.h"
#include "plan/tma.h"

namespace octofold::plan {
namespace {

Addend addend_of(const std::optional<TensorView>& addend, DType out) {
  if (!addend) return Addend::kNone;
  return addend->dtype == out ? Addend::kOutputType : Addend::kFloat32;
}

bool is_same_matrix(const TensorView& left, const TensorView& right) {
  return left.data == right.data && left.dtype == right.dtype &&
         left.strides[0] == right.strides[0];
}

GemmForm form_of(const core::Product& product) {
  const DType out = product.out.dtype;
  return {.a = product.cast_a ? Operand{product.cast_a->out, product.cast_a->granularity}
                              : Operand{product.a.data.dtype, product.a.granularity},
          .b = {product.b.data.dtype, product.b.granularity},
          .out = out,
          .c = addend_of(product.c, out),
          .bias = addend_of(product.bias, out),
          .fast_accumulation = product.fast_accumulation};
}

config::GatedOutput gated_of(const core::GatedEpilogue& gated) {
  return {.exists = true,
          .activation = gated.activation,
          .rule = gated.format.rule,
          .power_of_two = gated.format.power_of_two,
          .saturate = gated.format.saturate};
}

config::DynamicInput dynamic_of(const config::CastFormat& format, const TensorView& a) {
  return {.exists = true,
          .type = format.in,
          .rule = format.rule,
          .power_of_two = format.power_of_two,
          .saturate = format.saturate,
          .vectors = has_vectors(a)};
}

}  // namespace

std::string_view operation_of(const GemmProblem& problem) {
  if (problem.gated.exists) return "gated_gemm";
  return config::has_groups(problem.work) ? "grouped_gemm" : "gemm";
}

GroupSizes expected_group(const GemmProblem& problem) {
  const auto& [m, n, k, form] = problem.product;
  if (!config::has_groups(problem.work)) return {m, n, k};
  if (problem.work == config::Work::kGroupedDepth) return {m, n, problem.expected};
  return {std::max(problem.expected, std::int64_t{1}), n, k};
}

std::int64_t most_tiles(const GemmProblem& problem, std::int64_t rows_of_a,
                        std::int64_t rows_of_b) {
  const std::int64_t m = problem.product.m, groups = problem.groups;
  const std::int64_t of_rows = problem.work == config::Work::kGroupedRows
                                   ? m / rows_of_a + std::min(groups, m)
                                   : groups * config::ceil_divide(m, rows_of_a);
  return of_rows * config::ceil_divide(problem.product.n, rows_of_b);
}

void require_sizes(const GemmProblem& problem, const SizeLimits& limits) {
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + 1; };
  const auto& [m, n, k, form] = problem.product;
  const std::int64_t groups = problem.groups, b_rows = problem.gated.exists ? 2 * n : n;
  // Tiles of rows of all groups; kGroupedRows: those of one, and one more for each other.
  const bool together = problem.work == config::Work::kGroupedRows;
  const std::int64_t tiles_of_rows =
      together ? tiles(m, limits.rows_of_a) + groups : tiles(m, limits.rows_of_a) * groups;
  const std::int64_t rows = std::max(together ? 0 : m, b_rows);  // of each group
  if (std::max({m, n, k, groups}) > limits.largest || rows > limits.largest / groups ||
      tiles_of_rows > limits.most_tiles / tiles(n, limits.rows_of_b)) {
    core::fail(ErrorCode::kUnsupported,
               "{}: expected M, N, K up to {} and at most {} tiles of {}×{}, got {}×{}×{}{}",
               operation_of(problem), limits.largest, limits.most_tiles, limits.rows_of_a,
               limits.rows_of_b, m, n, k, groups == 1 ? "" : core::format(" in {} groups", groups));
  }
}

TmaObstacles tma_obstacles(const core::Product& product) {
  return {.a = product.cast_a ? nullptr : tma_obstacle(product.a.data),
          .b = tma_obstacle(product.b.data),
          .out = tma_store_obstacle(product.out)};
}

GemmProblem problem_of(const core::Product& product) {
  const MutableTensorView& out = product.out;
  const TmaObstacles obstacles = tma_obstacles(product);
  const TensorView &a = product.a.data, &b = product.b.data;
  const core::Groups& groups = product.groups;
  GemmProblem problem{
      .product = {.m = out.shape[0], .n = out.shape[1], .k = a.shape[1], .form = form_of(product)},
      .batch_invariant = product.batch_invariant,
      .operands_fit_tma = obstacles.a == nullptr && obstacles.b == nullptr,
      .operands_fit_words = product.cast_a || (has_words(a) && has_words(b)),
      .output_fits_tma = obstacles.out == nullptr,
      .c_is_out = out.dtype == DType::kFloat32 && product.c && is_same_matrix(*product.c, out),
      .c_fits_tma =
          !product.c || (product.c->dtype == out.dtype && tma_obstacle(*product.c) == nullptr),
      .work = product.arrivals ? config::Work::kArrivingRows : groups.work,
      .groups = groups.count,
      .expected = groups.expected_rows};
  if (product.gated) problem.gated = gated_of(*product.gated);
  if (product.cast_a) problem.dynamic = dynamic_of(*product.cast_a, a);
  if (groups.work == config::Work::kMaskedRows || groups.work == config::Work::kGroupedDepth) {
    problem.product.m /= groups.count;
  }
  return problem;
}

GemmProblem as_allocated(GemmProblem problem) {
  GemmProblem wider = problem;
  std::int64_t& k = wider.product.k;  // with the gap behind a row
  k = (k + kTmaAlignment - 1) / kTmaAlignment * kTmaAlignment;
  problem = contiguous(problem);
  problem.operands_fit_tma = contiguous(wider).operands_fit_tma;
  return problem;
}

GemmProblem contiguous(GemmProblem problem) {
  // No address: a multiple of anything.
  const auto tensor = [](DType dtype, std::int64_t rows, std::int64_t cols) {
    return matrix(static_cast<const char*>(nullptr), dtype, rows, cols);
  };
  const auto& [m, n, k, form] = problem.product;
  problem.operands_fit_tma =
      (problem.dynamic.exists || tma_obstacle(tensor(form.a.type, m, k)) == nullptr) &&
      tma_obstacle(tensor(form.b.type, n, k)) == nullptr;
  problem.operands_fit_words = problem.dynamic.exists || k % 4 == 0;
  problem.output_fits_tma = tma_store_obstacle(tensor(form.out, m, n)) == nullptr;
  problem.c_is_out = false;
  const bool c_has_type_of_out = form.c != Addend::kFloat32 || form.out == DType::kFloat32;
  problem.c_fits_tma = c_has_type_of_out && tma_obstacle(tensor(form.out, m, n)) == nullptr;
  if (problem.dynamic.exists) {
    problem.dynamic.vectors = has_vectors(tensor(problem.dynamic.type, m, k));
  }
  return problem;
}

namespace {

void require_kernels(const GemmProblem& problem, const Gpu& gpu) {
  const auto require = [&](Operation operation) {
    require_kernels(operation, operation_of(problem), gpu);
  };
  if (config::has_groups(problem.work)) return require(Operation::kGroupedProduct);
  if (problem.gated.exists) return require(Operation::kGatedProduct);
  require(problem.dynamic.exists ? Operation::kDynamicProduct : Operation::kProduct);
}

// Products have the kernels of the fastest architecture alone: what these do not take, operations
// refuse on every GPU.
std::vector<const ProductPlanner*> product_planner(const Gpu& gpu) {
  return {planners(&Architecture::products, gpu).front()};
}

[[noreturn]] void fail_without_kernel(const GemmProblem& problem, const Gpu& gpu) {
  if (problem.work == config::Work::kArrivingRows) {
    core::fail(ErrorCode::kUnsupported,
               "{}: argument 'arrivals': expected a GPU of compute capability 9.0 (H100, H200), "
               "whose kernels wait for rows, got {}.{}; without it, wait for all rows first",
               operation_of(problem), gpu.compute_major, gpu.compute_minor);
  }
  core::fail(ErrorCode::kInternal, "{}: no kernel for {}", operation_of(problem),
             describe(problem));
}

}  // namespace

ProductPlan plan_product(const GemmProblem& problem, const Gpu& gpu, std::string_view candidate) {
  require_kernels(problem, gpu);
  const auto plan = plan_by(product_planner(gpu), problem, gpu, candidate);
  if (!plan) fail_without_kernel(problem, gpu);
  return *plan;
}

ProductPlanner::Candidates product_candidates(const GemmProblem& problem, const Gpu& gpu) {
  require_kernels(problem, gpu);
  const auto candidates = candidates_by(product_planner(gpu), problem, gpu);
  if (candidates.empty() && problem.work == config::Work::kArrivingRows) {
    fail_without_kernel(problem, gpu);
  }
  return candidates;
}

std::string planned_candidate(const GemmProblem& problem, const Gpu& gpu) {
  return name_among(product_candidates(problem, gpu), plan_product(problem, gpu).config);
}

std::vector<std::string> best_candidates(const GemmProblem& problem, const Gpu& gpu,
                                         std::size_t most) {
  return best_names(product_planner(gpu), problem, gpu, most);
}

}  // namespace octofold::plan
