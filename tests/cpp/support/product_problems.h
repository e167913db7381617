// Problems of products for the planners: plain ones of each kind, and random ones; and plans whose
// configurations are known to be of one kind.
#pragma once

#include "kernels/shared/tile_schedule.h"
#include "kernels/sm90/config/checks.h"
#include "plan/product.h"
#include "support/refusals.h"
#include "support/test.h"

namespace octofold::test {

template <typename T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

// Sizes of all magnitudes, ragged and round ones.
inline std::int64_t random_size(std::mt19937& random) {
  const int bits = std::uniform_int_distribution(0, 17)(random);
  const std::int64_t size = std::uniform_int_distribution<std::int64_t>(1, 1ll << bits)(random);
  return random() % 2 == 0 ? size : (size + 127) / 128 * 128;
}

inline plan::GemmProblem random_problem(std::mt19937& random) {
  const auto fp8 = [&] { return pick(random, {DType::kE4M3, DType::kE5M2}); };
  const auto granularity = [&] {
    return pick(random, {Granularity::kTensor, Granularity::kChannel, Granularity::kBlock1x128,
                         Granularity::kBlock128x128});
  };
  const auto addend = [&] {
    return pick(random, {Addend::kNone, Addend::kOutputType, Addend::kFloat32});
  };
  GemmForm form{.a = {fp8(), granularity()},
                .b = {fp8(), granularity()},
                .out = pick(random, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}),
                .c = addend(),
                .bias = addend()};
  form.fast_accumulation =
      !varies_along_k(form.a.scales) && !varies_along_k(form.b.scales) && random() % 2 == 0;
  return {.product = {.m = random_size(random),
                      .n = random_size(random),
                      .k = random() % 20 == 0 ? 0 : random_size(random),
                      .form = form},
          .operands_fit_tma = random() % 4 != 0,
          .operands_fit_words = random() % 2 == 0,
          .output_fits_tma = random() % 4 != 0,
          .c_fits_tma = random() % 2 == 0};
}

// A problem of grouped_gemm(). m: rows of all groups (kGroupedRows), or of each. k: of all groups.
inline plan::GemmProblem grouped_problem(config::Work work, std::int64_t m, std::int64_t n,
                                         std::int64_t k, std::int64_t groups,
                                         std::int64_t expected) {
  return {
      .product = {.m = m, .n = n, .k = k}, .work = work, .groups = groups, .expected = expected};
}

// A product of rows of A that arrive while it runs.
inline plan::GemmProblem random_arriving_problem(std::mt19937& random) {
  plan::GemmProblem problem = random_problem(random);
  problem.product.k += problem.product.k == 0;
  problem.work = config::Work::kArrivingRows;
  problem.c_is_out = problem.product.form.out == DType::kFloat32 &&
                     problem.product.form.c == Addend::kOutputType && random() % 2 == 0;
  return problem;
}

inline plan::GemmProblem gated_problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  plan::GemmProblem problem{.product = {.m = m, .n = n, .k = k}, .gated = {.exists = true}};
  problem.product.form.out = DType::kE4M3;
  return problem;
}

// A comes in BF16.
inline plan::GemmProblem cast_problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.product = {.m = m, .n = n, .k = k}, .dynamic = {.exists = true}};
}

inline plan::GemmProblem random_gated_problem(std::mt19937& random) {
  const auto fp8 = [&] { return pick(random, {DType::kE4M3, DType::kE5M2}); };
  plan::GemmProblem problem =
      gated_problem(random_size(random), (random_size(random) + 127) / 128 * 128,
                    (random_size(random) + 15) / 16 * 16);
  problem.product.form.a.type = fp8();
  problem.product.form.b.type = fp8();
  problem.product.form.out = fp8();
  problem.gated = {.exists = true,
                   .activation = pick(random, {Activation::kSwiGlu, Activation::kGeGluTanh,
                                               Activation::kGeGluErf, Activation::kSwiGluOss}),
                   .power_of_two = random() % 2 == 0,
                   .saturate = random() % 2 == 0};
  return problem;
}

