#include "plan/attention.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention/config/params.h"
#include "kernels/attention/config/warpgroup_latent.h"
#include "kernels/attention/config/warpgroup_queries.h"
#include "kernels/attention/config/wide_heads.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::KeyLayout;
using enum DType;

bool is_combination(const KernelPlan& kernel) {
  return kernel.header == config::CombineSplitsConfig::kHeader;
}
bool is_for_wide(const KernelPlan& kernel) {
  return kernel.header == config::WideHeadsConfig::kHeader;
}
bool is_for_few(const KernelPlan& kernel) {
  return kernel.header == config::FewQueriesConfig::kHeader;
}

bool is_by_warpgroups(const KernelPlan& kernel) {
  return kernel.header == config::WarpgroupQueriesConfig::kHeader;
}

TEST(PlanAttentionTest, FewQueriesSplitKeys) {
  const AttentionProblem problem{
      .batch = 4, .queries = 1, .keys = 8192, .heads = 32, .key_heads = 8};
  const AttentionPlan plan = plan_attention(problem, kHopper);
  ASSERT_EQ(plan.kernels.size(), 2u);
  EXPECT_TRUE(is_for_few(plan.kernels[0]));
  EXPECT_THAT(plan.kernels[0].kernel, HasSubstr(".split = true"));
  EXPECT_EQ(plan.config.row_tiles, 1);
  EXPECT_EQ(plan.config.splits, 4);
  EXPECT_EQ(plan.kernels[0].blocks, 4 * 8 * 4);
  EXPECT_TRUE(is_combination(plan.kernels[1]));
  EXPECT_EQ(plan.kernels[1].blocks, 2 * 4 * 32 / 4);
  EXPECT_EQ(plan.kernels[1].shared_bytes, 0);
}

// Times of an H200 over the least of each problem's, in thousandths: decoding drawn at random, in
// every shape of a block and many splits. The planner's costs were fitted to some of them.
TEST(PlanAttentionTest, FewQueriesTakeNearlyTheLeastTimeThatWasMeasured) {
  std::ifstream file(OCTOFOLD_TEST_CASES_DIR "/h200_attention_times.csv");
  std::string line;
  std::getline(file, line);
  using Numbers = std::vector<std::int64_t>;
  std::map<Numbers, std::map<std::pair<std::int64_t, std::string>, double>> measured;
  long long batch, keys, heads, key_heads, size, splits, warps, stages, stage_keys, thousandths;
  while (std::getline(file, line)) {
    ASSERT_EQ(std::sscanf(line.c_str(), "%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld", &batch,
                          &keys, &heads, &key_heads, &size, &splits, &warps, &stages, &stage_keys,
                          &thousandths),
              10);
    const std::string config =
        core::format(".warps = {}, .stages = {}, .keys = {}}}", warps, stages, stage_keys);
    measured[{batch, keys, heads, key_heads, size}][{splits, config}] =
        static_cast<double>(thousandths) / 1000;
  }
  std::vector<double> ratios;
  for (const auto& [sizes, times] : measured) {
    AttentionProblem problem{.batch = sizes[0], .keys = sizes[1], .heads = sizes[2]};
    problem.key_heads = sizes[3];
    problem.form.q = kBFloat16;
    problem.form.head_size = problem.form.value_size = static_cast<int>(sizes[4]);
    const AttentionPlan plan = plan_attention(problem, kHopper);
    for (const auto& [choice, ratio] : times) {
      if (choice.first == plan.config.splits &&
          plan.kernels[0].kernel.ends_with(choice.second + ">"))
        ratios.push_back(ratio);
    }
  }
  // Some numbers of splits were not timed.
  ASSERT_GT(ratios.size(), measured.size() / 2);
  std::ranges::sort(ratios);
  const double mean =
      std::reduce(ratios.begin(), ratios.end()) / static_cast<double>(ratios.size());
  std::printf("%zu of %zu: mean %.3f, 95 %% %.3f, worst %.3f\n", ratios.size(), measured.size(),
              mean, ratios[ratios.size() * 95 / 100], ratios.back());
  EXPECT_LE(mean, 1.02);
  EXPECT_LE(ratios[ratios.size() * 95 / 100], 1.10);
}

