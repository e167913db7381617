#include "plan/routing.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "plan/capability.h"

namespace octofold::plan {
namespace {

using config::ActivationDotsConfig;
using config::ceil_divide;
using config::CombineConfig;
using config::CombineGradientConfig;
using config::ExpertSumsConfig;
using config::SlotCountConfig;
using config::SlotPlaceConfig;
using config::TopKConfig;
using config::TopKGradientConfig;

void require_at_most(std::string_view operation, std::string_view what, std::int64_t count,
                     std::int64_t most) {
  if (count <= most) return;
  core::fail(ErrorCode::kUnsupported, "{}: expected at most {} {} on a GPU, got {}", operation,
             most, what, count);
}

template <typename Config>
RoutingPlan plan_of(std::string_view operation, const Config& config, std::int64_t blocks,
                    std::int64_t rows, std::int64_t cols) {
  RoutingPlan plan;
  if (blocks == 0) return plan;
  require_launchable(operation, blocks, rows, cols);
  plan.kernels.push_back(kernel_plan(operation, Config::kHeader, Config::kKernel, config, blocks));
  return plan;
}

void require_top_k(std::string_view operation, std::int64_t experts, std::int64_t slots) {
  require_at_most(operation, "experts", experts, TopKConfig::kMostExperts);
  require_at_most(operation, "slots of a token", slots, TopKConfig::kMostSlots);
}

// Experts of a lane: a power of two, so that there are few kernels.
int experts_per_lane(std::int64_t experts) {
  return std::bit_ceil(
      static_cast<unsigned>(std::max<std::int64_t>(ceil_divide(experts, std::int64_t{32}), 1)));
}

// Threads that hold a row of so many vectors, if they can.
int row_threads(std::int64_t cols, int vector) {
  const std::int64_t each = std::int64_t{vector} * CombineConfig::kVectorsPerThread;
  const std::int64_t threads = 32 * ceil_divide(cols, 32 * each);
  return static_cast<int>(std::clamp<std::int64_t>(threads, 32, CombineConfig::kMostThreads));
}

}  // namespace

RoutingPlan plan_top_k(const TopKProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "top_k";
  require_kernels(Operation::kRouting, kOperation, gpu);
  require_top_k(kOperation, problem.experts, problem.slots);
  require_at_most(kOperation, "groups", problem.groups, TopKConfig::kMostGroups);
  const TopKConfig config{.in = problem.in,
                          .scoring = problem.scoring,
                          .biased = problem.biased,
                          .grouped = problem.groups > 1,
                          .per_lane = experts_per_lane(problem.experts)};
  return plan_of(kOperation, config, ceil_divide(problem.tokens, TopKConfig::kTokens),
                 problem.tokens, problem.experts);
}

RoutingPlan plan_top_k_gradient(const TopKGradientProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "top_k_gradient";
  require_kernels(Operation::kRouting, kOperation, gpu);
  require_top_k(kOperation, problem.experts, problem.slots);
  const TopKGradientConfig config{
      .in = problem.in, .scoring = problem.scoring, .per_lane = experts_per_lane(problem.experts)};
  return plan_of(kOperation, config, ceil_divide(problem.tokens, TopKGradientConfig::kTokens),
                 problem.tokens, problem.experts);
}

RoutingPlan plan_sort(const SortProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "sort_by_expert";
  require_kernels(Operation::kRouting, kOperation, gpu);
  require_at_most(kOperation, "experts", problem.experts, SlotCountConfig::kMostExperts);
  const auto room = std::bit_ceil(static_cast<unsigned>(problem.experts));
  const SlotCountConfig count{.experts = static_cast<int>(std::max(room, 256u))};
  // Offsets are written of no slots too.
  const std::int64_t spans = std::max<std::int64_t>(config::slot_spans(problem.slots), 1);
  const SlotPlaceConfig place{.count = count, .alone = spans == 1};
  RoutingPlan plan;
  if (spans > 1) plan = plan_of(kOperation, count, spans, problem.slots, problem.experts);
  plan.kernels.push_back(kernel_plan(kOperation, place.kHeader, place.kKernel, place, spans));
  return plan;
}

RoutingPlan plan_combine(const CombineProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "combine";
  require_kernels(Operation::kRouting, kOperation, gpu);
  CombineConfig config{
      .in = problem.in, .out = problem.out, .weighted = problem.weighted, .adds = problem.adds};
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  config.row_threads = row_threads(problem.cols, config.vector());
  return plan_of(kOperation, config, problem.cols > 0 ? problem.tokens : 0, problem.tokens,
                 problem.cols);
}

RoutingPlan plan_combine_gradient(const CombineGradientProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "combine_gradient";
  require_kernels(Operation::kRouting, kOperation, gpu);
  CombineGradientConfig config{.gradient = problem.gradient, .in = problem.in};
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  config.row_threads = row_threads(problem.cols, config.vector());
  return plan_of(kOperation, config, problem.tokens, problem.tokens, problem.cols);
}

RoutingPlan plan_activation_dots(const ActivationDotsProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "activation_dots";
  require_kernels(Operation::kRouting, kOperation, gpu);
  ActivationDotsConfig config{.in = problem.in, .activation = problem.activation};
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  const std::int64_t blocks = ceil_divide(problem.slots, std::int64_t{config.kSlots});
  return plan_of(kOperation, config, blocks, problem.slots, problem.cols);
}

RoutingPlan plan_expert_sums(const ExpertSumsProblem& problem, const Gpu& gpu) {
  constexpr const char* kOperation = "expert_sums";
  require_kernels(Operation::kRouting, kOperation, gpu);
  ExpertSumsConfig config{.in = problem.in,
                          .activated = problem.activation.has_value(),
                          .activation = problem.activation.value_or(Activation::kSwiGlu)};
  config.vectors = problem.is_aligned && problem.cols % config.vector() == 0;
  const std::int64_t tiles = ceil_divide(problem.cols, std::int64_t{config.columns()});
  return plan_of(kOperation, config, problem.experts * tiles, problem.experts, problem.cols);
}

RoutingPlan plan_group_check(const config::GroupCheckConfig& config, const Gpu& gpu) {
  constexpr const char* kOperation = "a check of groups";
  require_kernels(Operation::kRouting, kOperation, gpu);
  return plan_of(kOperation, config, 1, 1, 1);
}

}  // namespace octofold::plan