inline plan::GemmProblem random_cast_problem(std::mt19937& random) {
  plan::GemmProblem problem = random_problem(random);
  problem.product.m = problem.product.m % 300 + 1;
  problem.product.k += problem.product.k == 0;
  GemmForm& form = problem.product.form;
  form.a.scales = Granularity::kBlock1x128;
  form.c = Addend::kNone;
  form.fast_accumulation = false;
  problem.dynamic = {.exists = true,
                     .type = pick(random, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}),
                     .power_of_two = random() % 2 == 0,
                     .saturate = random() % 2 == 0,
                     .vectors = random() % 2 == 0};
  problem.operands_fit_tma = problem.operands_fit_words = true;
  return problem;
}

// A problem that the checks let through: each kind of work has its own limits. Some are gated.
inline plan::GemmProblem random_grouped_problem(std::mt19937& random) {
  using config::Work;
  const auto work = pick(random, {Work::kGroupedRows, Work::kMaskedRows, Work::kGroupedDepth});
  const bool gated = work == Work::kGroupedRows && random() % 4 == 0;
  plan::GemmProblem problem = gated ? random_gated_problem(random) : random_problem(random);
  auto& [m, n, k, form] = problem.product;
  problem.work = work;
  problem.groups = pick<std::int64_t>(random, {1, 2, 7, 8, 64, 256});
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  if (work == Work::kGroupedRows) {
    problem.expected = (m + problem.groups - 1) / problem.groups;
  } else if (work == Work::kMaskedRows) {
    m = m / problem.groups + 1;
    problem.expected = up_to(m);
    form.c = Addend::kNone;
  } else {
    m = m / problem.groups + 1;
    k = (k / 128 + problem.groups) * 128;
    problem.expected = up_to(k);
    form.bias = Addend::kNone;
    problem.operands_fit_tma = true;
  }
  problem.c_is_out =
      form.out == DType::kFloat32 && form.c == Addend::kOutputType && random() % 2 == 0;
  return problem;
}

// The tiles of clusters.
inline config::TileSchedule tiles_of(const config::Sm90GemmConfig& config,
                                     const plan::GemmProblem& problem) {
  auto rows = static_cast<int>(problem.product.m), columns = static_cast<int>(problem.product.n);
  if (config.swapped) std::swap(rows, columns);
  return config::tile_schedule(rows, columns, config.cluster_tile_rows(),
                               config.cluster_tile_columns());
}

// ---- Plans.

template <typename Config>
plan::Plan<Config> plan_as(const plan::GemmProblem& problem, const plan::Gpu& gpu,
                           std::string_view candidate = {}) {
  plan::ProductPlan plan = plan::plan_product(problem, gpu, candidate);
  return {std::get<Config>(plan.config), std::move(plan.kernels)};
}

template <typename Config>
struct CandidateOf {
  std::string name;
  Config config;
};

template <typename Config>
std::vector<CandidateOf<Config>> candidates_as(const plan::GemmProblem& problem,
                                               const plan::Gpu& gpu) {
  std::vector<CandidateOf<Config>> candidates;
  for (const auto& [name, config] : plan::product_candidates(problem, gpu)) {
    candidates.push_back({name, std::get<Config>(config)});
  }
  return candidates;
}

/// A check of a table: why a configuration that is valid is none once a row has spoiled it.
template <typename Config>
auto refused_config(const Config& valid) {
  return refusing<Config>([=](auto&& spoil) {
    Config config = valid;
    spoil(config);
    const char* found = config.invalid_reason();
    return std::string(found == nullptr ? "" : found);
  });
}

using Sm90Candidate = CandidateOf<config::Sm90GemmConfig>;

inline plan::Plan<config::Sm90GemmConfig> sm90_plan(const plan::GemmProblem& problem,
                                                    std::string_view candidate = {}) {
  return plan_as<config::Sm90GemmConfig>(problem, plan::kHopper, candidate);
}

inline std::vector<Sm90Candidate> sm90_candidates(const plan::GemmProblem& problem) {
  return candidates_as<config::Sm90GemmConfig>(problem, plan::kHopper);
}

}  // namespace octofold::test
