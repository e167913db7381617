// Plans of the kernels of one file each: dot products, rotary embeddings, transposes, routing.
#include "kernels/attention/config/attention.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/convert.h"
#include "kernels/weight_only/config/config.h"
#include "plan/capability.h"
#include "plan/norm.h"
#include "plan/routing.h"
#include "plan/small.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using testing::Each;
using testing::Field;

// So many parts of `span` have each of so many, and none is empty.
void expect_parts_cover(std::int64_t size, std::int64_t span, std::int64_t parts) {
  EXPECT_GE(span * parts, size);
  EXPECT_LT(span * (parts - 1), std::max<std::int64_t>(size, 1));
}

std::vector<std::int64_t> blocks_of(const std::vector<KernelPlan>& kernels) {
  std::vector<std::int64_t> blocks;
  for (const KernelPlan& kernel : kernels) blocks.push_back(kernel.blocks);
  return blocks;
}

// Each element is in one part, whose blocks of 128 are whole, and one block of threads adds them;
// each slot is in one span, and the spans that there may be fit the workspace.
TEST(SmallKernelsTest, PartsCoverVectorsAndSpansSlots) {
  test::Random random;
  for (int i = 0; i < 20'000; ++i) {
    const auto size = static_cast<std::int64_t>(random()) << random() % 16 >> random() % 32;
    expect_parts_cover(size, config::dot_span(size), config::dot_parts(size));
    EXPECT_LE(config::dot_parts(size), config::kMostDotParts);
    EXPECT_EQ(config::dot_span(size) % kScaleBlock, 0);
    const std::int64_t slots = size % (std::int64_t{1} << random() % 31);
    const std::int64_t spans = config::slot_spans(slots);
    expect_parts_cover(slots, config::slots_per_span(slots), spans);
    EXPECT_LE(spans, config::kMostSpans);
    EXPECT_EQ(blocks_of(plan_sort({slots, 64}, kHopper).kernels),
              std::vector<std::int64_t>(spans > 1 ? 2 : 1, std::max<std::int64_t>(spans, 1)));
  }
}

TEST(SmallKernelsTest, OnePartOfADotProductIsTheResult) {
  for (const std::int64_t size : {0, 1, 8192}) {
    const DotPlan plan = plan_dot({.size = size}, kHopper);
    EXPECT_THAT(blocks_of(plan.kernels), ElementsAre(1));
    EXPECT_TRUE(plan.config.alone);
  }
  const DotPlan plan = plan_dot({.size = 8193, .b = DType::kFloat32, .a_blocks = true}, kHopper);
  EXPECT_THAT(blocks_of(plan.kernels), ElementsAre(2, 1));
  EXPECT_FALSE(plan.config.alone);
  EXPECT_EQ(plan.config.vector(), 4);
}

// Bits do not depend on the GPU.
TEST(SmallKernelsTest, ADotProductIsTheSameOnEveryGpu) {
  const DotProblem problem{.size = 10'000'000, .a = DType::kFloat16};
  const auto small = plan_dot(problem, gpu_of(75, 14)).kernels;
  const auto on_hopper = plan_dot(problem, kHopper).kernels;
  EXPECT_EQ(blocks_of(small), blocks_of(on_hopper));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(small[i].kernel, on_hopper[i].kernel);
}

// Blocks have a token for each of their parts, and all tokens one.
TEST(SmallKernelsTest, BlocksOfRotaryEmbeddingsCoverTheTokens) {
  for (const std::int64_t tokens : {1, 31, 32, 8192, 1'000'003}) {
    for (const std::int64_t heads : {1, 4, 5, 32, 128}) {
      for (const std::int64_t head_size : {2, 64, 80, 128, 256}) {
        const RotaryPlan plan =
            plan_rotary({.tokens = tokens, .heads = heads, .head_size = head_size}, kHopper);
        ASSERT_EQ(plan.kernels.size(), 1u);
        EXPECT_EQ(plan.config.invalid_reason(), nullptr);
        expect_parts_cover(tokens, plan.config.tokens_per_block(), plan.kernels[0].blocks);
        EXPECT_EQ(plan.config.vectors, head_size % 16 == 0);
      }
    }
  }
  EXPECT_FALSE(plan_rotary({.tokens = 4, .heads = 4, .head_size = 64, .is_aligned = false}, kHopper)
                   .config.vectors);
}