TEST(PlanAttentionTest, ManyQueriesThatFillTheGpuDoNot) {
  const AttentionProblem problem{
      .batch = 1, .queries = 8192, .keys = 8192, .heads = 32, .key_heads = 8};
  const AttentionPlan plan = plan_attention(problem, as_target(kHopper, 80));
  ASSERT_EQ(plan.kernels.size(), 1u);
  EXPECT_EQ(plan.kernels[0].header, config::ManyQueriesConfig::kHeader);
  EXPECT_THAT(plan.kernels[0].kernel, HasSubstr(".split = false"));
  EXPECT_EQ(plan.config.splits, 1);
  EXPECT_EQ(plan.config.row_tiles, 8192 * 4 / 256);
  EXPECT_EQ(plan.kernels[0].blocks, 8 * plan.config.row_tiles);
}

TEST(PlanAttentionTest, HopperHasProductsOfWarpgroups) {
  AttentionProblem problem{.batch = 1, .queries = 8192, .keys = 8192, .heads = 32, .key_heads = 8};
  const AttentionPlan plan = plan_attention(problem, kHopper);
  ASSERT_EQ(plan.kernels.size(), 1u);
  EXPECT_TRUE(is_by_warpgroups(plan.kernels[0]));
  EXPECT_EQ(plan.config.row_tiles, 171);  // of 192 rows
  EXPECT_EQ(plan.kernels[0].blocks, kHopper.multiprocessors);
  problem.form = {.head_size = 136, .copy_bytes = 8};
  EXPECT_EQ(plan_attention(problem, kHopper).config.row_tiles, 256);  // of 128
  // Few queries are bound by memory.
  problem.queries = 8;
  EXPECT_TRUE(is_for_few(plan_attention(problem, kHopper).kernels[0]));
  problem.queries = 8192;
  Gpu translated = kHopper;  // for a later GPU, which has none
  translated.is_translated = true;
  EXPECT_FALSE(is_by_warpgroups(plan_attention(problem, translated).kernels[0]));
}

// Warpgroups by what sums take, keys of a stage by what is left, stages by what fits.
TEST(PlanAttentionTest, WarpgroupsTakeValuesOfAnySize) {
  const auto plan_of = [](config::AttentionForm form) {
    form.copy_bytes = 8;
    return plan_attention(
        {.form = form, .batch = 8, .queries = 2048, .keys = 2048, .heads = 32, .key_heads = 8},
        kHopper);
  };
  const auto expect_tiles = [&](int head_size, int value_size, bool scales, const char* tiles) {
    const AttentionPlan plan = plan_of(
        {.head_size = head_size, .value_size = value_size, .k_scales = scales, .v_scales = scales});
    EXPECT_THAT(plan.kernels[0].kernel, HasSubstr(tiles)) << head_size << ", " << value_size;
  };
  for (const bool scales : {false, true}) {
    const char* const of_128 = scales ? ".warpgroups = 3, .keys = 48, .stages = 10"
                                      : ".warpgroups = 3, .keys = 64, .stages = 8";
    expect_tiles(128, 128, scales, of_128);
    expect_tiles(64, 128, scales, of_128);
    expect_tiles(96, 72, scales, of_128);
    expect_tiles(256, 192, scales, ".warpgroups = 2, .keys = 64, .stages = 4");
  }
  // DeepSeek-V3's prefill.
  expect_tiles(192, 128, false, ".warpgroups = 3, .keys = 64, .stages = 6");
  expect_tiles(192, 128, true, ".warpgroups = 3, .keys = 48, .stages = 10");
  expect_tiles(128, 64, false, ".warpgroups = 3, .keys = 96, .stages = 8");
  expect_tiles(128, 64, true, ".warpgroups = 3, .keys = 64, .stages = 8");
  expect_tiles(256, 64, false, ".warpgroups = 3, .keys = 64, .stages = 6");
  expect_tiles(64, 256, false, ".warpgroups = 2, .keys = 64, .stages = 8");
  expect_tiles(192, 256, true, ".warpgroups = 2, .keys = 48, .stages = 8");
  for (int head_size = 8; head_size <= 256; head_size += 8) {
    for (int value_size = 8; value_size <= 256; value_size += 8) {
      for (const KeyLayout layout : {KeyLayout::kDense, KeyLayout::kPaged}) {
        const AttentionPlan plan =
            plan_of({.head_size = head_size, .value_size = value_size, .layout = layout});
        EXPECT_TRUE(is_by_warpgroups(plan.kernels[0])) << head_size << ", " << value_size;
        EXPECT_LE(plan.kernels[0].shared_bytes, kHopper.shared_memory_per_block);
      }
    }
  }
  EXPECT_TRUE(is_for_wide(plan_of({.head_size = 128, .value_size = 264}).kernels[0]));
  const config::WarpgroupQueriesConfig wide_values{.form = {.value_size = 264, .copy_bytes = 8}};
  EXPECT_THAT(wide_values.invalid_reason(), HasSubstr("sums of 256 numbers"));
  const config::WarpgroupQueriesConfig keys_alone{.stages = 5};
  EXPECT_THAT(keys_alone.invalid_reason(), HasSubstr("pairs of stages"));
}

