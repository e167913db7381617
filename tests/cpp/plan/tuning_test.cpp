// Tables of choices, and the kernels that come compiled: enough of them, each once.
#include "plan/tuning.h"

#include "core/format.h"
#include "plan/gpu.h"
#include "plan/precompiled.h"
#include "plan/problem_text.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::Work;
using test::error_of;

constexpr const char* kName = "NVIDIA H200";
const GemmProblem kProduct{.product = {.m = 64, .n = 7168, .k = 2048}};

const WeightOnlyProblem kWeights = as_allocated(WeightOnlyProblem{
    .rows = 32, .columns = 4096, .depth = 4096, .w_scales = Granularity::kChannel});

std::string table(std::string_view products, std::string_view gpu = kName,
                  std::string_view version = OCTOFOLD_VERSION) {
  return core::format(
      R"({{"octofold": "{}", "gpu": "{}", "compute_capability": "9.0", "multiprocessors": 132,
          "products": {}}})",
      version, gpu, products);
}

std::string one(std::string_view candidate) {
  return table(core::format(R"({{"{}": {{"candidate": "{}", "microseconds": 7}}}})",
                            text_of(kProduct), candidate));
}

// Each finds its own choice and no other's. How something is cast makes no difference.
TEST(TuningTest, EveryKindOfProductIsFound) {
  const GemmProblem problems[] = {
      as_allocated(kProduct),
      as_allocated(test::cast_problem(64, 7168, 2048)),
      as_allocated(test::gated_problem(64, 7168, 2048)),
      as_allocated(test::grouped_problem(Work::kGroupedRows, 64, 7168, 2048, 4, 16)),
      as_allocated(test::grouped_problem(Work::kMaskedRows, 64, 7168, 2048, 4, 16)),
      as_allocated(test::grouped_problem(Work::kGroupedDepth, 64, 7168, 2048, 4, 16))};
  std::string products = core::format(R"("{}": {{"candidate": "weights"}})", text_of(kWeights));
  for (std::size_t i = 0; i < std::size(problems); ++i) {
    products += core::format(R"(, "{}": {{"candidate": "{}"}})", text_of(problems[i]), i);
  }
  const Tuning tuning(table("{" + products + "}"), kHopper, kName);
  for (std::size_t i = 0; i < std::size(problems); ++i) {
    EXPECT_EQ(tuning.candidate(problems[i]), core::format("{}", i));
  }
  GemmProblem gated = problems[2];
  gated.gated.power_of_two = true;
  EXPECT_EQ(tuning.candidate(gated), "2");
  GemmProblem grouped = problems[3];
  grouped.expected = 60;
  EXPECT_EQ(tuning.candidate(grouped), "3");
  EXPECT_EQ(tuning.candidate(kWeights), "weights");
  WeightOnlyProblem weights = kWeights;
  weights.has_workspace = false;
  EXPECT_EQ(tuning.candidate(weights), "");
}

TEST(TuningTest, AChoiceMayBeOfSeveralNumbersOfRows) {
  const std::string of_64 = text_of(kProduct);
  GemmProblem product = kProduct;
  product.product.m = 96;
  const std::string text = table(
      core::format(R"({{"{}": {{"candidate": "x", "rows_from": 49}}, "{}": {{"candidate": "y"}}}})",
                   of_64, text_of(product)));
  const Tuning tuning(text, kHopper, kName);
  EXPECT_EQ(tuning.size(), 2u);
  const auto candidate = [&](std::int64_t m) {
    product.product.m = m;
    return tuning.candidate(as_allocated(product));
  };
  for (const std::int64_t m : {49, 50, 64}) EXPECT_EQ(candidate(m), "x") << m;
  EXPECT_EQ(candidate(96), "y");
  for (const std::int64_t m : {1, 48, 65, 95, 97}) EXPECT_EQ(candidate(m), "") << m;
}

TEST(TuningTest, TheLibrarysTablesAreOfWholeGpus) {
  for (const std::string_view gpu : kTunedGpus) {
    EXPECT_GT(shipped_tuning(kHopper, gpu).size(), 20u) << gpu;
  }
  EXPECT_EQ(shipped_tuning(kHopper, "NVIDIA H2000").size(), 0u);
  Gpu part = kHopper;
  part.multiprocessors = 60;
  EXPECT_EQ(shipped_tuning(part, kName).size(), 0u);
  EXPECT_EQ(shipped_tuning(gpu_of(80, 132), kName).size(), 0u);
}

