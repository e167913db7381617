// Plans of products, whose configurations are known to be of one kind.
#pragma once

#include "plan/product_planner.h"
#include "support/test.h"

namespace octofold::test {

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

/// Says why a configuration is invalid once spoil() has changed it; empty if it is valid.
template <typename Config>
class Spoiled {
 public:
  explicit Spoiled(const Config& valid) : valid_(valid) {
    EXPECT_EQ(valid.invalid_reason(), nullptr);
  }

  template <typename Spoil>
  std::string operator()(Spoil&& spoil) const {
    Config config = valid_;
    spoil(config);
    const char* found = config.invalid_reason();
    return found == nullptr ? "" : found;
  }

 private:
  Config valid_;
};

using Sm90Candidate = CandidateOf<config::Sm90GemmConfig>;

inline plan::Plan<config::Sm90GemmConfig> sm90_plan(const plan::GemmProblem& problem,
                                                    std::string_view candidate = {}) {
  return plan_as<config::Sm90GemmConfig>(problem, plan::kHopper, candidate);
}

inline std::vector<Sm90Candidate> sm90_candidates(const plan::GemmProblem& problem) {
  return candidates_as<config::Sm90GemmConfig>(problem, plan::kHopper);
}

}  // namespace octofold::test