TEST(SmallKernelsTest, TilesOfATransposeCoverEachMatrix) {
  test::Random random;
  const auto below = [&](std::size_t limit) { return static_cast<std::int64_t>(random() % limit); };
  for (int i = 0; i < 20'000; ++i) {
    const TransposeProblem problem{.matrices = below(4),
                                   .rows = below(600),
                                   .cols = below(600),
                                   .x_is_aligned = below(2) == 1,
                                   .out_is_aligned = below(2) == 1};
    const TransposePlan plan = plan_transpose(problem, kHopper);
    const std::int64_t blocks =
        problem.matrices * ((problem.rows + 127) / 128) * ((problem.cols + 127) / 128);
    ASSERT_EQ(plan.kernels.size(), blocks > 0 ? 1u : 0u);
    EXPECT_THAT(plan.kernels, Each(Field(&KernelPlan::blocks, blocks)));
    EXPECT_EQ(plan.config.vector_loads, problem.x_is_aligned && problem.cols % 16 == 0);
    EXPECT_EQ(plan.config.vector_stores, problem.out_is_aligned && problem.rows % 16 == 0);
  }
}

TEST(SmallKernelsTest, AWarpHoldsTheExperts) {
  for (std::int64_t experts = 1; experts <= 1024; ++experts) {
    const auto kernels = plan_top_k({.tokens = 9, .experts = experts, .slots = 1}, kHopper).kernels;
    EXPECT_THAT(blocks_of(kernels), ElementsAre(3));
    EXPECT_EQ(kernels[0].threads, 128);
    const std::int64_t each = std::bit_ceil(static_cast<unsigned>((experts + 31) / 32));
    EXPECT_THAT(kernels[0].kernel, HasSubstr(core::format(".per_lane = {}}}", each)));
  }
}

TEST(SmallKernelsTest, SharedMemoryHoldsTheCountersOfASort) {
  for (std::int64_t experts = 0; experts <= 2048; ++experts) {
    const KernelPlan kernel = plan_sort({100, experts}, kHopper).kernels.at(0);
    const std::int64_t room =
        std::bit_ceil(static_cast<unsigned>(std::max<std::int64_t>(256, experts)));
    const config::SlotCountConfig config{.experts = static_cast<int>(room)};
    EXPECT_EQ(config.invalid_reason(), nullptr);
    EXPECT_EQ(kernel.threads, config.threads());
    EXPECT_LE(4 * (config.warps() + 1) * config.experts + 4 * 9, 48 * 1024);
  }
}

// No warp has no columns, and gradients of no columns are zeros.
TEST(SmallKernelsTest, RowsThatAreCombinedFillTheirThreads) {
  test::Random random;
  for (int i = 0; i < 20'000; ++i) {
    const auto cols = static_cast<std::int64_t>(random() % (1u << random() % 17));
    const auto in = static_cast<DType>(random() % 3), out = static_cast<DType>(random() % 3);
    const bool aligned = random() % 4 != 0;
    const auto kernels =
        plan_combine({.tokens = 5, .cols = cols, .in = in, .out = out, .is_aligned = aligned},
                     kHopper)
            .kernels;
    const auto gradient =
        plan_combine_gradient(
            {.tokens = 5, .cols = cols, .gradient = out, .in = in, .is_aligned = aligned}, kHopper)
            .kernels;
    ASSERT_EQ(kernels.size(), cols > 0 ? 1u : 0u);
    ASSERT_EQ(gradient.size(), 1u);
    if (cols == 0) continue;
    const int vector = config::shared_vector(in, out);
    const bool vectors = aligned && cols % vector == 0;
    for (const std::string& kernel : {kernels[0].kernel, gradient[0].kernel}) {
      EXPECT_THAT(kernel, HasSubstr(vectors ? ".vectors = true" : ".vectors = false"));
    }
    EXPECT_EQ(kernels[0].blocks, 5);
    EXPECT_LT((kernels[0].threads - 32) * vector * 2, cols);
  }
}

TEST(SmallKernelsTest, DotsOfActivationsTakeVectorsWhereRowsAreMadeOfThem) {
  const auto has_vectors = [](const ActivationDotsProblem& problem) {
    const std::string kernel = plan_activation_dots(problem, kHopper).kernels.at(0).kernel;
    return kernel.find(".vectors = true") != std::string::npos;
  };
  EXPECT_TRUE(has_vectors({.slots = 9, .cols = 64}));
  EXPECT_FALSE(has_vectors({.slots = 9, .cols = 60}));
  EXPECT_TRUE(has_vectors({.slots = 9, .cols = 60, .in = DType::kFloat32}));
  EXPECT_FALSE(has_vectors({.slots = 9, .cols = 64, .is_aligned = false}));
  EXPECT_EQ(plan_activation_dots({.slots = 9, .cols = 0}, kHopper).kernels[0].blocks, 2);  // zeros
}

