// The architectures that have kernels of their own, each with a planner in a folder of its own; and
// which of them plans a problem for a GPU.
#pragma once

#include <algorithm>
#include <fmt/ranges.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "plan/attention.h"
#include "plan/product.h"
#include "plan/weight_only.h"

namespace octofold::plan {

/// A folder of kernels, and its planners: null for a family that it has none for.
struct Architecture {
  bool (*runs_on)(const Gpu& gpu);
  const ProductPlanner* products;
  const WeightOnlyPlanner* weight_only;
  const AttentionPlanner* attention;
};

/// All of them: where a GPU runs the kernels of several, the faster ones first.
std::span<const Architecture> architectures();

/// The planners of a family, for a GPU: the first that has a kernel for a problem is to plan it.
template <typename Planner>
std::vector<const Planner*> planners(const Planner* Architecture::* family, const Gpu& gpu) {
  std::vector<const Planner*> all;
  for (const Architecture& each : architectures()) {
    if (each.*family != nullptr && each.runs_on(gpu)) all.push_back(each.*family);
  }
  return all;
}

/// The candidates of the first planner that has any.
template <typename Planner, typename Problem>
typename Planner::Candidates candidates_by(const std::vector<const Planner*>& planners,
                                           const Problem& problem, const Gpu& gpu) {
  for (const Planner* planner : planners) {
    typename Planner::Candidates candidates = planner->candidates(problem, gpu);
    if (!candidates.empty()) return candidates;
  }
  return {};
}

/// The name of a configuration that is one of the candidates.
template <typename Config>
std::string name_among(const std::vector<Candidate<Config>>& candidates, const Config& config) {
  for (const Candidate<Config>& each : candidates) {
    if (each.config == config) return each.name;
  }
  core::fail(ErrorCode::kInternal, "the planned configuration is no candidate");
}

/// The names of those candidates of the first planner that has any which are reckoned to be the
/// fastest, the best first: at most so many.
template <typename Planner, typename Problem>
std::vector<std::string> best_names(const std::vector<const Planner*>& planners,
                                    const Problem& problem, const Gpu& gpu, std::size_t most) {
  std::vector<std::string> names;
  for (const Planner* planner : planners) {
    auto reckoned = planner->reckon(problem, gpu);
    if (reckoned.empty()) continue;
    std::ranges::stable_sort(reckoned, {}, [](const auto& each) { return each.time; });
    const auto candidates = planner->candidates(problem, gpu);
    for (const auto& each : reckoned) {
      std::string name = name_among(candidates, each.config);
      if (names.size() == most) break;
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
    }
    break;
  }
  return names;
}

/// The configuration that a planner chooses or, where `name` is not empty, its candidate of this
/// name; nothing where it has no kernel for the problem. Throws Error(kInvalidArgument), which
/// lists the candidates, where there is none of this name.
template <typename Problem, typename Config>
std::optional<Config> config_by(const TunablePlanner<Problem, Config>& planner,
                                const Problem& problem, const Gpu& gpu, std::string_view name) {
  if (name.empty()) return planner.choose(problem, gpu);
  std::vector<std::string> names;
  for (Candidate<Config>& each : planner.candidates(problem, gpu)) {
    if (each.name == name) return each.config;
    names.push_back(std::move(each.name));
  }
  if (names.empty()) return {};
  core::fail_argument(operation_of(problem), "candidate",
                      core::format("one of {}", fmt::join(names, ", ")), name);
}

/// The plan of the first planner that has a kernel for the problem; nothing where none has one.
template <typename Problem, typename Config>
std::optional<Plan<Config>> plan_by(
    const std::vector<const TunablePlanner<Problem, Config>*>& planners, const Problem& problem,
    const Gpu& gpu, std::string_view name) {
  for (const auto* planner : planners) {
    planner->require_sizes(problem);
    if (const std::optional<Config> config = config_by(*planner, problem, gpu, name)) {
      return Plan<Config>{*config, planner->kernels(problem, *config, gpu)};
    }
  }
  return {};
}

}  // namespace octofold::plan
