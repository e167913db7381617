// The kernels of routing, run on the host, beside the CPU backend.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/routing.h"

#include "cpu/backend.h"
#include "cpu/matrices.h"
#include "kernels/routing/combine.h"
#include "kernels/routing/combine_gradient.h"
#include "kernels/routing/sort.h"
#include "kernels/routing/top_k.h"
#include "kernels/routing/top_k_gradient.h"
#include "support/routing_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::draw;
using test::Floats;
using test::floats_of;
using test::Index;
using test::index_of;
using test::kHostile;
using test::kRows;
using test::kTokens;
using test::Positions;
using test::stored;
using testing::ElementsAreArray;

MutableTensorView index_of(Index& values) {
  return vector(values.data(), DType::kInt32, std::ssize(values));
}
// Experts from -1 on, and some that are none. What the GPU takes them for is `plain`.
struct Ids {
  Ids(std::int64_t tokens, std::int64_t slots, int experts) {
    for (std::int64_t i = 0; i < tokens * slots; ++i) {
      // Most go to few experts.
      const auto limit = random() % 2 == 0 ? std::min(experts, 3) : experts;
      const auto id = static_cast<std::int32_t>(random() % static_cast<unsigned>(limit + 1)) - 1;
      const bool is_hostile = random() % 16 == 0;
      given.push_back(is_hostile ? kHostile[random() % 3] : id);
      if (is_hostile && random() % 2 == 0) given.back() = experts;
      plain.push_back(is_hostile ? -1 : id);
    }
  }
  test::Random random;
  Index given, plain;
};

template <int kExperts>
void expect_sorted(std::int64_t tokens, std::int64_t slots, int experts) {
  constexpr config::SlotCountConfig kCount{.experts = kExperts};
  Ids ids(tokens, slots, experts);
  const std::int64_t all = tokens * slots;
  // Rows of ids lie apart.
  const std::int64_t stride = slots + 3;
  Index strided(as_size(tokens * stride), 0);
  for (std::int64_t i = 0; i < all; ++i) {
    strided[as_size(i / slots * stride + i % slots)] = ids.given[as_size(i)];
  }
  const std::int64_t spans = config::slot_spans(all);
  Index histogram(as_size(spans * experts), -7);
  Index offsets(as_size(experts + 1), -7);
  Index sources(as_size(all), -7), positions = sources;
  const config::SortParams params{.ids = strided.data(),
                                  .ids_stride = stride,
                                  .slots = static_cast<int>(all),
                                  .slots_per_token = static_cast<int>(slots),
                                  .experts = experts,
                                  .span = static_cast<int>(config::slots_per_span(all)),
                                  .spans = static_cast<int>(spans),
                                  .histogram = histogram.data(),
                                  .offsets = offsets.data(),
                                  .sources = sources.data(),
                                  .positions = positions.data()};
  if (spans > 1) {
    test::launch(spans, kCount.threads(), [&] { count_slots_kernel<kCount>(params); });
    test::launch(spans, kCount.threads(), [&] { place_slots_kernel<{kCount, false}>(params); });
  } else {
    test::launch(1, kCount.threads(), [&] { place_slots_kernel<{kCount, true}>(params); });
  }
  Index expected_offsets(offsets.size()), expected_sources(sources.size());
  Index expected_positions(positions.size()), workspace;
  cpu::sort_by_expert(index_of(ids.plain, tokens, slots), experts,
                      {.offsets = index_of(expected_offsets),
                       .sources = index_of(expected_sources),
                       .positions = index_of(expected_positions, tokens, slots),
                       .workspace = index_of(workspace)});
  EXPECT_THAT(offsets, ElementsAreArray(expected_offsets));
  EXPECT_THAT(sources, ElementsAreArray(expected_sources));
  EXPECT_THAT(positions, ElementsAreArray(expected_positions));
}