TEST(SmallKernelsTest, SumsOfExpertsHaveABlockForSomeColumnsOfEach) {
  const auto blocks = [](const ExpertSumsProblem& problem) {
    return plan_expert_sums(problem, kHopper).kernels.at(0).blocks;
  };
  EXPECT_EQ(blocks({.experts = 8, .cols = 512}), 16);
  EXPECT_EQ(blocks({.experts = 8, .cols = 520}), 24);
  EXPECT_EQ(blocks({.experts = 8, .cols = 512, .in = DType::kFloat32}), 32);
  EXPECT_EQ(blocks({.experts = 8, .cols = 512, .activation = Activation::kSwiGlu}), 16);
}

TEST(SmallKernelsTest, NothingTakesNoKernel) {
  for (const auto& kernels :
       {plan_rotary({.tokens = 0, .heads = 4, .head_size = 64}, kHopper).kernels,
        plan_rotary({.tokens = 4, .heads = 0, .head_size = 64}, kHopper).kernels,
        plan_rotary({.tokens = 4, .heads = 4, .head_size = 0}, kHopper).kernels,
        plan_top_k({.experts = 8, .slots = 2}, kHopper).kernels,
        plan_top_k_gradient({.experts = 8, .slots = 2}, kHopper).kernels,
        plan_activation_dots({.slots = 0, .cols = 64}, kHopper).kernels,
        plan_expert_sums({.experts = 8, .cols = 0}, kHopper).kernels}) {
    EXPECT_THAT(kernels, testing::IsEmpty());
  }
}

// Each names the public function. capability_test.cpp has the GPUs that have no kernels.
TEST(SmallKernelsTest, WhatThereIsNoRoomForIsRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  const std::pair<std::function<void()>, const char*> refused[] = {
      {[] { plan_transpose({.matrices = 1 << 20, .rows = 1 << 14, .cols = 1 << 14}, kHopper); },
       "transpose: expected fewer than 2^31 tiles, got a matrix 17179869184×16384"},
      {[] { plan_rotary({.tokens = kMany, .heads = 1, .head_size = 2}, kHopper); },
       "rotary: expected fewer than 2^31 tokens"},
      {[] { plan_rotary({.tokens = 1, .heads = kMany / 2, .head_size = 2}, kHopper); }, "2^31"},
      {[] { plan_sort({1, 2049}, kHopper); },
       "sort_by_expert: expected at most 2048 experts on a GPU, got 2049"},
      {[] { plan_top_k({.tokens = 1, .experts = 1025, .slots = 1}, kHopper); },
       "top_k: expected at most 1024 experts on a GPU, got 1025"},
      {[] { plan_top_k({.tokens = 1, .experts = 64, .slots = 33}, kHopper); },
       "top_k: expected at most 32 slots of a token on a GPU, got 33"},
      {[] { plan_top_k({.tokens = 1, .experts = 80, .slots = 1, .groups = 40}, kHopper); },
       "top_k: expected at most 32 groups on a GPU, got 40"},
      {[] { plan_top_k_gradient({.tokens = 1, .experts = 64, .slots = 33}, kHopper); },
       "top_k_gradient: expected at most 32 slots of a token on a GPU, got 33"}};
  for (const auto& [call, says] : refused) {
    EXPECT_THAT(test::error_of(call, ErrorCode::kUnsupported), HasSubstr(says));
  }
  EXPECT_THAT(
      plan_rotary({.tokens = kMany - 1, .heads = 1, .head_size = 2}, kHopper).kernels.size(), 1u);
}

// A value for any field: of numbers and truth values one by which those are listed too that go
// without saying.
struct AnyField {
  template <typename T>
  constexpr operator T() const {
    if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(2);
    return T{};
  }
};

template <HasFields T, typename... Fields>
consteval bool lists_all_fields() {
  if constexpr (requires { T{Fields{}..., AnyField{}}; }) {
    return lists_all_fields<T, Fields..., AnyField>();
  } else {
    return field_count(T{Fields{}...}) == sizeof...(Fields);
  }
}

// The name of a kernel has the fields that its configuration lists: one that is left out would have
// its default on every GPU.
TEST(FieldsTest, AllAreListed) {
  EXPECT_TRUE(lists_all_fields<config::FewQueriesConfig>());
  EXPECT_TRUE(lists_all_fields<config::CastRule>());
  EXPECT_TRUE(lists_all_fields<config::CastFormat>());
  EXPECT_TRUE(lists_all_fields<config::TileCastConfig>());
  EXPECT_TRUE(lists_all_fields<config::WeightOnlyConfig>());
  EXPECT_TRUE(lists_all_fields<config::ValuesConfig>());
  EXPECT_TRUE(lists_all_fields<NormProblem>());
}

}  // namespace
}  // namespace octofold::plan
