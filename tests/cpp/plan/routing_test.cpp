#include "plan/routing.h"

#include "plan/attention.h"
#include "plan/cast.h"
#include "plan/norm.h"
#include "plan/small.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

TEST(OrderTest, IntegersHaveTheOrderOfTheirNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending{-kInfinity, -3e38f, -1.5f, -1e-45f,  0.0f,
                                     1e-45f,     1.0f,   3e38f, kInfinity};
  unsigned before = 0;
  for (const float number : ascending) {
    const unsigned order = config::order_of_bits(std::bit_cast<unsigned>(number));
    EXPECT_GT(order, before) << number;
    EXPECT_EQ(std::bit_cast<float>(config::bits_of_order(order)), number);
    before = order;
  }
  for (const unsigned nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u}) {
    EXPECT_GT(config::order_of_bits(nan), before);
    EXPECT_TRUE(
        std::isnan(std::bit_cast<float>(config::bits_of_order(config::order_of_bits(nan)))));
  }
  EXPECT_EQ(config::order_of_bits(0x80000000u), config::order_of_bits(0));
}

TEST(PlanTopKTest, AWarpHoldsTheExperts) {
  for (std::int64_t experts = 1; experts <= 1024; ++experts) {
    const TopKProblem problem{.tokens = 9, .experts = experts, .slots = 1};
    const RoutingPlan plan = plan_top_k(problem, kHopper);
    ASSERT_EQ(plan.kernels.size(), 1u);
    EXPECT_EQ(plan.kernels[0].blocks, 3);
    EXPECT_EQ(plan.kernels[0].threads, 128);
    const std::int64_t each = std::bit_ceil(static_cast<unsigned>((experts + 31) / 32));
    EXPECT_THAT(plan.kernels[0].kernel, HasSubstr(core::format(".per_lane = {}}}", each)));
  }
  EXPECT_TRUE(plan_top_k({.experts = 8, .slots = 2}, kHopper).kernels.empty());
  EXPECT_TRUE(plan_top_k_gradient({.experts = 8, .slots = 2}, kHopper).kernels.empty());
}

// Each slot is in one span, and the spans that there may be fit the workspace.
TEST(PlanSortTest, SpansCoverTheSlots) {
  test::Random random;
  for (int i = 0; i < 20'000; ++i) {
    const auto slots = static_cast<std::int64_t>(random() % (std::size_t{1} << random() % 31));
    const std::int64_t span = config::slots_per_span(slots), spans = config::slot_spans(slots);
    EXPECT_GE(span * spans, slots);
    EXPECT_LT(span * (spans - 1), std::max<std::int64_t>(slots, 1));
    EXPECT_LE(spans, config::kMostSpans);
    const RoutingPlan plan = plan_sort({slots, 64}, kHopper);
    ASSERT_EQ(plan.kernels.size(), spans > 1 ? 2u : 1u);
    EXPECT_EQ(plan.kernels.back().blocks, std::max<std::int64_t>(spans, 1));
    EXPECT_EQ(plan.kernels.front().blocks, plan.kernels.back().blocks);
  }
}