TEST(SortKernelsTest, OfOneSpan) {
  expect_sorted<256>(0, 4, 5);
  expect_sorted<256>(1, 1, 1);
  expect_sorted<256>(100, 7, 256);
  expect_sorted<512>(33, 9, 300);
  expect_sorted<2048>(341, 6, 2048);
}

TEST(SortKernelsTest, OfSeveralSpans) {
  expect_sorted<256>(2049, 1, 60);
  expect_sorted<1024>(700, 6, 1000);
  expect_sorted<2048>(700, 8, 1100);
}

template <config::CombineConfig kConfig>
void expect_combined(std::int64_t slots, std::int64_t cols) {
  constexpr DType kIn = kConfig.in, kOut = kConfig.out;
  static_assert(kConfig.invalid_reason() == nullptr);
  const std::int64_t stride = cols + 16;
  const auto y = stored<kIn>(draw(as_size(kRows * stride)));
  const auto c = stored<kOut>(draw(as_size(kTokens * stride)));
  const Floats weights = draw(as_size(kTokens * slots));
  Positions positions(kTokens, slots, kRows);
  // In place, where it adds.
  auto out = c, expected = c;
  const config::CombineParams params{.y = y.data(),
                                     .y_stride = stride,
                                     .rows = kRows,
                                     .positions = positions.given.data(),
                                     .positions_stride = slots,
                                     .weights = weights.data(),
                                     .weights_stride = slots,
                                     .slots = static_cast<int>(slots),
                                     .c = out.data(),
                                     .c_stride = stride,
                                     .out = out.data(),
                                     .out_stride = stride,
                                     .cols = cols};
  test::launch(kTokens, kConfig.threads(), [&] { combine_kernel<kConfig>(params); });
  CombineArguments arguments{.y = matrix(y.data(), kIn, kRows, cols, stride),
                             .positions = TensorView(index_of(positions.plain, kTokens, slots)),
                             .out = matrix(expected.data(), kOut, kTokens, cols, stride)};
  if (kConfig.weighted) {
    arguments.weights = matrix(weights.data(), DType::kFloat32, kTokens, slots);
  }
  if (kConfig.adds) arguments.c = TensorView(arguments.out);
  cpu::combine(arguments);
  EXPECT_THAT(out, ElementsAreArray(expected));
}

template <DType kIn, DType kOut>
void expect_combined() {
  constexpr config::CombineConfig kPlain{
      .in = kIn, .out = kOut, .weighted = false, .row_threads = 32};
  constexpr config::CombineConfig kWeighted{
      .in = kIn, .out = kOut, .adds = true, .row_threads = 64};
  constexpr config::CombineConfig kByElements{
      .in = kIn, .out = kOut, .adds = true, .vectors = false, .row_threads = 32};
  expect_combined<kPlain>(1, 72);
  expect_combined<kWeighted>(6, 2048);  // several chunks
  expect_combined<kByElements>(9, 77);
  expect_combined<kByElements>(0, 3);
}

TEST(CombineKernelTest, HasTheBitsOfTheCpu) {
  expect_combined<DType::kBFloat16, DType::kBFloat16>();
  expect_combined<DType::kFloat16, DType::kFloat16>();
  expect_combined<DType::kFloat32, DType::kFloat32>();
  expect_combined<DType::kFloat32, DType::kBFloat16>();
  expect_combined<DType::kBFloat16, DType::kFloat32>();
}

