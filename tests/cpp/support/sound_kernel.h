// Kernels, compiled for their GPU: registers do not leave the register file, and tensor cores do
// the work.
#pragma once

#include "cuda/device.h"
#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "plan/attention.h"
#include "plan/cast.h"
#include "plan/norm.h"
#include "plan/routing.h"
#include "plan/small.h"
#include "plan/weight_only.h"
#include "support/kernel_sample.h"
#include "support/product_problems.h"
#include "support/sass.h"
#include "support/test.h"

namespace octofold::test {

using Counts = testing::Matcher<int>;

/// A kernel and what its machine code may be.
struct ExpectedKernel {
  plan::KernelPlan plan;
  int spills = 0;  ///< bytes that a thread may put into local memory
  Counts registers = testing::Le(255);
  Counts static_shared_bytes = testing::_;
  bool may_collect_lanes = false;  ///< before an exchange, of different branches
  std::vector<std::pair<SassOperation, Counts>> operations{};
};

inline void expect_sound(const ExpectedKernel& kernel, const plan::Gpu& gpu) {
  const plan::KernelPlan& plan = kernel.plan;
  const std::optional<jit::Binary> binary = compiled(cuda::program_of(plan, gpu));
  if (!binary) return;
  SCOPED_TRACE(plan.description + "\n" + plan.kernel);
  const jit::ResourceUse& resources = binary->resources;
  const int shared_bytes = plan.shared_bytes + resources.shared_bytes;
  // For scripts/kernel_resources.py.
  testing::Test::RecordProperty(
      plan.kernel, core::format("{} {} {} {}", plan.threads, resources.registers, shared_bytes,
                                count_instructions(binary->image)));
  EXPECT_LE(resources.spill_store_bytes, kernel.spills);
  EXPECT_LE(resources.stack_bytes, kernel.spills);
  EXPECT_THAT(resources.registers, kernel.registers);
  EXPECT_LE(resources.registers * plan.threads, 65536);
  EXPECT_THAT(resources.shared_bytes, kernel.static_shared_bytes);
  EXPECT_LE(shared_bytes, gpu.shared_memory_per_block);
  if (kernel.spills == 0) {
    EXPECT_EQ(count_operations(binary->image, SassOperation::kLdl), 0);
    EXPECT_EQ(count_operations(binary->image, SassOperation::kStl), 0);
  }
  if (!kernel.may_collect_lanes) {
    EXPECT_EQ(count_operations(binary->image, SassOperation::kEndCollective), 0);
  }
  if (gpu.compute_capability() >= 90) {  // for the kernels before it
    EXPECT_GE(count_operations(binary->image, SassOperation::kAcqbulk), 1);
  }
  for (const auto& [operation, count] : kernel.operations) {
    EXPECT_THAT(count_operations(binary->image, operation), count);
  }
}

/// The kernels of a family on a GPU, each of them once.
class Kernels {
 public:
  Kernels(const plan::Gpu& gpu, int spills) : gpu_(gpu), spills_(spills) {}

  const plan::Gpu& gpu() const { return gpu_; }
  auto begin() const { return kernels_.begin(); }
  auto end() const { return kernels_.end(); }

  void add(ExpectedKernel kernel) {
    kernel.spills = std::max(kernel.spills, spills_);
    if (names_.insert(kernel.plan.kernel).second) kernels_.push_back(std::move(kernel));
  }
  void add(const std::vector<plan::KernelPlan>& plans) {
    for (const plan::KernelPlan& plan : plans) add({.plan = plan});
  }

  // Without a target it writes numbers.
  void add(const plan::CastProblem& problem) {
    const bool is_cast = problem.to_rows || problem.to_transposed;
    add((is_cast ? plan_cast(problem, gpu_) : plan_values(problem, gpu_)).kernels);
  }
  void add(const plan::ConvertProblem& problem) { add(plan_convert(problem, gpu_).kernels); }
  void add(const plan::TransposeProblem& problem) { add(plan_transpose(problem, gpu_).kernels); }
  void add(const plan::NormProblem& problem) { add(plan_norm(problem, gpu_).kernels); }
  void add(const plan::NormBackwardProblem& problem) {
    add(plan_norm_backward(problem, gpu_).kernels);
  }
  void add(const plan::RotaryProblem& problem) { add(plan_rotary(problem, gpu_).kernels); }
  void add(const plan::TopKProblem& problem) { add(plan_top_k(problem, gpu_).kernels); }
  void add(const plan::TopKGradientProblem& problem) {
    add(plan_top_k_gradient(problem, gpu_).kernels);
  }
  void add(const plan::SortProblem& problem) { add(plan_sort(problem, gpu_).kernels); }
  void add(const plan::CombineProblem& problem) { add(plan_combine(problem, gpu_).kernels); }
  void add(const plan::CombineGradientProblem& problem) {
    add(plan_combine_gradient(problem, gpu_).kernels);
  }
  void add(const plan::ActivationDotsProblem& problem) {
    add(plan_activation_dots(problem, gpu_).kernels);
  }
  void add(const plan::ExpertSumsProblem& problem) { add(plan_expert_sums(problem, gpu_).kernels); }
  void add(const plan::DotProblem& problem) { add(plan_dot(problem, gpu_).kernels); }

 private:
  plan::Gpu gpu_;
  int spills_;
  std::vector<ExpectedKernel> kernels_;
  std::set<std::string> names_;
};

/// Each combination of an element of each list.
template <typename... Lists>
auto combinations(const Lists&... lists) {
  std::vector<std::tuple<typename Lists::value_type...>> all;
  const auto add = [&](auto&& self, auto... chosen) -> void {
    constexpr std::size_t kNext = sizeof...(chosen);
    if constexpr (kNext == sizeof...(Lists)) {
      all.emplace_back(chosen...);
    } else {
      for (const auto& one : std::get<kNext>(std::tie(lists...))) self(self, chosen..., one);
    }
  };
  add(add);
  return all;
}

}  // namespace octofold::test
