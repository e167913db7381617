// Kernels, compiled for their GPU: no register leaves the register file.
#pragma once

#include "cuda/device.h"
#include "kernels/sm90/config/checks.h"
#include "plan/cast.h"
#include "plan/kernel_plan.h"
#include "support/kernel_sample.h"
#include "support/product_plans.h"
#include "support/sass.h"
#include "support/test.h"

namespace octofold::test {

// For scripts/kernel_resources.py: threads of a block, registers of a thread, bytes of shared
// memory.
inline void record_resources(const plan::KernelPlan& plan, const jit::ResourceUse& resources) {
  testing::Test::RecordProperty(plan.kernel,
                                core::format("{} {} {}", plan.threads, resources.registers,
                                             plan.shared_bytes + resources.shared_bytes));
}

// Compiles kernels of casts and norms, each one once. No exchange between lanes has to collect them
// first.
class Compiler {
 public:
  explicit Compiler(const plan::Gpu& gpu = plan::kHopper) : gpu_(gpu) {}

  /// `spills`: bytes that a thread may put into local memory.
  void expect_sound(const std::vector<plan::KernelPlan>& plans, int spills = 0) {
    for (const plan::KernelPlan& plan : plans) {
      if (!seen_.insert(plan.kernel).second) continue;
      const std::optional<jit::Binary> binary = compiled(cuda::program_of(plan, gpu_));
      if (!binary) continue;
      const jit::ResourceUse& resources = binary->resources;
      record_resources(plan, resources);
      EXPECT_LE(resources.spill_store_bytes, spills) << plan.kernel;
      EXPECT_LE(resources.stack_bytes, spills) << plan.kernel;
      EXPECT_LE(plan.shared_bytes + resources.shared_bytes, gpu_.shared_memory_per_block)
          << plan.kernel;
      EXPECT_EQ(count_operations(binary->image, SassOperation::kEndCollective), 0) << plan.kernel;
    }
  }

  void expect_sound(const plan::CastProblem& problem, int spills = 0) {
    expect_sound(plan::plan_cast(problem, gpu_).kernels, spills);
  }
  void expect_sound(const plan::ConvertProblem& problem) {
    expect_sound(plan::plan_convert(problem, gpu_).kernels);
  }

 private:
  plan::Gpu gpu_;
  std::set<std::string> seen_;
};

// A GEMM kernel: FP8 tensor cores do the work.
inline void expect_sound(const config::Sm90GemmConfig& config) {
  const std::string description = plan::describe(config);
  const std::optional<jit::Binary> compiled_now =
      compiled({config.kHeader, plan::kernel_name(config.kKernel, config),
                plan::architecture(plan::kHopper), description});
  if (!compiled_now) return;
  const jit::Binary& binary = *compiled_now;
  EXPECT_EQ(binary.resources.spill_store_bytes, 0) << description;
  EXPECT_EQ(binary.resources.stack_bytes, 0) << description;
  EXPECT_EQ(count_operations(binary.image, SassOperation::kLdl), 0) << description;
  EXPECT_EQ(count_operations(binary.image, SassOperation::kStl), 0) << description;
  // Four products of 32 values of K for each sub-tile; the compiler unrolls the loop of small
  // tiles, and the last of a group has a loop for one sub-tile of two.
  const int products = count_operations(binary.image, SassOperation::kQgmma);
  EXPECT_GE(products, 4 * config.sub_tiles()) << description;
  const bool has_loop_for_one = config.loads_sub_tiles() && config.row_sub_tiles() == 2;
  EXPECT_EQ(products % (has_loop_for_one ? 4 : 4 * config.sub_tiles()), 0) << description;
  EXPECT_LE(binary.resources.registers, config.registers_at_start()) << description;
}

// Every tiling of a product. Where threads load or store, and where registers are not scarce (TMA
// adds to C in memory, sums stay in the tensor core): every third one, by turns. Each meets each
// way to load, store and sum, and each granularity on either side.
inline void expect_every_tiling_sound(const plan::GemmProblem& problem) {
  const GemmForm& form = problem.product.form;
  const bool is_tma = problem.operands_fit_tma && problem.output_fits_tma;
  const int step = is_tma && !problem.c_is_out && !form.fast_accumulation ? 1 : 3;
  int turn = static_cast<int>(form.a.scales) + static_cast<int>(form.b.scales) +
             (problem.operands_fit_words ? 0 : 1) + (form.bias == Addend::kNone ? 0 : 2);
  const std::vector<Sm90Candidate> candidates = sm90_candidates(problem);
  EXPECT_FALSE(candidates.empty());
  for (const auto& [name, config] : candidates) {
    if (turn++ % step == 0) expect_sound(config);
  }
}

}  // namespace octofold::test
