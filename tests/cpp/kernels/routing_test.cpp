// The kernels of routing, run on the host by the parameters that src/cuda makes, beside the CPU
// backend. Rows of operands lie apart, each operand's by another distance.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/routing.h"

#include "cpu/backend.h"
#include "cuda/params.h"
#include "kernels/routing/activation_dots.h"
#include "kernels/routing/combine.h"
#include "kernels/routing/combine_gradient.h"
#include "kernels/routing/sort.h"
#include "kernels/routing/top_k.h"
#include "kernels/routing/top_k_gradient.h"
#include "support/numbers_on_host.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::draw;
using test::expect_near;
using test::Floats;
using test::Numbers;
using testing::ElementsAreArray;
using enum DType;
using Index = std::vector<std::int32_t>;

constexpr std::int64_t kRows = 11, kTokens = 5;

constexpr std::int32_t kHostile[] = {-2, std::numeric_limits<std::int32_t>::min(),
                                     std::numeric_limits<std::int32_t>::max()};

MutableTensorView index_of(Index& values) {
  return vector(values.data(), DType::kInt32, std::ssize(values));
}

// Numbers [tokens, slots] in rows that lie apart: as they are given, and as the CPU is given them,
// -1 for each that is none.
class SlotNumbers {
 public:
  SlotNumbers(std::int64_t tokens, std::int64_t slots) : tokens_(tokens), slots_(slots) {}

  // `most`: numbers from there on are none.
  void add(std::int32_t number, bool is_hostile, std::int64_t most, test::Random& random) {
    std::int32_t given = is_hostile ? kHostile[random() % 3] : number;
    if (is_hostile && random() % 2 == 0) given = static_cast<std::int32_t>(most);
    given_.push_back(given);
    plain_.push_back(is_hostile ? -1 : number);
    if (std::ssize(given_) % stride() != slots_) return;
    for (Index* numbers : {&given_, &plain_}) numbers->resize(numbers->size() + kPadding, 0);
  }

  TensorView given() const { return view(given_); }
  TensorView plain() const { return view(plain_); }
  bool is_none(std::int64_t token, std::int64_t slot) const {
    return plain_[as_size(token * stride() + slot)] < 0;
  }

 private:
  static constexpr std::int64_t kPadding = 3;
  std::int64_t stride() const { return slots_ + kPadding; }
  TensorView view(const Index& numbers) const {
    return matrix(numbers.data(), DType::kInt32, tokens_, slots_, stride());
  }

  std::int64_t tokens_, slots_;
  Index given_, plain_;
};

// Rows that slots go to.
SlotNumbers draw_positions(std::int64_t tokens, std::int64_t slots, std::int64_t rows) {
  test::Random random;
  SlotNumbers positions(tokens, slots);
  for (std::int64_t i = 0; i < tokens * slots; ++i) {
    const auto row = static_cast<std::int32_t>(random() % static_cast<unsigned>(rows));
    positions.add(row, random() % 4 == 0, rows, random);
  }
  return positions;
}

// Experts from -1 on, most of them few.
SlotNumbers draw_ids(std::int64_t tokens, std::int64_t slots, int experts) {
  test::Random random;
  SlotNumbers ids(tokens, slots);
  for (std::int64_t i = 0; i < tokens * slots; ++i) {
    const auto limit = random() % 2 == 0 ? std::min(experts, 3) : experts;
    const auto id = static_cast<std::int32_t>(random() % static_cast<unsigned>(limit + 1)) - 1;
    ids.add(id, random() % 16 == 0, experts, random);
  }
  return ids;
}