// Only products of warpgroups with whole heads in a chain of 128 numbers have FP8 scores.
TEST(PlanAttentionTest, Fp8ScoresWhereTheyAreAllowedAndThereAreProducts) {
  const auto has_fp8_scores = [](const config::AttentionForm& form, std::int64_t queries,
                                 const Gpu& gpu, bool allowed = true) {
    const AttentionPlan plan = plan_attention({.form = form,
                                               .allows_fp8_scores = allowed,
                                               .queries = queries,
                                               .keys = 4096,
                                               .heads = 8,
                                               .key_heads = 8},
                                              gpu);
    return plan.kernels[0].kernel.find(".fp8_scores = true") != std::string::npos;
  };
  for (const int size : {8, 64, 96, 128}) {
    const config::AttentionForm form{.head_size = size, .copy_bytes = 8};
    EXPECT_TRUE(has_fp8_scores(form, 4096, kHopper)) << size;
    EXPECT_FALSE(has_fp8_scores(form, 4096, kHopper, false));
    EXPECT_FALSE(has_fp8_scores(form, 32, kHopper));
    EXPECT_FALSE(has_fp8_scores(form, 4096, as_target(kHopper, 89)));
  }
  EXPECT_TRUE(has_fp8_scores(
      {.q = kBFloat16, .k = kE5M2, .layout = KeyLayout::kPaged, .k_scales = true}, 33, kHopper));
  EXPECT_TRUE(has_fp8_scores({.head_size = 64, .value_size = 256}, 4096, kHopper));
  EXPECT_FALSE(has_fp8_scores({.head_size = 136, .copy_bytes = 8}, 4096, kHopper));
  EXPECT_FALSE(has_fp8_scores({.head_size = 192, .value_size = 128}, 4096, kHopper));
  EXPECT_FALSE(has_fp8_scores({.head_size = 512}, 4096, kHopper));
  const config::WarpgroupQueriesConfig two_chains{.form = {.head_size = 136, .copy_bytes = 8},
                                                  .fp8_scores = true};
  EXPECT_THAT(two_chains.invalid_reason(), HasSubstr("one chain of products"));
}

// 17 would be 136 blocks on 132 multiprocessors, and take two rounds.
TEST(PlanAttentionTest, SplitsOfManyRowsAreWholeWaves) {
  const AttentionProblem problem{
      .batch = 1, .queries = 9, .keys = 17841, .heads = 32, .key_heads = 8};
  EXPECT_EQ(plan_attention(problem, kHopper).config.splits, 16);
}

TEST(PlanAttentionTest, TilesAreSmallerWhereThereAreFew) {
  const auto tiles_of = [](std::int64_t batch, std::int64_t queries, int target) {
    return plan_attention({.batch = batch, .queries = queries, .keys = 4096},
                          as_target(kHopper, target))
        .config.row_tiles;
  };
  EXPECT_EQ(tiles_of(512, 256, 80), 1);
  EXPECT_EQ(tiles_of(1024, 128, 80), 1);  // of 128 rows
  EXPECT_EQ(tiles_of(1, 16384, 80), 128);
  EXPECT_EQ(tiles_of(1, 65536, 80), 512);
  EXPECT_EQ(tiles_of(1, 128 * 1024, 80), 512);
  EXPECT_EQ(tiles_of(1, 128 * 1024, 75), 1024);
}

TEST(PlanAttentionTest, KeysThatAreFewAreNotSplit) {
  EXPECT_EQ(plan_attention({.keys = 256, .heads = 8}, kHopper).config.splits, 1);
  EXPECT_GT(plan_attention({.keys = 4096, .heads = 8}, kHopper).config.splits, 1);
  EXPECT_EQ(plan_attention({.keys = 0, .heads = 8}, kHopper).config.splits, 1);
}

