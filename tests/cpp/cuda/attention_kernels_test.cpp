// The kernels of attention, compiled for each architecture: no register leaves the register file,
// shared memory is what a block can have, tensor cores do the products.
#include "cuda/device.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "plan/attention.h"
#include "support/nvrtc.h"
#include "support/sass.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::KeyLayout;

class AttentionKernelsTest : public test::NvrtcGpuTest {
 protected:
  // Returns such a GPU as it describes itself, rather than as a target of a later one.
  static plan::Gpu gpu_of(int compute_capability) {
    plan::Gpu gpu = plan::kHopper;
    if (compute_capability <= 90) {
      gpu = plan::as_target(plan::kHopper, compute_capability);
    } else {
      gpu.compute_major = compute_capability / 10;
      gpu.compute_minor = compute_capability % 10;
      gpu.shared_memory_per_block = 99 * 1024;
    }
    gpu.is_translated = false;
    return gpu;
  }

  // Also where keys are summed in parts, by blocks that share them and by ones that do not.
  static void expect_sound(const plan::AttentionProblem& problem) {
    expect_kernels_sound(problem);
    plan::AttentionProblem in_parts = problem;
    in_parts.batch_invariant = true;
    expect_kernels_sound(in_parts);
    in_parts.batch *= 1024;
    in_parts.keys *= 4;
    expect_kernels_sound(in_parts);
  }
  static void expect_kernels_sound(const plan::AttentionProblem& problem) {
    const plan::Gpu gpu = gpu_of(GetParam());
    for (const plan::KernelPlan& plan : plan_attention(problem, gpu).kernels) {
      const std::optional<jit::Binary> compiled = test::compiled(program_of(plan, gpu));
      if (!compiled) continue;
      const jit::Binary& binary = *compiled;
      const auto& resources = binary.resources;
      SCOPED_TRACE(plan.kernel);
      test::record_resources(plan, resources);
      // Kernels that add parts may spill, where a part ends, what they need there.
      const bool adds_parts = plan.kernel.find(".split = false") != std::string::npos &&
                              plan.kernel.find(core::format(
                                  ".part_keys = {}", config::kAllPartKeys)) == std::string::npos &&
                              plan.kernel.find(".part_keys = 0,") == std::string::npos;
      const int most_spilled = !adds_parts ? 0 : GetParam() < 80 ? 192 : 64;
      EXPECT_LE(resources.spill_store_bytes, most_spilled);
      EXPECT_LE(resources.stack_bytes, most_spilled);
      EXPECT_LE(resources.registers, 255);
      EXPECT_LE(plan.shared_bytes + resources.shared_bytes, gpu.shared_memory_per_block);
      EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kEndCollective), 0);
      if (plan.header == config::WarpgroupLatentConfig::kHeader) {
        // All that a tile of keys takes, twice those with keys: none waits for the one before it.
        EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kHgmma),
                  2 * 36 + 3 * 4);
      } else if (plan.header == config::WarpgroupQueriesConfig::kHeader) {
        // At two places: of the first keys, and of the next ones beside values.
        const int scores = problem.allows_fp8_scores ? 2 * problem.form.head_size / 32 : 0;
        EXPECT_EQ(test::count_operations(binary.image, test::SassOperation::kQgmma), scores);
        EXPECT_GE(test::count_operations(binary.image, test::SassOperation::kHgmma), 6);
      } else if (plan.header != config::CombineSplitsConfig::kHeader) {
        EXPECT_GE(test::count_operations(binary.image, test::SassOperation::kHmma), 32);
      }
    }
  }

  static plan::AttentionProblem few(const config::AttentionForm& form) {
    return {.form = form, .batch = 8, .queries = 1, .keys = 8192, .heads = 32, .key_heads = 8};
  }
  static plan::AttentionProblem many(const config::AttentionForm& form) {
    return {.form = form, .batch = 8, .queries = 2048, .keys = 2048, .heads = 32, .key_heads = 8};
  }
};