template <config::CombineGradientConfig kConfig>
void expect_weights_gradient(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const auto y = stored<kConfig.in>(draw(as_size(kRows * cols)));
  const auto gradient = stored<kConfig.gradient>(draw(as_size(kTokens * cols)));
  Positions positions(kTokens, slots, kRows);
  Floats out(as_size(kTokens * slots), NAN), expected = out;
  const config::CombineGradientParams params{.gradient = gradient.data(),
                                             .gradient_stride = cols,
                                             .y = y.data(),
                                             .y_stride = cols,
                                             .rows = kRows,
                                             .positions = positions.given.data(),
                                             .positions_stride = slots,
                                             .slots = static_cast<int>(slots),
                                             .cols = cols,
                                             .weights_gradient = out.data(),
                                             .weights_gradient_stride = slots};
  test::launch(kTokens, kConfig.threads(), [&] { combine_gradient_kernel<kConfig>(params); });
  cpu::combine_gradient({.gradient = matrix(gradient.data(), kConfig.gradient, kTokens, cols),
                         .y = matrix(y.data(), kConfig.in, kRows, cols),
                         .positions = TensorView(index_of(positions.plain, kTokens, slots)),
                         .weights_gradient = floats_of(expected, slots)});
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out[i], expected[i], 1e-5f * static_cast<float>(cols));
    EXPECT_TRUE(positions.plain[i] >= 0 || out[i] == 0);
  }
}

TEST(CombineGradientKernelTest, IsNearTheCpus) {
  using enum DType;
  expect_weights_gradient<{.gradient = kBFloat16, .in = kBFloat16, .row_threads = 64}>(6, 2048);
  expect_weights_gradient<{.gradient = kFloat32, .in = kBFloat16, .row_threads = 32}>(3, 64);
  expect_weights_gradient<{
      .gradient = kFloat16, .in = kFloat32, .vectors = false, .row_threads = 96}>(9, 77);
}

// Logits of which some are equal; none other are near each other.
Floats logits_of(std::int64_t experts) {
  test::Random random;
  Floats logits(as_size(kTokens * experts));
  for (float& logit : logits) logit = static_cast<float>(random() % 64) / 8 - 4;
  return logits;
}

template <config::TopKConfig kConfig>
void expect_top_k(std::int64_t experts, std::int64_t slots, const TopKOptions& options) {
  static_assert(kConfig.invalid_reason() == nullptr);
  Floats values = logits_of(experts), bias = draw(as_size(experts));
  values[1] = -0.0f, values[0] = 0.0f;
  values[2] = std::numeric_limits<float>::infinity();
  if (options.scoring == Scoring::kSoftmax) values[2] = -values[2];
  const auto logits = stored<kConfig.in>(values);
  Index ids(as_size(kTokens * slots), -7), expected_ids = ids;
  Floats weights(ids.size(), NAN), expected = weights;
  const config::TopKParams params{.logits = logits.data(),
                                  .logits_stride = experts,
                                  .bias = bias.data(),
                                  .tokens = kTokens,
                                  .experts = static_cast<int>(experts),
                                  .slots = static_cast<int>(slots),
                                  .normalize = options.normalize,
                                  .groups = static_cast<int>(options.groups),
                                  .top_groups = static_cast<int>(options.top_groups),
                                  .scale = options.scaling_factor,
                                  .ids = ids.data(),
                                  .weights = weights.data(),
                                  .weights_stride = slots};
  test::launch(2, kConfig.threads(), [&] { top_k_kernel<kConfig>(params); });
  TopKArguments arguments{.logits = matrix(logits.data(), kConfig.in, kTokens, experts),
                          .ids = index_of(expected_ids, kTokens, slots),
                          .weights = floats_of(expected, slots)};
  if (kConfig.biased) {
    arguments.bias = vector(bias.data(), DType::kFloat32, experts);
  }
  cpu::top_k(arguments, options);
  EXPECT_THAT(ids, ElementsAreArray(expected_ids));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(weights[i], expected[i], 2e-6f * std::abs(expected[i]));
  }
}

