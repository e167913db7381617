// The kernels that come compiled: enough of them, each once.
#include "plan/precompiled.h"

#include <gtest/gtest.h>
#include <set>
#include <string>
#include <string_view>

#include "plan/gpu.h"
#include "plan/tuning.h"
#include "support/product_plans.h"

namespace octofold::plan {
namespace {

std::set<std::string> names() {
  std::set<std::string> names;
  for (const KernelPlan& kernel : precompiled_kernels()) {
    EXPECT_TRUE(names.insert(kernel.kernel).second) << kernel.description;
    EXPECT_LE(kernel.shared_bytes, kHopper.shared_memory_per_block) << kernel.description;
  }
  return names;
}

TEST(PrecompiledKernelsTest, AllThatDeepSeekV3sDenseLayersNeed) {
  const std::set<std::string> precompiled = names();
  std::vector<Tuning> tables;
  for (const std::string_view gpu : kTunedGpus) tables.push_back(shipped_tuning(kHopper, gpu));
  const auto expect_ready = [&](const auto& plan) {
    EXPECT_TRUE(precompiled.contains(plan.kernels.front().kernel))
        << plan.kernels.front().description;
  };
  for (const auto& [n, k] :
       {std::pair(2112, 7168), std::pair(24'576, 1536), std::pair(32'768, 512),
        std::pair(7168, 16'384), std::pair(4096, 7168), std::pair(7168, 2048)}) {
    for (int m = 1; m <= 8192; m += m < 1100 ? 1 : 31) {
      const GemmProblem problem = contiguous({.product = {m, n, k}});
      expect_ready(test::sm90_plan(problem));
      for (const Tuning& table : tables) {
        const std::string_view name = table.candidate(problem);
        if (!name.empty()) expect_ready(test::sm90_plan(problem, name));
      }
    }
  }
}

// Of sizes that are not in its list, nearly all: what is missing is compiled.
TEST(PrecompiledKernelsTest, MostOfWhatOtherModelsNeed) {
  const std::set<std::string> precompiled = names();
  int found = 0, all = 0;
  for (const int n : {1024, 3072, 4608, 9216, 18'432, 151'936}) {
    for (const int k : {1024, 2304, 3584, 6144, 12'288}) {
      for (const int m : {1, 5, 16, 33, 100, 200, 300, 500, 900, 1500, 5000, 12'000}) {
        const KernelPlan kernel =
            test::sm90_plan(contiguous({.product = {m, n, k}})).kernels.front();
        found += precompiled.contains(kernel.kernel);
        ++all;
      }
    }
  }
  EXPECT_GE(found, all * 97 / 100) << "of " << all;
}

}  // namespace
}  // namespace octofold::plan