// DeepSeek-V3's decode: 128 heads on one latent are two tiles of 64 rows.
TEST(PlanAttentionTest, SplitsOfALatentFillTheGpuInWaves) {
  const auto plan_of = [](std::int64_t batch, std::int64_t keys, const Gpu& gpu = kHopper) {
    return plan_attention({.form = {.head_size = 576, .value_size = 512, .shared_latent = true},
                           .batch = batch,
                           .keys = keys,
                           .heads = 128},
                          gpu);
  };
  for (const auto& [batch, splits] : {std::pair{1, 64}, {16, 4}, {40, 3}, {64, 1}, {128, 1}}) {
    const AttentionPlan plan = plan_of(batch, 8192);
    EXPECT_EQ(plan.kernels[0].header, config::WarpgroupLatentConfig::kHeader);
    EXPECT_EQ(plan.config.row_tiles, 2);
    EXPECT_EQ(plan.config.splits, splits) << batch;
    EXPECT_EQ(plan.kernels[0].blocks, std::min(2 * batch * splits, kHopper.multiprocessors));
  }
  EXPECT_EQ(plan_of(16, 100).config.splits, 1);
  const AttentionPlan of_ada = plan_of(16, 8192, as_target(kHopper, 89));
  EXPECT_TRUE(is_for_wide(of_ada.kernels[0]));
  EXPECT_EQ(of_ada.config.row_tiles, 4);
}

TEST(PlanAttentionTest, NoQueriesTakeNoKernels) {
  EXPECT_TRUE(plan_attention({.queries = 0}, kHopper).kernels.empty());
  EXPECT_TRUE(plan_attention({.batch = 0}, kHopper).kernels.empty());
}