template <int kExperts>
void expect_sorted(std::int64_t tokens, std::int64_t slots, int experts) {
  constexpr config::SlotCountConfig kCount{.experts = kExperts};
  const SlotNumbers ids = draw_ids(tokens, slots, experts);
  const std::int64_t all = tokens * slots, spans = config::slot_spans(all);
  struct Sorted {
    Sorted(std::int64_t slots, std::int64_t spans, int experts)
        : offsets(as_size(experts + 1), -7),
          sources(as_size(slots), -7),
          positions(sources),
          histogram(as_size(spans * experts), -7) {}
    SortedSlots view(std::int64_t tokens) {
      return {.offsets = index_of(offsets),
              .sources = index_of(sources),
              .positions = matrix(positions.data(), kInt32, tokens,
                                  tokens == 0 ? 0 : std::ssize(positions) / tokens),
              .workspace = index_of(histogram)};
    }
    Index offsets, sources, positions, histogram;
  };
  Sorted actual(all, spans, experts), expected = actual;
  const config::SortParams params = cuda::params_of(ids.given(), experts, actual.view(tokens));
  if (spans > 1) {
    test::launch(spans, kCount.threads(), [&] { count_slots_kernel<kCount>(params); });
    test::launch(spans, kCount.threads(), [&] { place_slots_kernel<{kCount, false}>(params); });
  } else {
    test::launch(1, kCount.threads(), [&] { place_slots_kernel<{kCount, true}>(params); });
  }
  cpu::sort_by_expert(ids.plain(), experts, expected.view(tokens));
  EXPECT_THAT(actual.offsets, ElementsAreArray(expected.offsets));
  EXPECT_THAT(actual.sources, ElementsAreArray(expected.sources));
  EXPECT_THAT(actual.positions, ElementsAreArray(expected.positions));
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
  static_assert(kConfig.invalid_reason() == nullptr);
  const Numbers<kConfig.in> y(kRows, cols, 16);
  const Numbers<kFloat32> weights(kTokens, slots, 2);
  const Numbers<kConfig.out> c(kTokens, cols, 24);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  Numbers<kConfig.out> out(kTokens, cols, 8), expected = out;
  CombineArguments arguments{.y = y.view(), .positions = positions.given(), .out = out.view()};
  if (kConfig.weighted) arguments.weights = weights.view();
  if (kConfig.adds) arguments.c = c.view();
  const config::CombineParams params = cuda::params_of(arguments);
  test::launch(kTokens, kConfig.threads(), [&] { combine_kernel<kConfig>(params); });
  arguments.positions = positions.plain();
  arguments.out = expected.view();
  cpu::combine(arguments);
  EXPECT_EQ(out, expected) << slots << " slots, " << cols << " columns";
  if (!kConfig.adds) return;
  arguments.c = TensorView(arguments.out = out.view());  // in place
  arguments.positions = positions.given();
  const config::CombineParams in_place = cuda::params_of(arguments);
  test::launch(kTokens, kConfig.threads(), [&] { combine_kernel<kConfig>(in_place); });
  arguments.c = TensorView(arguments.out = expected.view());
  arguments.positions = positions.plain();
  cpu::combine(arguments);
  EXPECT_EQ(out, expected) << "in place";
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
  expect_combined<kBFloat16, kBFloat16>();
  expect_combined<kFloat16, kFloat16>();
  expect_combined<kFloat32, kFloat32>();
  expect_combined<kFloat32, kBFloat16>();
  expect_combined<kBFloat16, kFloat32>();
}

// Slots that go nowhere have 0.
void expect_zeros(const Numbers<kFloat32>& out, const SlotNumbers& positions) {
  for (std::int64_t token = 0; token < out.rows(); ++token) {
    for (std::int64_t slot = 0; slot < out.cols(); ++slot) {
      EXPECT_TRUE(!positions.is_none(token, slot) || out.at(token, slot) == 0);
    }
  }
}

template <config::CombineGradientConfig kConfig>
void expect_weights_gradient(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const Numbers<kConfig.in> y(kRows, cols, 16);
  const Numbers<kConfig.gradient> gradient(kTokens, cols, 8);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  Numbers<kFloat32> out(kTokens, slots, 2), expected = out;
  CombineGradientArguments arguments{.gradient = gradient.view(),
                                     .y = y.view(),
                                     .positions = positions.given(),
                                     .weights_gradient = out.view()};
  const config::CombineGradientParams params = cuda::params_of(arguments);
  test::launch(kTokens, kConfig.threads(), [&] { combine_gradient_kernel<kConfig>(params); });
  arguments.positions = positions.plain();
  arguments.weights_gradient = expected.view();
  cpu::combine_gradient(arguments);
  expect_near(out, expected, [&](float) { return 1e-5f * static_cast<float>(cols); });
  expect_zeros(out, positions);
}

TEST(CombineGradientKernelTest, IsNearTheCpus) {
  expect_weights_gradient<{.gradient = kBFloat16, .in = kBFloat16, .row_threads = 64}>(6, 2048);
  expect_weights_gradient<{.gradient = kFloat32, .in = kBFloat16, .row_threads = 32}>(3, 64);
  expect_weights_gradient<{
      .gradient = kFloat16, .in = kFloat32, .vectors = false, .row_threads = 96}>(9, 77);
}

template <config::ActivationDotsConfig kConfig>
void expect_dots(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const Numbers<kConfig.in> x(kRows, is_gated(kConfig.activation) ? 2 * cols : cols, 16);
  const Numbers<kConfig.in> gradient(kRows, cols, 8);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  Numbers<kFloat32> dots(kTokens, slots, 1), expected = dots;
  ActivationDotsArguments arguments{.gradient = gradient.view(),
                                    .x = x.view(),
                                    .positions = positions.given(),
                                    .activation = kConfig.activation,
                                    .dots = dots.view()};
  const config::ActivationDotsParams params = cuda::params_of(arguments);
  const std::int64_t blocks = config::ceil_divide(kTokens * slots, std::int64_t{kConfig.kSlots});
  test::launch(blocks, kConfig.threads(), [&] { activation_dots_kernel<kConfig>(params); });
  arguments.positions = positions.plain();
  arguments.dots = expected.view();
  cpu::activation_dots(arguments);
  // Values are up to 16, or 16 · 5 of the curves.
  expect_near(dots, expected, [&](float) { return 1e-5f * static_cast<float>(cols); });
  expect_zeros(dots, positions);
}

