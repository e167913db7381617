// The planner's choices held against times that were measured: of each configuration at 496 shapes
// on an H200, 200 of them random (bench/gpu/gemm.py).
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/sm90/cost.h"
#include "plan/tuning.h"
#include "support/product_plans.h"

namespace octofold::plan {
namespace {

struct Measured {
  GemmProblem problem;
  std::map<std::string, double> times;  // by candidate, over the best one's; left out from 2 on
};

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> found;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) found.push_back(field);
  return found;
}

std::vector<Measured> measurements() {
  std::ifstream file(OCTOFOLD_TEST_CASES_DIR "/h200_gemm_times.csv");
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = fields(line);
  std::vector<Measured> found;
  while (std::getline(file, line)) {
    const std::vector<std::string> values = fields(line);
    Measured one;
    one.problem.product.m = std::stoll(values[0]);
    one.problem.product.n = std::stoll(values[1]);
    one.problem.product.k = std::stoll(values[2]);
    for (std::size_t i = 3; i < values.size(); ++i) {
      if (!values[i].empty()) one.times[names[i]] = std::stod(values[i]) / 1000;
    }
    found.push_back(std::move(one));
  }
  return found;
}

// For every number of rows that a choice is for.
TEST(Sm90CostTest, WhatTablesNameIsACandidate) {
  std::set<std::pair<std::int64_t, std::int64_t>> sizes;
  for (const auto& [problem, times] : measurements()) {
    sizes.insert({problem.product.n, problem.product.k});
  }
  for (const std::string_view gpu : kTunedGpus) {
    const Tuning table = shipped_tuning(kHopper, gpu);
    std::size_t found = 0;
    for (const auto& [n, k] : sizes) {
      for (int m = 1; m <= 256; ++m) {
        const GemmProblem problem = contiguous({.product = {m, n, k}});
        const std::string_view name = table.candidate(problem);
        if (name.empty()) continue;
        ++found;
        EXPECT_NO_THROW(test::sm90_plan(problem, name)) << m << ',' << n << ',' << k;
      }
    }
    EXPECT_GT(found, table.size()) << gpu;
  }
}

TEST(Sm90CostTest, ChoicesAreNearlyTheBestThatWasMeasured) {
  const std::vector<Measured> all = measurements();
  ASSERT_GT(all.size(), 400u);
  std::vector<double> ratios;
  for (const auto& [problem, times] : all) {
    const std::string name = planned_candidate(problem, kHopper);
    const auto found = times.find(name);
    ratios.push_back(found == times.end() ? 2.0 : found->second);
    if (ratios.back() > 1.15) {
      std::printf("%ld,%ld,%ld: %s takes %.2f of %s\n", static_cast<long>(problem.product.m),
                  static_cast<long>(problem.product.n), static_cast<long>(problem.product.k),
                  name.c_str(), ratios.back(),
                  std::ranges::min_element(times, {}, [](const auto& t) {
                    return t.second;
                  })->first.c_str());
    }
  }
  std::ranges::sort(ratios);
  const auto quantile = [&](double share) {
    return ratios[static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1))];
  };
  std::printf("median %.3f, 90 %% %.3f, 98 %% %.3f, worst %.3f\n", quantile(0.5), quantile(0.9),
              quantile(0.98), ratios.back());
  EXPECT_LE(quantile(0.5), 1.01);
  EXPECT_LE(quantile(0.9), 1.065);
  EXPECT_LE(quantile(0.98), 1.13);
  EXPECT_LE(ratios.back(), 1.20);
}

}  // namespace
}  // namespace octofold::plan
