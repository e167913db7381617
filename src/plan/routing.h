// From routing to the kernels that carry it out. Pure: no CUDA, no memory, no state.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/routing/config/routing.h"
#include "plan/cast.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::plan {

struct TopKProblem {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t slots = 0;
  std::int64_t groups = 1;
  DType in = DType::kFloat32;
  Scoring scoring = Scoring::kSoftmax;
  bool biased = false;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("tokens", tokens);
    field("experts", experts);
    field("slots", slots);
    field("groups", groups);
    field("in", in);
    field("scoring", scoring);
    field("biased", biased);
  }
  friend bool operator==(const TopKProblem&, const TopKProblem&) = default;
};

struct TopKGradientProblem {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t slots = 0;
  DType in = DType::kFloat32;
  Scoring scoring = Scoring::kSoftmax;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("tokens", tokens);
    field("experts", experts);
    field("slots", slots);
    field("in", in);
    field("scoring", scoring);
  }
  friend bool operator==(const TopKGradientProblem&, const TopKGradientProblem&) = default;
};

struct SortProblem {
  std::int64_t slots = 0;  ///< of all tokens
  std::int64_t experts = 0;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("slots", slots);
    field("experts", experts);
  }
  friend bool operator==(const SortProblem&, const SortProblem&) = default;
};

struct CombineProblem {
  std::int64_t tokens = 0;
  std::int64_t cols = 0;
  DType in = DType::kBFloat16;
  DType out = DType::kBFloat16;
  bool weighted = true;
  bool adds = false;
  /// True if rows of all matrices begin at multiples of the vectors that are accessed together.
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("tokens", tokens);
    field("cols", cols);
    field("in", in);
    field("out", out);
    field("weighted", weighted);
    field("adds", adds);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const CombineProblem&, const CombineProblem&) = default;
};

struct CombineGradientProblem {
  std::int64_t tokens = 0;
  std::int64_t cols = 0;
  DType gradient = DType::kBFloat16;
  DType in = DType::kBFloat16;
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("tokens", tokens);
    field("cols", cols);
    field("gradient", gradient);
    field("in", in);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const CombineGradientProblem&, const CombineGradientProblem&) = default;
};

struct ActivationDotsProblem {
  std::int64_t slots = 0;  ///< of all tokens
  std::int64_t cols = 0;   ///< of the activation
  DType in = DType::kBFloat16;
  Activation activation = Activation::kSwiGlu;
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("slots", slots);
    field("cols", cols);
    field("in", in);
    field("activation", activation);
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const ActivationDotsProblem&, const ActivationDotsProblem&) = default;
};

struct ExpertSumsProblem {
  std::int64_t experts = 0;
  std::int64_t cols = 0;  ///< of the gradient
  DType in = DType::kBFloat16;
  std::optional<Activation> activation{};  ///< by whose input it is, if it is not as it lies
  bool is_aligned = true;

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("experts", experts);
    field("cols", cols);
    field("in", in);
    field("activated", activation.has_value());
    field("activation", activation.value_or(Activation::kSwiGlu));
    field("is_aligned", is_aligned);
  }
  friend bool operator==(const ExpertSumsProblem&, const ExpertSumsProblem&) = default;
};

using RoutingPlan = Plan<NoConfig>;

/// One kernel, or none where nothing is written. Throw Error(kUnsupported) for a GPU without
/// kernels, and for what no kernel holds.
RoutingPlan plan_top_k(const TopKProblem& problem, const Gpu& gpu);
RoutingPlan plan_top_k_gradient(const TopKGradientProblem& problem, const Gpu& gpu);
RoutingPlan plan_combine(const CombineProblem& problem, const Gpu& gpu);
RoutingPlan plan_combine_gradient(const CombineGradientProblem& problem, const Gpu& gpu);
RoutingPlan plan_activation_dots(const ActivationDotsProblem& problem, const Gpu& gpu);
RoutingPlan plan_expert_sums(const ExpertSumsProblem& problem, const Gpu& gpu);

/// Plans alike: counts of all spans and then places, or places alone where one span has all slots.
RoutingPlan plan_sort(const SortProblem& problem, const Gpu& gpu);

/// One block, whatever there is to look through.
RoutingPlan plan_group_check(const config::GroupCheckConfig& config, const Gpu& gpu);

}  // namespace octofold::plan