using enum DType;

TEST_P(AttentionKernelsTest, OfFewQueries) {
  expect_sound(few({.layout = KeyLayout::kPaged, .k_scales = true, .v_scales = true}));
  expect_sound(few({.head_size = 64}));
  expect_sound(few({.head_size = 8, .copy_bytes = 8}));
  expect_sound(few({.v = kE5M2, .head_size = 256}));
  expect_sound(few({.k = kE5M2, .head_size = 72, .layout = KeyLayout::kPacked, .copy_bytes = 1}));
  if (GetParam() >= 80) expect_sound(few({.q = kBFloat16, .head_size = 192, .v_scales = true}));
}

TEST_P(AttentionKernelsTest, OfManyQueries) {
  expect_sound(many({.layout = KeyLayout::kPaged, .k_scales = true, .v_scales = true}));
  expect_sound(many({}));
  expect_sound(many({.v = kE5M2, .head_size = 256}));
  expect_sound(many({.k = kE5M2, .head_size = 72, .layout = KeyLayout::kPacked, .copy_bytes = 1}));
  if (GetParam() >= 80) expect_sound(many({.q = kBFloat16, .head_size = 128, .v_scales = true}));
  if (GetParam() == 90) {  // what takes producers the most registers
    expect_sound(many({.q = kBFloat16,
                       .head_size = 256,
                       .layout = KeyLayout::kPaged,
                       .k_scales = true,
                       .v_scales = true}));
    // Keys that blocks share, of sequences one behind another.
    expect_sound({.form = {.layout = KeyLayout::kPacked}, .queries = 100, .keys = 8192});
  }
}

// The sizes that leave consumers and producers the fewest registers.
TEST_P(AttentionKernelsTest, OfValuesOfAnotherSize) {
  expect_sound(many({.head_size = 192, .value_size = 128}));
  if (GetParam() != 90) return;
  const auto expect_of = [](int head_size, int value_size, bool with_pages) {
    expect_sound(many({.q = kBFloat16,
                       .head_size = head_size,
                       .value_size = value_size,
                       .layout = with_pages ? KeyLayout::kPaged : KeyLayout::kDense,
                       .k_scales = with_pages,
                       .v_scales = with_pages}));
  };
  expect_of(192, 128, true);
  expect_of(192, 64, false);
  expect_of(256, 128, true);
  expect_of(64, 256, true);
}

// Hopper alone has them: the sizes, layouts and types that differ most.
TEST_P(AttentionKernelsTest, OfFp8Scores) {
  if (GetParam() != 90) GTEST_SKIP() << "has none";
  const auto expect_sound_with_fp8 = [](const config::AttentionForm& form) {
    plan::AttentionProblem problem = many(form);
    problem.allows_fp8_scores = true;
    expect_sound(problem);
  };
  expect_sound_with_fp8({});
  expect_sound_with_fp8({.q = kBFloat16, .k = kE5M2, .head_size = 64});
  expect_sound_with_fp8({.q = kBFloat16,
                         .head_size = 96,
                         .layout = KeyLayout::kPaged,
                         .k_scales = true,
                         .v_scales = true});
}

// Heads of 512, and a latent of which Hopper has products of warpgroups.
TEST_P(AttentionKernelsTest, OfWideHeads) {
  expect_sound(few({.head_size = 512, .k_scales = true, .v_scales = true}));
  plan::AttentionProblem latent = few(
      {.head_size = 576, .value_size = 512, .shared_latent = true, .layout = KeyLayout::kPaged});
  latent.heads = 128;
  latent.key_heads = 1;
  expect_sound(latent);
}

INSTANTIATE_TEST_SUITE_P(Nvrtc, AttentionKernelsTest, testing::Values(75, 80, 86, 89, 90, 120),
                         test::sm_name);

}  // namespace
}  // namespace octofold::cuda
