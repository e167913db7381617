// Plans of products by warps: every problem gets one, and it fits the GPU.

#include "plan/capability.h"
#include "support/product_problems.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

constexpr int kAda = 89, kBlackwell = 120;

Plan<config::MmaGemmConfig> mma_plan(const GemmProblem& problem, const Gpu& gpu,
                                     std::string_view candidate = {}) {
  return test::plan_as<config::MmaGemmConfig>(problem, gpu, candidate);
}

GemmProblem random_mma_problem(test::Random& random, int number) {
  switch (number % 3) {
    case 0: return test::random_problem(random);
    case 1: return test::random_gated_problem(random);
    default: return test::random_grouped_problem(random);
  }
}

TEST(MmaPlanTest, EveryPlanOfRandomProblemsIsValid) {
  test::Random random;
  for (int i = 0; i < 4000; ++i) {
    const GemmProblem problem = random_mma_problem(random, i);
    const Gpu gpu = gpu_of(i % 2 == 0 ? kAda : kBlackwell, 1 + static_cast<int>(random() % 200));
    const auto plan = mma_plan(problem, gpu);
    const auto& [m, n, k, form] = problem.product;
    const config::MmaGemmConfig& config = plan.config;
    ASSERT_EQ(config.invalid_reason(), nullptr) << describe(problem);
    ASSERT_EQ(plan.kernels.size(), 1u);
    const KernelPlan& kernel = plan.kernels.front();
    EXPECT_EQ(config.form, form);
    EXPECT_EQ(config.gated, problem.gated);
    EXPECT_EQ(config.work, problem.work);
    EXPECT_EQ(kernel.kernel, kernel_name("mma_gemm_kernel", config));
    EXPECT_EQ(kernel.threads, config.threads());
    EXPECT_EQ(kernel.shared_bytes, config.shared_bytes());
    EXPECT_LE(kernel.shared_bytes, gpu.shared_memory_per_block);
    EXPECT_LE(kernel.shared_bytes * config.blocks_per_multiprocessor, 99 * 1024);
    EXPECT_EQ(config.load_bytes == 16, problem.operands_fit_tma);
    if (!problem.operands_fit_tma) {
      EXPECT_EQ(config.load_bytes == 4, problem.operands_fit_words);
    }
    if (config::has_groups(problem.work)) {
      EXPECT_GE(kernel.blocks, 1);
      EXPECT_LE(kernel.blocks, gpu.multiprocessors * config.blocks_per_multiprocessor);
      continue;
    }
    EXPECT_GE(kernel.blocks * config.tile_rows * config.tile_columns, m * n);
    EXPECT_LT((kernel.blocks / config::ceil_divide(n, config.tile_columns) - 1) * config.tile_rows,
              m);
  }
}

// Blocks are as many as run at one time, and at most the tiles that groups of any sizes can have.
TEST(MmaPlanTest, BlocksOfGroupsStay) {
  using enum config::Work;
  const auto blocks = [](config::Work work, std::int64_t m, std::int64_t groups) {
    return mma_plan(test::grouped_problem(work, m, 128, 1024, groups, 1), gpu_of(kAda, 100),
                    "64x64.w2x2.b2")
        .kernels.front()
        .blocks;
  };
  EXPECT_EQ(blocks(kGroupedRows, 3, 100), 3 * 2);  // a row to each of three
  EXPECT_EQ(blocks(kGroupedRows, 650, 8), (10 + 8) * 2);
  EXPECT_EQ(blocks(kGroupedRows, 1 << 17, 8), 200);
  EXPECT_EQ(blocks(kMaskedRows, 65, 8), 2 * 8 * 2);  // all rows that there is room for
  EXPECT_EQ(blocks(kGroupedDepth, 65, 8), 2 * 8 * 2);
  EXPECT_EQ(blocks(kGroupedDepth, 65, 100), 200);
}

TEST(MmaPlanTest, AllTilesAreThereForAllForms) {
  test::Random random;
  for (int i = 0; i < 200; ++i) {
    const GemmProblem problem = random_mma_problem(random, i);
    for (const int capability : {kAda, kBlackwell, 121}) {
      const Gpu gpu = gpu_of(capability, 100);
      std::set<std::string> names;
      for (const auto& [name, config] : test::candidates_as<config::MmaGemmConfig>(problem, gpu)) {
        EXPECT_TRUE(names.insert(name).second) << name;
        EXPECT_EQ(mma_plan(problem, gpu, name).config, config);
      }
      EXPECT_EQ(names.size(), problem.gated.exists ? 3u : 7u) << describe(problem);
    }
  }
}

TEST(MmaPlanTest, TilesAreAsHighAsThereAreRows) {
  const auto config = [](std::int64_t m, std::int64_t n) {
    return mma_plan({.product = {.m = m, .n = n, .k = 4096}}, gpu_of(kAda, 128)).config;
  };
  EXPECT_EQ(config(1, 4096).tile_rows, 16);
  EXPECT_EQ(config(16, 4096).tile_rows, 16);
  EXPECT_EQ(config(32, 8192).tile_rows, 32);
  EXPECT_EQ(config(8192, 8192).tile_rows, 128);
  EXPECT_EQ(config(8192, 8192).tile_columns, 128);
}