// A problem of any form, of which there are 1 to 8 queries' heads to each key head.
AttentionProblem draw(test::Random& random) {
  const auto up_to = [&](unsigned most) { return 1 + static_cast<std::int64_t>(random() % most); };
  const int head_size = 8 * static_cast<int>(up_to(72));
  const int value_size = random() % 2 ? std::min(head_size, 512) : 8 * static_cast<int>(up_to(64));
  const bool is_latent = value_size <= head_size && random() % 2 == 0;
  AttentionProblem problem{.form = {.k = is_latent || random() % 2 ? kE4M3 : kE5M2,
                                    .head_size = head_size,
                                    .value_size = value_size,
                                    .shared_latent = is_latent,
                                    .layout = static_cast<KeyLayout>(random() % 3),
                                    .k_scales = random() % 2 == 0,
                                    .v_scales = random() % 2 == 0,
                                    .copy_bytes = head_size % 16 + value_size % 16 == 0 ? 16 : 8},
                           .allows_fp8_scores = random() % 2 == 0,
                           .batch = up_to(100),
                           .queries = up_to(3000),
                           .has_query_offsets = random() % 2 == 0,
                           .keys = up_to(100'000) - 1,
                           .key_heads = up_to(8)};
  problem.heads = problem.key_heads * up_to(8);
  return problem;
}
Gpu draw_gpu(test::Random& random) {
  return as_target(kHopper, std::array{75, 80, 86, 89, 90}[random() % 5]);
}

// Each row is in a tile of its sequence wherever sequences begin, splits fit into the workspace,
// and configurations into the GPU.
TEST(PlanAttentionTest, OverManyProblems) {
  test::Random random;
  for (int i = 0; i < 3000; ++i) {
    const Gpu gpu = draw_gpu(random);
    const AttentionProblem problem = draw(random);
    const auto [head_size, value_size] = std::pair(problem.form.head_size, problem.form.value_size);
    const AttentionPlan plan = plan_attention(problem, gpu);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_LE(kernel.shared_bytes, gpu.shared_memory_per_block) << kernel.description;
    const std::int64_t rows = problem.all_queries() * problem.heads;
    EXPECT_GE(plan.config.splits, 1);
    EXPECT_LE(plan.config.splits, config::attention_splits(rows));
    EXPECT_EQ(plan.kernels.size(), plan.config.splits > 1 ? 2u : 1u);
    // However queries are dealt out to sequences.
    EXPECT_EQ(is_for_wide(kernel), std::max(head_size, value_size) > 256 &&
                                       kernel.header != config::WarpgroupLatentConfig::kHeader);
    const std::int64_t tile = kernel.header == config::ManyQueriesConfig::kHeader
                                  ? kernel.threads / 2
                              : is_by_warpgroups(kernel) ? kernel.threads / 2 - 64
                                                         : 16;  // at least
    std::int64_t pieces = plan.config.row_tiles * problem.key_heads * plan.config.splits;
    if (problem.has_query_offsets) {
      EXPECT_GE(plan.config.row_tiles, problem.batch);
    } else {
      EXPECT_LE(plan.config.row_tiles,
                problem.queries * problem.heads / problem.key_heads / tile + 1);
      pieces *= problem.batch;
    }
    const bool stays =
        is_by_warpgroups(kernel) || kernel.header == config::WarpgroupLatentConfig::kHeader;
    EXPECT_EQ(kernel.blocks, stays ? std::min<std::int64_t>(pieces, gpu.multiprocessors) : pieces);
  }
}

// Returns what a kernel computes for a row: its name, without who has which rows and parts, and how
// many at a time.
std::string arithmetic_of(const KernelPlan& kernel) {
  std::string name = kernel.kernel;
  for (const char* const field :
       {".split = ", ".part_keys = ", ".row_count = ", ".warpgroups = ", ".stages = "}) {
    const std::size_t at = name.find(field);
    if (at == std::string::npos) continue;
    name.erase(at, name.find_first_of(",}", at) - at);
  }
  return name;
}

// Whatever batch and queries are, up to the border between few rows and many.
TEST(PlanAttentionTest, BatchInvariantOnesComputeTheSameForEachRow) {
  test::Random random;
  for (int i = 0; i < 300; ++i) {
    const Gpu gpu = draw_gpu(random);
    AttentionProblem problem = draw(random);
    problem.batch_invariant = true;
    const std::int64_t group = problem.heads / problem.key_heads;
    std::set<std::string> of_few, of_many;
    for (int j = 0; j < 40; ++j) {
      problem.batch = 1 + static_cast<std::int64_t>(random() % 300);
      problem.queries = 1 + static_cast<std::int64_t>(random() % (j % 2 ? 8192 : 40));
      problem.has_query_offsets = random() % 2 == 0;
      problem.keys = 1024 * (1 + static_cast<std::int64_t>(random() % (j % 3 ? 10 : 200)));
      const AttentionPlan plan = plan_attention(problem, gpu);
      const std::int64_t rows = problem.all_queries() * problem.heads;
      const bool combines = is_combination(plan.kernels.back());
      EXPECT_EQ(combines, plan.config.splits > 1);
      // Blocks share keys only where each part has its place.
      if (combines) {
        EXPECT_THAT(plan.kernels.back().kernel, HasSubstr(".in_order = true"));
        EXPECT_TRUE(config::attention_has_parts_apart(rows, problem.keys));
        EXPECT_LE(plan.config.splits, config::attention_parts(problem.keys));
      }
      const std::size_t kernels = plan.kernels.size() - (combines ? 1 : 0);
      const bool all_few = problem.queries * group <= config::kMostRowsOfFew;
      ASSERT_EQ(kernels, problem.has_query_offsets && !all_few ? 2u : 1u);
      for (std::size_t kernel = 0; kernel < kernels; ++kernel) {
        const std::string& name = plan.kernels[kernel].kernel;
        EXPECT_LE(plan.kernels[kernel].shared_bytes, gpu.shared_memory_per_block);
        EXPECT_THAT(name, Not(HasSubstr(".part_keys = 0,")));  // which rounds otherwise
        const bool is_few = kernels == 2 ? kernel == 0 : all_few;
        (is_few ? of_few : of_many).insert(arithmetic_of(plan.kernels[kernel]));
        if (kernels == 1) continue;
        EXPECT_THAT(name, HasSubstr(core::format("(octofold::config::AttentionForm::row_count)({})",
                                                 kernel + 1)));
      }
    }
    EXPECT_LE(of_few.size(), 1u);
    EXPECT_LE(of_many.size(), 1u);
  }
}

TEST(PlanAttentionTest, BatchInvariantOnesSplitKeysWhereThatPays) {
  AttentionProblem problem{
      .batch = 1, .queries = 1, .keys = 8192, .heads = 32, .key_heads = 8, .batch_invariant = true};
  const auto splits = [&] { return plan_attention(problem, kHopper).config.splits; };
  EXPECT_EQ(splits(), 8);  // of 1024 keys
  problem.batch = 64;
  EXPECT_EQ(splits(), 8);
  problem.keys = 1024;
  EXPECT_EQ(splits(), 1);
  problem.keys = 1 << 20;  // too many for the workspace
  EXPECT_EQ(splits(), 1);
  problem.batch = 1;
  EXPECT_EQ(splits(), 1024);
  problem.queries = 64;
  problem.keys = 8192;
  EXPECT_EQ(splits(), 3);  // of 3072 keys
  problem.queries = 2048;  // fill the GPU
  EXPECT_EQ(splits(), 1);
}

}  // namespace
}  // namespace octofold::plan