TEST(PlanSortTest, SharedMemoryHoldsTheCounters) {
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

TEST(PlanCombineTest, RowsFillTheirThreads) {
  test::Random random;
  for (int i = 0; i < 20'000; ++i) {
    CombineProblem problem{.tokens = 5,
                           .cols = static_cast<std::int64_t>(random() % (1u << random() % 17)),
                           .in = static_cast<DType>(random() % 3),
                           .out = static_cast<DType>(random() % 3),
                           .is_aligned = random() % 4 != 0};
    const RoutingPlan plan = plan_combine(problem, kHopper);
    ASSERT_EQ(plan.kernels.size(), problem.cols > 0 ? 1u : 0u);
    const RoutingPlan gradient = plan_combine_gradient({.tokens = 5,
                                                        .cols = problem.cols,
                                                        .gradient = problem.out,
                                                        .in = problem.in,
                                                        .is_aligned = problem.is_aligned},
                                                       kHopper);
    ASSERT_EQ(gradient.kernels.size(), 1u);  // zeros of no columns
    if (problem.cols == 0) continue;
    const int vector = config::shared_vector(problem.in, problem.out);
    const bool vectors = problem.is_aligned && problem.cols % vector == 0;
    const auto* words = vectors ? ".vectors = true" : ".vectors = false";
    EXPECT_THAT(plan.kernels[0].kernel, HasSubstr(words));
    EXPECT_THAT(gradient.kernels[0].kernel, HasSubstr(words));
    EXPECT_EQ(plan.kernels[0].blocks, 5);
    // No warp without columns.
    EXPECT_LT((plan.kernels[0].threads - 32) * vector * 2, problem.cols);
  }
}

TEST(PlanRoutingTest, DotsTakeVectorsWhereRowsAreMadeOfThem) {
  const auto kernel = [](ActivationDotsProblem problem) {
    const RoutingPlan plan = plan_activation_dots(problem, kHopper);
    return plan.kernels.empty() ? "" : plan.kernels[0].kernel;
  };
  EXPECT_THAT(kernel({.slots = 9, .cols = 64}), HasSubstr(".vectors = true"));
  EXPECT_THAT(kernel({.slots = 9, .cols = 60}), HasSubstr(".vectors = false"));
  EXPECT_THAT(kernel({.slots = 9, .cols = 60, .in = DType::kFloat32}),
              HasSubstr(".vectors = true"));
  EXPECT_THAT(kernel({.slots = 9, .cols = 64, .is_aligned = false}), HasSubstr(".vectors = false"));
  EXPECT_EQ(kernel({.slots = 0, .cols = 64}), "");
  EXPECT_EQ(plan_activation_dots({.slots = 9, .cols = 0}, kHopper).kernels[0].blocks, 2);  // zeros
}

// Each names the public function.
TEST(PlanRoutingTest, RefusesWhatItHasNoRoomFor) {
  const auto error = [](auto&& call) { return test::error_of(call, ErrorCode::kUnsupported); };
  EXPECT_EQ(error([] { plan_sort({1, 2049}, kHopper); }),
            "sort_by_expert: expected at most 2048 experts on a GPU, got 2049");
  EXPECT_EQ(error([] { plan_top_k({.tokens = 1, .experts = 1025, .slots = 1}, kHopper); }),
            "top_k: expected at most 1024 experts on a GPU, got 1025");
  EXPECT_EQ(error([] { plan_top_k({.tokens = 1, .experts = 64, .slots = 33}, kHopper); }),
            "top_k: expected at most 32 slots of a token on a GPU, got 33");
  EXPECT_EQ(
      error([] { plan_top_k({.tokens = 1, .experts = 80, .slots = 1, .groups = 40}, kHopper); }),
      "top_k: expected at most 32 groups on a GPU, got 40");
  EXPECT_EQ(error([] { plan_top_k_gradient({.tokens = 1, .experts = 64, .slots = 33}, kHopper); }),
            "top_k_gradient: expected at most 32 slots of a token on a GPU, got 33");
}

// Each function of the library says in its own name that a GPU has no kernels;
// capability_matrix_test.cpp has which GPUs these are.
TEST(PlannersTest, AGpuWithoutKernelsIsToldSoInTheNameOfTheFunction) {
  const Gpu volta = gpu_of(70, 80);
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"cast", [&] { plan_cast({.rows = 1, .cols = 1}, volta); }},
      {"cast", [&] { plan_norm({.rows = 1, .cols = 1}, volta); }},
      {"norm_gradient", [&] { plan_norm_backward({.rows = 1, .cols = 1}, volta); }},
      {"convert_dtype", [&] { plan_convert({.rows = 1, .cols = 1}, volta); }},
      {"transpose", [&] { plan_transpose({.rows = 1, .cols = 1}, volta); }},
      {"dot", [&] { plan_dot({.size = 1}, volta); }},
      {"sort_by_expert", [&] { plan_sort({1, 1}, volta); }},
      {"combine", [&] { plan_combine({.tokens = 1, .cols = 1}, volta); }},
      {"attention", [&] { plan_attention({}, volta); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_THAT(test::error_of(call, ErrorCode::kUnsupported),
                AllOf(HasSubstr(std::string(name) + ": expected a GPU"), HasSubstr("got 7.0")));
  }
}

}  // namespace
}  // namespace octofold::plan