TEST(MmaPlanTest, TilesOfGroupsAreAsHighAsTheirRowsAreExpectedToBe) {
  const auto rows = [](std::int64_t expected, bool gated) {
    GemmProblem problem =
        test::grouped_problem(config::Work::kMaskedRows, 4096, 2048, 4096, 32, expected);
    if (gated) {
      problem = test::gated_problem(32 * expected, 2048, 4096);
      problem.work = config::Work::kGroupedRows;
      problem.groups = 32, problem.expected = expected;
    }
    return mma_plan(problem, gpu_of(kAda, 128)).config.tile_rows;
  };
  for (const bool gated : {false, true}) {
    EXPECT_EQ(rows(0, gated), 16);
    EXPECT_EQ(rows(16, gated), 16);
    EXPECT_EQ(rows(32, gated), 32);
    EXPECT_EQ(rows(1024, gated), gated ? 64 : 128);
  }
}

// A Hopper GPU that stands for an Ada GPU is planned for as one; and so is a later GPU that stands
// for Hopper, whose products of warpgroups no PTX has.
TEST(MmaPlanTest, TargetsOfALaterGpuHaveItToo) {
  const GemmProblem problem{.product = {.m = 64, .n = 64, .k = 64}};
  const Gpu ada = as_target(kHopper, kAda);
  EXPECT_EQ(mma_plan(problem, ada).config.form, GemmForm{});
  EXPECT_THROW(plan_product(problem, as_target(kHopper, 86)), Error);
  Gpu translated = kHopper;
  translated.is_translated = true;
  EXPECT_EQ(mma_plan(problem, translated).config.form, GemmForm{});
}

TEST(MmaPlanTest, RefusesWhatKernelsCannotCount) {
  const auto error = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return test::error_of(
        [&] { mma_plan({.product = {.m = m, .n = n, .k = k}}, gpu_of(kAda, 128)); },
        ErrorCode::kUnsupported);
  };
  EXPECT_THAT(error(1ll << 31, 16, 16), HasSubstr("2147483648×16×16"));
  EXPECT_THAT(error(16, 16, (1ll << 31) - 1), HasSubstr("16×16×2147483647"));
  EXPECT_THAT(error(1ll << 30, 1ll << 30, 16), HasSubstr("tiles of 16×64"));
  EXPECT_EQ(
      mma_plan({.product = {.m = 1ll << 30, .n = 64, .k = 16}}, gpu_of(kAda, 128)).kernels.size(),
      1u);
  // Rows of all groups' b.
  EXPECT_THAT(test::error_of(
                  [] {
                    mma_plan(test::grouped_problem(config::Work::kGroupedRows, 64, 1ll << 20, 64,
                                                   1ll << 11, 1),
                             gpu_of(kAda, 128));
                  },
                  ErrorCode::kUnsupported),
              HasSubstr("grouped_gemm: expected M, N, K"));
}

TEST(MmaPlanTest, SaysWhyNoKernelCanBeBuilt) {
  test::refused_config(config::MmaGemmConfig{})({
      {[](auto& c) { c.form.a.type = DType::kBFloat16; }, "FP8"},
      {[](auto& c) { c.form.out = DType::kE4M3; }, "D has to be"},
      {[](auto& c) { c.form.fast_accumulation = true; }, "promotion"},
      {[](auto& c) { c.work = config::Work::kArrivingRows; }, "arrive"},
      {[](auto& c) {
         c.work = config::Work::kGroupedDepth;
         c.form.bias = Addend::kFloat32;
       },
       "no bias"},
      {[](auto& c) { c.row_warps = 0; }, "warps"},
      {[](auto& c) { c.tile_rows = 40; }, "tile_rows"},
      {[](auto& c) { c.tile_columns = 32; }, "tile_columns"},
      {[](auto& c) {
         c.tile_rows = 16;
         c.row_warps = 1, c.column_warps = 8;
       },
       "same number"},
      {[](auto& c) { c.row_warps = c.column_warps = 1, c.tile_rows = 16; }, "swizzle"},
      {[](auto& c) { c.load_bytes = 8; }, "16, 4 or 1"},
      {[](auto& c) { c.stages = 1; }, "2 to 8 stages"},
      {[](auto& c) { c.column_warps = 1; }, "registers"},
      {[](auto& c) { c.stages = 4; }, "shared memory"},
  });
}

TEST(MmaPlanTest, SaysWhyNoGatedKernelCanBeBuilt) {
  test::refused_config(mma_plan(test::gated_problem(512, 512, 512), gpu_of(kAda, 100)).config)({
      {[](auto& c) { c.gated.activation = Activation::kGelu; }, "gate and up"},
      {[](auto& c) { c.form.out = DType::kBFloat16; }, "FP8"},
      {[](auto& c) { c.form.a.scales = Granularity::kChannel; }, "1x128 scales of A"},
      {[](auto& c) { c.form.c = Addend::kFloat32; }, "no C"},
      {[](auto& c) { c.tile_columns = 64; }, "whole 1x128"},
      {[](auto& c) { c.column_warps = 8; }, "4 warps"},
      {[](auto& c) { c.stages = 3; }, "shared memory"},
      {[](auto& c) { c.work = config::Work::kGroupedDepth; }, "no gate"},
  });
}

}  // namespace
}  // namespace octofold::plan