TEST(TopKKernelTest, ChoosesAsTheCpu) {
  constexpr config::TopKConfig kSoftmax{.per_lane = 1};
  constexpr config::TopKConfig kHalves{.in = DType::kBFloat16, .per_lane = 4};
  expect_top_k<kSoftmax>(8, 2, {.normalize = true});
  expect_top_k<kSoftmax>(31, 31, {.scaling_factor = 2.5f});
  expect_top_k<kHalves>(128, 8, {});
  constexpr config::TopKConfig kSigmoid{
      .in = DType::kFloat16, .scoring = Scoring::kSigmoid, .per_lane = 32};
  expect_top_k<kSigmoid>(1000, 32, {.scoring = Scoring::kSigmoid, .normalize = true});
  constexpr config::TopKConfig kDeepSeek{
      .scoring = Scoring::kSigmoid, .biased = true, .grouped = true, .per_lane = 8};
  const TopKOptions options{.scoring = Scoring::kSigmoid,
                            .normalize = true,
                            .groups = 8,
                            .top_groups = 4,
                            .scaling_factor = 2.5f};
  expect_top_k<kDeepSeek>(256, 8, options);
  expect_top_k<kDeepSeek>(240, 6, options);
}

TEST(TopKKernelTest, NanIsAboveAll) {
  constexpr config::TopKConfig kConfig{.per_lane = 1};
  Floats logits{1, -NAN, 3, NAN, 2};
  Index ids(4);
  Floats weights(4);
  config::TopKParams params{};
  params.logits = logits.data();
  params.tokens = params.groups = params.top_groups = 1;
  params.experts = 5;
  params.slots = 4;
  params.scale = 1;
  params.ids = ids.data();
  params.weights = weights.data();
  test::launch(1, kConfig.threads(), [&] { top_k_kernel<kConfig>(params); });
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 4));
  for (const float weight : weights) EXPECT_TRUE(std::isnan(weight));
}

template <config::TopKGradientConfig kConfig>
void expect_logits_gradient(std::int64_t experts, std::int64_t slots, const TopKOptions& options) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const auto logits = stored<kConfig.in>(logits_of(experts));
  const Floats gradient = draw(as_size(kTokens * slots));
  Ids ids(kTokens, slots, static_cast<int>(experts));
  auto out = logits, expected = logits;
  const config::TopKGradientParams params{.gradient = gradient.data(),
                                          .gradient_stride = slots,
                                          .logits = logits.data(),
                                          .logits_stride = experts,
                                          .ids = ids.given.data(),
                                          .ids_stride = slots,
                                          .tokens = kTokens,
                                          .experts = static_cast<int>(experts),
                                          .slots = static_cast<int>(slots),
                                          .normalize = options.normalize,
                                          .scale = options.scaling_factor,
                                          .logits_gradient = out.data(),
                                          .logits_gradient_stride = experts};
  test::launch(2, kConfig.threads(), [&] { top_k_gradient_kernel<kConfig>(params); });
  cpu::top_k_gradient({.gradient = matrix(gradient.data(), DType::kFloat32, kTokens, slots),
                       .logits = matrix(logits.data(), kConfig.in, kTokens, experts),
                       .ids = TensorView(index_of(ids.plain, kTokens, slots)),
                       .logits_gradient = matrix(expected.data(), kConfig.in, kTokens, experts)},
                      options);
  Floats actual(out.size()), wanted(out.size());
  cpu::load(out.data(), kConfig.in, 0, 1, std::ssize(out), actual.data());
  cpu::load(expected.data(), kConfig.in, 0, 1, std::ssize(out), wanted.data());
  const float step = kConfig.in == DType::kFloat32 ? 1e-5f : 1e-2f;
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(actual[i], wanted[i], step * std::abs(wanted[i]) + 2e-6f) << i;
  }
}

TEST(TopKGradientKernelTest, IsNearTheCpus) {
  constexpr config::TopKGradientConfig kSoftmax{.per_lane = 2};
  for (const bool normalize : {false, true}) {
    expect_logits_gradient<kSoftmax>(60, 6, {.normalize = normalize, .scaling_factor = 2.5f});
    constexpr config::TopKGradientConfig kSigmoid{
        .in = DType::kBFloat16, .scoring = Scoring::kSigmoid, .per_lane = 8};
    expect_logits_gradient<kSigmoid>(256, 8,
                                     {.scoring = Scoring::kSigmoid, .normalize = normalize});
  }
}

}  // namespace
}  // namespace octofold