TEST(TuningTest, WhetherCIsOutMakesNoDifference) {
  GemmProblem product = kProduct;
  product.product.form.out = DType::kFloat32;
  product.product.form.c = Addend::kFloat32;
  const std::string text =
      table(core::format(R"({{"{}": {{"candidate": "x"}}}})", text_of(product)));
  const Tuning tuning(text, kHopper, kName);
  GemmProblem problem = as_allocated(product);
  for (const bool c_is_out : {false, true}) {
    problem.c_is_out = c_is_out;
    EXPECT_EQ(tuning.candidate(problem), "x");
  }
}

TEST(TuningTest, OtherGpusAndVersionsAreRefused) {
  const auto error = [](const std::string& text, const Gpu& gpu = kHopper,
                        std::string_view name = kName) {
    return error_of([&] { Tuning(text, gpu, name); }, ErrorCode::kUnsupported);
  };
  EXPECT_THAT(error(table("{}", "NVIDIA H100 80GB HBM3")),
              HasSubstr("'gpu': expected NVIDIA H200, got NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(error(table("{}", kName, "0.0.9")), HasSubstr("'octofold': expected"));
  Gpu other = kHopper;
  other.multiprocessors = 114;
  EXPECT_THAT(error(table("{}"), other), HasSubstr("'multiprocessors': expected 114, got 132"));
  EXPECT_THAT(error(table("{}"), gpu_of(89, 132)),
              HasSubstr("'compute_capability': expected 8.9, got 9.0"));
}

TEST(TuningTest, WhatIsNoTableIsSaid) {
  const auto error = [](const std::string& text) {
    return error_of([&] { Tuning(text, kHopper, kName); }, ErrorCode::kBadFormat);
  };
  EXPECT_THAT(error(""), HasSubstr("expected a JSON object, got no JSON"));
  EXPECT_THAT(error("{"), HasSubstr("no JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("got array"));
  EXPECT_THAT(error("{}"), HasSubstr("'octofold': expected a value, got none"));
  EXPECT_THAT(error(R"({"octofold": 1})"), HasSubstr("'octofold': expected text, got number"));
  EXPECT_THAT(error(table("[]")), HasSubstr("'products': expected an object, got array"));
  EXPECT_THAT(error(table(R"({"x": 3})")), HasSubstr("'x': expected an object, got number"));
  EXPECT_THAT(error(table(R"({"x": {}})")), HasSubstr("'candidate': expected a value, got none"));
  const auto no_problem = [] {
    Tuning(table(R"({"gemm: m y": {"candidate": "x"}})"), kHopper, kName);
  };
  EXPECT_THAT(error_of(no_problem, ErrorCode::kInvalidArgument), HasSubstr("got y"));
  EXPECT_THAT(error(std::string(100'000, '[')), HasSubstr("no JSON"));
  EXPECT_THAT(error(std::string(100'000, '[') + std::string(100'000, ']')), HasSubstr("array"));
}

std::set<std::string> names() {
  std::set<std::string> names;
  for (const KernelPlan& kernel : precompiled_kernels(kHopper)) {
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
      const GemmProblem problem = as_allocated({.product = {m, n, k}});
      expect_ready(test::sm90_plan(problem));
      for (const Tuning& table : tables) {
        const std::string_view name = table.candidate(problem);
        if (!name.empty()) expect_ready(test::sm90_plan(problem, name));
      }
    }
  }
}

// Nearly all kernels for sizes that are not in its list are precompiled; the others are compiled.
TEST(PrecompiledKernelsTest, MostOfWhatOtherModelsNeed) {
  const std::set<std::string> precompiled = names();
  int found = 0, all = 0;
  for (const int n : {1024, 3072, 4608, 9216, 18'432, 151'936}) {
    for (const int k : {1024, 2304, 3584, 6144, 12'288}) {
      for (const int m : {1, 5, 16, 33, 100, 200, 300, 500, 900, 1500, 5000, 12'000}) {
        const KernelPlan kernel =
            test::sm90_plan(as_allocated({.product = {m, n, k}})).kernels.front();
        found += precompiled.contains(kernel.kernel);
        ++all;
      }
    }
  }
  EXPECT_GE(found, all * 97 / 100) << "of " << all;
}

}  // namespace
}  // namespace octofold::plan
