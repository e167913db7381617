// The kernels of products with FP8 weights and of attention, with the most sums for a thread, and
// how many products of tensor cores they have.
#pragma once

#include "plan/mma/planner.h"
#include "support/sound_kernel.h"

namespace octofold::test::inference {

using config::AttentionForm;
using config::KeyLayout;
using config::Sm90WeightOnlyConfig;
using config::WeightOnlyConfig;
using config::Work;
using plan::AttentionProblem;
using plan::WeightOnlyProblem;
using testing::Ge;
using testing::Gt;
using enum DType;
using enum Granularity;

// The 16-bit numbers that the GPU multiplies.
inline DType narrow(const Kernels& kernels) {
  return kernels.gpu().compute_major < 8 ? kFloat16 : kBFloat16;
}

template <typename Config>
ExpectedKernel weight_kernel(const Config& config, std::string_view header, std::string_view kernel,
                             SassOperation operation, const Counts& count) {
  plan::KernelPlan plan = plan::kernel_plan("test", header, kernel, config, 1);
  plan.shared_bytes = config.shared_bytes();
  return {.plan = plan, .static_shared_bytes = 0, .operations = {{operation, count}}};
}

inline void add(Kernels& kernels, const Sm90WeightOnlyConfig& config) {
  kernels.add(weight_kernel(config, config.kHeader, config.kKernel, SassOperation::kHgmma, Gt(0)));
}

inline void add(Kernels& kernels, const WeightOnlyConfig& config) {
  // Products of a half of 128: four along the depth; decoded ahead, two halves of 64, of which
  // the second is there with copies beside it and without. Before Ampere instructions take half.
  const int along = config.ahead ? 2 * 3 : 4 * config.halves_at_once();
  const int products = !config.on_tensor_cores()
                           ? 0
                           : along * config.column_tiles() * config.row_tiles() *
                                 (kernels.gpu().compute_major < 8 ? 2 : 1);
  kernels.add(weight_kernel(config, config.header(), config.kernel(), SassOperation::kHmma,
                            testing::Eq(products)));
}

inline void add(Kernels& kernels, const plan::WeightOnlyWork& work) { add(kernels, work.config); }

// The kernel that the planner takes, and the one that adds what blocks have that share the depth.
inline void add(Kernels& kernels, const WeightOnlyProblem& problem) {
  const plan::WeightOnlyPlan plan = plan_weight_only(problem, kernels.gpu());
  std::visit([&](const auto& choice) { add(kernels, choice); }, plan.config);
  for (std::size_t i = 1; i < plan.kernels.size(); ++i) {
    kernels.add({.plan = plan.kernels[i], .registers = testing::Le(64)});
  }
}

// Tiles with the most sums, whether the planner takes them or not.
inline void add_largest(Kernels& kernels, const WeightOnlyProblem& problem) {
  for (const auto& [config, splits] :
       plan::mma::warp_weight_only_candidates(problem, kernels.gpu())) {
    const bool is_largest =
        config.column_tiles() * config.row_tiles() >= 16 && config.stages == (config.ahead ? 3 : 2);
    if (is_largest) add(kernels, config);
  }
}

inline WeightOnlyProblem of_weights(std::int64_t rows, DType x, Granularity scales,
                                    std::int64_t size = 8192) {
  return {.rows = rows, .columns = size, .depth = size, .x = x, .out = x, .w_scales = scales};
}

inline void add_few_rows(Kernels& kernels) {
  const auto of = [](std::int64_t rows, DType x, Granularity scales) {
    WeightOnlyProblem problem = of_weights(rows, x, scales, 16384);
    problem.w = rows % 2 == 0 ? kE5M2 : kE4M3;
    problem.out = kFloat32;
    return problem;
  };
  for (const std::int64_t rows : {1, 4, 16}) {
    add(kernels, of(rows, narrow(kernels), kBlock128x128));
    add(kernels, of(rows, kFloat16, kTensor));
    add(kernels, of(rows, kFloat32, kBlock1x128));
  }
  WeightOnlyProblem codes = of(9, kE4M3, kBlock1x128);
  codes.x_blocks = true;
  add(kernels, codes);
  WeightOnlyProblem anywhere = of(3, narrow(kernels), kChannel);
  anywhere.is_aligned = anywhere.out_is_aligned = false;
  add(kernels, anywhere);
}

inline void add_many_rows(Kernels& kernels) {
  for (const std::int64_t rows : {64, 4096}) {
    add(kernels, of_weights(rows, narrow(kernels), kBlock1x128));
    add(kernels, of_weights(rows, kFloat16, kChannel));
  }
}

// Gradients by x.
inline void add_gradients(Kernels& kernels) {
  for (const Granularity scales : {kTensor, kBlock1x128, kBlock128x128}) {
    for (const std::int64_t rows : {2, 4096}) {
      WeightOnlyProblem problem = of_weights(rows, narrow(kernels), scales);
      problem.transposed = true;
      add(kernels, problem);
    }
  }
}

// The largest tiles, those of a depth that blocks share, and batch-invariant ones.
inline void add_other_tiles(Kernels& kernels) {
  for (const Granularity scales : {kTensor, kBlock128x128}) {
    add_largest(kernels, of_weights(4096, narrow(kernels), scales));
  }
  WeightOnlyProblem problem = of_weights(64, narrow(kernels), kChannel);
  problem.columns = 4096;
  problem.has_workspace = true;
  if (plan_weight_only(problem, kernels.gpu()).kernels.size() > 1) add(kernels, problem);
  for (const std::int64_t rows : {4, 1000}) {
    problem = of_weights(rows, narrow(kernels), kBlock128x128);
    problem.columns = 2112;
    problem.depth = 7168;
    problem.batch_invariant = true;
    add(kernels, problem);
  }
}

// Groups: from a token for each of a few experts up to many, and the largest tiles.
inline void add_weights_of_groups(Kernels& kernels) {
  WeightOnlyProblem problem = of_weights(65536, narrow(kernels), kBlock1x128);
  problem.work = Work::kGroupedRows;
  problem.groups = 8;
  problem.gathered = true;
  add_largest(kernels, problem);
  problem.columns = 2048;
  problem.depth = 4096;
  problem.groups = 128;
  problem.w_scales = kBlock128x128;
  for (const std::int64_t rows : {8, 1024, 65536}) {
    problem.rows = rows;
    add(kernels, problem);
  }
  problem.w_scales = kChannel;
  add(kernels, problem);
  problem.transposed = true;
  add(kernels, problem);
  problem.rows = 512;
  problem.is_aligned = problem.out_is_aligned = false;
  add(kernels, problem);
  problem.gathered = false;
  problem.is_aligned = problem.out_is_aligned = true;
  problem.work = Work::kMaskedRows;
  problem.expected = 8;
  add(kernels, problem);
}

// The tiles of Hopper's own kernel with the most sums for a thread, for each kind of scales.
inline void add_hopper_weights(Kernels& kernels) {
  const auto of = [](Sm90WeightOnlyConfig config, int columns, int rows, int warpgroups = 2) {
    config.tile_columns = columns;
    config.tile_rows = rows;
    config.warpgroups = warpgroups;
    config.stages = 2;
    return config;
  };
  const Sm90WeightOnlyConfig kinds[] = {
      {.w_blocks = true, .unit_sums = true},
      {.x = kFloat16, .out = kFloat32},
      {.transposed = true, .w_blocks = true, .unit_sums = true},
      {.w = kE5M2, .transposed = true, .depth_factors = true, .store_vectors = false}};
  for (const Sm90WeightOnlyConfig& kind : kinds) {
    add(kernels, of(kind, 256, 112));
    Sm90WeightOnlyConfig groups = of(kind, 128, kind.depth_factors ? 128 : 176);
    groups.work = Work::kGroupedRows;
    add(kernels, groups);
  }
  add(kernels, of(kinds[0], 192, 192, 3));
  add(kernels, of(kinds[0], 128, 256));
  add(kernels, Sm90WeightOnlyConfig{.w_blocks = true,
                                    .tile_columns = 64,
                                    .tile_rows = 64,
                                    .warpgroups = 1,
                                    .depth_groups = 3,
                                    .stages = 6,
                                    .split_k = 4});
}

inline void add_attention_kernels(Kernels& kernels, const AttentionProblem& problem) {
  for (const plan::KernelPlan& plan : plan_attention(problem, kernels.gpu()).kernels) {
    const auto has = [&](std::string_view text) {
      return plan.kernel.find(text) != std::string::npos;
    };
    // Kernels that add parts may spill, where a part ends, what they need there.
    const bool adds_parts = has(".split = false") && !has(".part_keys = 0,") &&
                            !has(core::format(".part_keys = {}", config::kAllPartKeys));
    ExpectedKernel kernel{.plan = plan};
    if (adds_parts) kernel.spills = kernels.gpu().compute_major < 8 ? 192 : 64;
    if (plan.header == config::WarpgroupLatentConfig::kHeader) {
      // All that a tile of keys takes, twice those with keys: none waits for the one before it.
      kernel.operations = {{SassOperation::kHgmma, 2 * 36 + 3 * 4}};
    } else if (plan.header == config::WarpgroupQueriesConfig::kHeader) {
      // At two places: of the first keys, and of the next ones beside values.
      const int scores = problem.allows_fp8_scores ? 2 * problem.form.head_size / 32 : 0;
      kernel.operations = {{SassOperation::kQgmma, scores}, {SassOperation::kHgmma, Ge(6)}};
    } else if (plan.header != config::CombineSplitsConfig::kHeader) {
      kernel.operations = {{SassOperation::kHmma, Ge(32)}};
    }
    kernels.add(kernel);
  }
}

// Also where keys are summed in parts, by blocks that share them and by ones that do not.
inline void add(Kernels& kernels, AttentionProblem problem) {
  add_attention_kernels(kernels, problem);
  problem.batch_invariant = true;
  add_attention_kernels(kernels, problem);
  problem.batch *= 1024;
  problem.keys *= 4;
  add_attention_kernels(kernels, problem);
}

inline AttentionProblem few(const AttentionForm& form) {
  return {.form = form, .batch = 8, .queries = 1, .keys = 8192, .heads = 32, .key_heads = 8};
}
inline AttentionProblem many(const AttentionForm& form) {
  return {.form = form, .batch = 8, .queries = 2048, .keys = 2048, .heads = 32, .key_heads = 8};
}

inline void add_few_queries(Kernels& kernels) {
  add(kernels, few({.layout = KeyLayout::kPaged, .k_scales = true, .v_scales = true}));
  add(kernels, few({.head_size = 64}));
  add(kernels, few({.head_size = 8, .copy_bytes = 8}));
  add(kernels, few({.v = kE5M2, .head_size = 256}));
  add(kernels, few({.k = kE5M2, .head_size = 72, .layout = KeyLayout::kPacked, .copy_bytes = 1}));
  if (kernels.gpu().compute_major < 8) return;
  add(kernels, few({.q = kBFloat16, .head_size = 192, .v_scales = true}));
}

inline void add_many_queries(Kernels& kernels) {
  add(kernels, many({.layout = KeyLayout::kPaged, .k_scales = true, .v_scales = true}));
  add(kernels, many({}));
  add(kernels, many({.v = kE5M2, .head_size = 256}));
  add(kernels, many({.k = kE5M2, .head_size = 72, .layout = KeyLayout::kPacked, .copy_bytes = 1}));
  if (kernels.gpu().compute_major < 8) return;
  add(kernels, many({.q = kBFloat16, .head_size = 128, .v_scales = true}));
  if (kernels.gpu().compute_major != 9) return;
  // The form that takes producers the most registers; keys that blocks share, of sequences one
  // behind another.
  add(kernels, many({.q = kBFloat16,
                     .head_size = 256,
                     .layout = KeyLayout::kPaged,
                     .k_scales = true,
                     .v_scales = true}));
  add(kernels, {.form = {.layout = KeyLayout::kPacked}, .queries = 100, .keys = 8192});
}

inline void add_values_of_another_size(Kernels& kernels) {
  add(kernels, many({.head_size = 192, .value_size = 128}));
}

// Heads of 512, and a latent of which Hopper has products of warpgroups.
inline void add_wide_heads(Kernels& kernels) {
  add(kernels, few({.head_size = 512, .k_scales = true, .v_scales = true}));
  AttentionProblem latent = few(
      {.head_size = 576, .value_size = 512, .shared_latent = true, .layout = KeyLayout::kPaged});
  latent.heads = 128;
  latent.key_heads = 1;
  add(kernels, latent);
}

// Sizes that leave producers and consumers the fewest registers; and scores in FP8, which Hopper
// alone has.
inline void add_hopper_attention(Kernels& kernels) {
  for (const auto& [head_size, value_size, pages] :
       {std::tuple{192, 128, true}, {192, 64, false}, {256, 128, true}, {64, 256, true}}) {
    add(kernels, many({.q = kBFloat16,
                       .head_size = head_size,
                       .value_size = value_size,
                       .layout = pages ? KeyLayout::kPaged : KeyLayout::kDense,
                       .k_scales = pages,
                       .v_scales = pages}));
  }
  for (const AttentionForm& form : {AttentionForm{},
                                    {.q = kBFloat16, .k = kE5M2, .head_size = 64},
                                    {.q = kBFloat16,
                                     .head_size = 96,
                                     .layout = KeyLayout::kPaged,
                                     .k_scales = true,
                                     .v_scales = true}}) {
    AttentionProblem problem = many(form);
    problem.allows_fp8_scores = true;
    add(kernels, problem);
  }
}

}  // namespace octofold::test::inference