TEST(ActivationDotsKernelTest, IsNearTheCpus) {
  expect_dots<{.in = kBFloat16}>(3, 768);
  expect_dots<{.in = kFloat16, .activation = Activation::kSwiGluOss}>(2, 520);
  expect_dots<{.in = kFloat32, .activation = Activation::kGelu}>(1, 260);
  expect_dots<{.in = kBFloat16, .activation = Activation::kGeGluTanh, .vectors = false}>(3, 77);
  expect_dots<{.in = kFloat32, .activation = Activation::kReluSquared, .vectors = false}>(2, 3);
}

// Logits of which some are equal; none other are near each other.
Floats logits_of(std::int64_t stride) {
  test::Random random;
  Floats logits(as_size(kTokens * stride));
  for (float& logit : logits) logit = static_cast<float>(random() % 64) / 8 - 4;
  return logits;
}

template <config::TopKConfig kConfig>
void expect_top_k(std::int64_t experts, std::int64_t slots, const TopKOptions& options) {
  static_assert(kConfig.invalid_reason() == nullptr);
  Floats values = logits_of(experts + 8), bias = draw(as_size(experts));
  values[1] = -0.0f, values[0] = 0.0f;
  values[2] = std::numeric_limits<float>::infinity();
  if (options.scoring == Scoring::kSoftmax) values[2] = -values[2];
  const Numbers<kConfig.in> logits(kTokens, experts, 8, values);
  Index ids(as_size(kTokens * slots), -7), expected_ids = ids;
  Numbers<kFloat32> weights(kTokens, slots, 2), expected = weights;
  TopKArguments arguments{.logits = logits.view(),
                          .ids = matrix(ids.data(), kInt32, kTokens, slots),
                          .weights = weights.view()};
  if (kConfig.biased) arguments.bias = vector(bias.data(), kFloat32, experts);
  const config::TopKParams params = cuda::params_of(arguments, options);
  test::launch(2, kConfig.threads(), [&] { top_k_kernel<kConfig>(params); });
  arguments.ids.data = expected_ids.data();
  arguments.weights = expected.view();
  cpu::top_k(arguments, options);
  EXPECT_THAT(ids, ElementsAreArray(expected_ids));
  expect_near(weights, expected, [](float wanted) { return 2e-6f * std::abs(wanted); });
}

TEST(TopKKernelTest, ChoosesAsTheCpu) {
  constexpr config::TopKConfig kSoftmax{.per_lane = 1};
  constexpr config::TopKConfig kHalves{.in = kBFloat16, .per_lane = 4};
  expect_top_k<kSoftmax>(8, 2, {.normalize = true});
  expect_top_k<kSoftmax>(31, 31, {.scaling_factor = 2.5f});
  expect_top_k<kHalves>(128, 8, {});
  constexpr config::TopKConfig kSigmoid{
      .in = kFloat16, .scoring = Scoring::kSigmoid, .per_lane = 32};
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
  const config::TopKParams params =
      cuda::params_of({.logits = matrix(logits.data(), kFloat32, 1, 5),
                       .ids = matrix(ids.data(), kInt32, 1, 4),
                       .weights = matrix(weights.data(), kFloat32, 1, 4)},
                      TopKOptions{});
  test::launch(1, kConfig.threads(), [&] { top_k_kernel<kConfig>(params); });
  EXPECT_THAT(ids, ElementsAre(1, 3, 2, 4));
  for (const float weight : weights) EXPECT_TRUE(std::isnan(weight));
}

template <config::TopKGradientConfig kConfig>
void expect_logits_gradient(std::int64_t experts, std::int64_t slots, const TopKOptions& options) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const Numbers<kConfig.in> logits(kTokens, experts, 2, logits_of(experts + 2));
  const Numbers<kFloat32> gradient(kTokens, slots, 1);
  const SlotNumbers ids = draw_ids(kTokens, slots, static_cast<int>(experts));
  Numbers<kConfig.in> out(kTokens, experts, 4), expected = out;
  TopKGradientArguments arguments{.gradient = gradient.view(),
                                  .logits = logits.view(),
                                  .ids = ids.given(),
                                  .logits_gradient = out.view()};
  const config::TopKGradientParams params = cuda::params_of(arguments, options);
  test::launch(2, kConfig.threads(), [&] { top_k_gradient_kernel<kConfig>(params); });
  arguments.ids = ids.plain();
  arguments.logits_gradient = expected.view();
  cpu::top_k_gradient(arguments, options);
  const float step = kConfig.in == kFloat32 ? 1e-5f : 1e-2f;
  expect_near(out, expected, [&](float wanted) { return step * std::abs(wanted) + 2e-6f; });
}

TEST(TopKGradientKernelTest, IsNearTheCpus) {
  constexpr config::TopKGradientConfig kSoftmax{.per_lane = 2};
  for (const bool normalize : {false, true}) {
    expect_logits_gradient<kSoftmax>(60, 6, {.normalize = normalize, .scaling_factor = 2.5f});
    constexpr config::TopKGradientConfig kSigmoid{
        .in = kBFloat16, .scoring = Scoring::kSigmoid, .per_lane = 8};
    expect_logits_gradient<kSigmoid>(256, 8,
                                     {.scoring = Scoring::kSigmoid, .normalize = normalize});
  }
}

}  // namespace
}  // namespace octofold
