// The kernels of routing, run on the host by the parameters that src/cuda makes, beside the CPU
// backend, and the one that looks through the numbers of groups. Rows of operands lie apart, each
// operand's by another distance.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "octofold/routing.h"

#include "cpu/backend.h"
#include "cuda/params.h"
#include "kernels/routing/activation_dots.h"
#include "kernels/routing/combine.h"
#include "kernels/routing/combine_gradient.h"
#include "kernels/routing/expert_sums.h"
#include "kernels/routing/group_check.h"
#include "kernels/routing/sort.h"
#include "kernels/routing/top_k.h"
#include "kernels/routing/top_k_gradient.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::drawn;
using test::expect_near;
using test::Matrix;
using Floats = std::vector<float>;
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
  const Matrix y = drawn(kConfig.in, kRows, cols, 16);
  const Matrix weights = drawn(kFloat32, kTokens, slots, 2);
  const Matrix c = drawn(kConfig.out, kTokens, cols, 24);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  Matrix out(kConfig.out, kTokens, cols, 8), expected = out;
  CombineArguments arguments{.y = y.view(), .positions = positions.given(), .out = out.view()};
  if (kConfig.weighted) arguments.weights = weights.view();
  if (kConfig.adds) arguments.c = c.view();
  const config::CombineParams params = cuda::params_of(arguments);
  test::launch(kTokens, kConfig.threads(), [&] { combine_kernel<kConfig>(params); });
  arguments.positions = positions.plain();
  arguments.out = expected.view();
  cpu::combine(arguments);
  EXPECT_EQ(out.bytes(), expected.bytes()) << slots << " slots, " << cols << " columns";
  if (!kConfig.adds) return;
  arguments.c = TensorView(arguments.out = out.view());  // in place
  arguments.positions = positions.given();
  const config::CombineParams in_place = cuda::params_of(arguments);
  test::launch(kTokens, kConfig.threads(), [&] { combine_kernel<kConfig>(in_place); });
  arguments.c = TensorView(arguments.out = expected.view());
  arguments.positions = positions.plain();
  cpu::combine(arguments);
  EXPECT_EQ(out.bytes(), expected.bytes()) << "in place";
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
void expect_zeros(const Matrix& out, const SlotNumbers& positions) {
  for (std::int64_t token = 0; token < out.rows(); ++token) {
    for (std::int64_t slot = 0; slot < out.cols(); ++slot) {
      EXPECT_TRUE(!positions.is_none(token, slot) || out.at(token, slot) == 0);
    }
  }
}

template <config::CombineGradientConfig kConfig>
void expect_weights_gradient(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  const Matrix y = drawn(kConfig.in, kRows, cols, 16);
  const Matrix gradient = drawn(kConfig.gradient, kTokens, cols, 8);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  Matrix out(kFloat32, kTokens, slots, 2), expected = out;
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
  const Matrix x = drawn(kConfig.in, kRows, is_gated(kConfig.activation) ? 2 * cols : cols, 16);
  const Matrix gradient = drawn(kConfig.in, kRows, cols, 8);
  const SlotNumbers positions = draw_positions(kTokens, slots, kRows);
  const Matrix before = drawn(kFloat32, kTokens, slots, 2);
  Matrix dots(kFloat32, kTokens, slots, 1), expected = dots;
  ActivationDotsArguments arguments{.gradient = gradient.view(),
                                    .x = x.view(),
                                    .positions = positions.given(),
                                    .activation = kConfig.activation,
                                    .dots = dots.view()};
  if (slots == 2) arguments.c = before.view();
  const config::ActivationDotsParams params = cuda::params_of(arguments);
  const std::int64_t blocks = config::ceil_divide(kTokens * slots, std::int64_t{kConfig.kSlots});
  test::launch(blocks, kConfig.threads(), [&] { activation_dots_kernel<kConfig>(params); });
  arguments.positions = positions.plain();
  arguments.dots = expected.view();
  cpu::activation_dots(arguments);
  // Values are up to 16, or 16 · 5 of the curves.
  expect_near(dots, expected, [&](float) { return 1e-5f * static_cast<float>(cols); });
  if (!arguments.c) expect_zeros(dots, positions);
}

TEST(ActivationDotsKernelTest, IsNearTheCpus) {
  expect_dots<{.in = kBFloat16}>(3, 768);
  expect_dots<{.in = kFloat16, .activation = Activation::kSwiGluOss}>(2, 520);
  expect_dots<{.in = kFloat32, .activation = Activation::kGelu}>(1, 260);
  expect_dots<{.in = kBFloat16, .activation = Activation::kGeGluTanh, .vectors = false}>(3, 77);
  expect_dots<{.in = kFloat32, .activation = Activation::kReluSquared, .vectors = false}>(2, 3);
}

// Experts' offsets and the slots of their rows; some come from nowhere, and some have none.
template <config::ExpertSumsConfig kConfig>
void expect_expert_sums(std::int64_t slots, std::int64_t cols) {
  static_assert(kConfig.invalid_reason() == nullptr);
  constexpr std::int64_t kExperts = 4, kMany = 19;  // tokens: several rows of a warp
  const std::int64_t rows = kMany * slots;
  test::Random random;
  Index offsets{0, 1, 1, static_cast<std::int32_t>(rows - 3), static_cast<std::int32_t>(rows - 1)};
  Index given(as_size(rows)), plain;
  std::iota(given.begin(), given.end(), 0);
  std::ranges::shuffle(given, random);
  plain = given;
  for (std::size_t i = 0; i < given.size(); i += 5) {
    given[i] = i % 2 == 0 ? kHostile[random() % 3] : static_cast<std::int32_t>(rows);
    plain[i] = -1;
  }
  const bool of_rows = kConfig.activated;
  const Matrix gradient = drawn(kConfig.in, of_rows ? rows : kMany, cols, 8);
  const Matrix x = drawn(kConfig.in, rows, kConfig.halves() * cols, 16);
  const Matrix weights = drawn(kFloat32, kMany, slots, 1);
  Matrix sums(kFloat32, kExperts, kConfig.halves() * cols, 3), expected = sums;
  ExpertSumsArguments arguments{.gradient = gradient.view(),
                                .activation = kConfig.activation,
                                .offsets = index_of(offsets),
                                .sources = index_of(given),
                                .weights = weights.view(),
                                .sums = sums.view()};
  if (of_rows) arguments.x = x.view();
  const config::ExpertSumsParams params = cuda::params_of(arguments);
  const std::int64_t blocks = kExperts * config::ceil_divide(cols, std::int64_t{kConfig.columns()});
  test::launch(blocks, kConfig.threads(), [&] { expert_sums_kernel<kConfig>(params); });
  arguments.sources = index_of(plain);
  arguments.sums = expected.view();
  cpu::expert_sums(arguments);
  // Values are up to 16 times 5 of the curves; those that are rounded may be rounded otherwise.
  const float rounding = of_rows && kConfig.in != kFloat32 ? 1e-3f : 1e-5f;
  expect_near(sums, expected, [&](float) { return 80 * rounding * static_cast<float>(rows); });
  sums.expect_untouched_beside();
}

TEST(ExpertSumsKernelTest, IsNearTheCpus) {
  expect_expert_sums<{.in = kBFloat16}>(3, 768);
  expect_expert_sums<{.in = kFloat32, .vectors = false}>(1, 77);
  expect_expert_sums<{.in = kFloat16, .activated = true}>(2, 264);
  expect_expert_sums<{.in = kFloat32, .activated = true, .activation = Activation::kSwiGluOss}>(
      2, 132);
  expect_expert_sums<{
      .in = kBFloat16, .activated = true, .activation = Activation::kGelu, .vectors = false}>(1, 9);
}

// Logits of which some are equal; none other are near each other.
Matrix logits_of(DType dtype, std::int64_t experts, std::int64_t padding) {
  test::Random random;
  Matrix logits(dtype, kTokens, experts, padding);
  logits.fill([&] { return static_cast<float>(random() % 64) / 8 - 4; });
  return logits;
}

template <config::TopKConfig kConfig>
void expect_top_k(std::int64_t experts, std::int64_t slots, const TopKOptions& options) {
  static_assert(kConfig.invalid_reason() == nullptr);
  Matrix logits = logits_of(kConfig.in, experts, 8);
  logits.set(0, 0, 0.0f), logits.set(0, 1, -0.0f);
  logits.set(0, 2, options.scoring == Scoring::kSoftmax ? -HUGE_VALF : HUGE_VALF);
  const Matrix bias = drawn(kFloat32, 1, experts);
  Index ids(as_size(kTokens * slots), -7), expected_ids = ids;
  Matrix weights(kFloat32, kTokens, slots, 2), expected = weights;
  TopKArguments arguments{.logits = logits.view(),
                          .ids = matrix(ids.data(), kInt32, kTokens, slots),
                          .weights = weights.view()};
  if (kConfig.biased) arguments.bias = bias.row_vector();
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
  const Matrix logits = logits_of(kConfig.in, experts, 2);
  const Matrix gradient = drawn(kFloat32, kTokens, slots, 1);
  const SlotNumbers ids = draw_ids(kTokens, slots, static_cast<int>(experts));
  Matrix out(kConfig.in, kTokens, experts, 4), expected = out;
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

// ---- Numbers of groups.

template <bool kAscends>
config::GroupFault fault_of(const Index& numbers, int cols, std::int64_t stride, int low, int high,
                            int unit = 1) {
  config::GroupFault fault{};
  const config::GroupCheckParams params{
      .numbers = numbers.data(),
      .stride = stride,
      .cols = cols,
      .count = static_cast<int>(std::ssize(numbers) / (stride > 0 ? stride : cols) * cols),
      .low = low,
      .high = high,
      .unit = unit,
      .argument = 3,
      .fault = &fault};
  test::launch(1, 512, [&] { group_check_kernel<config::GroupCheckConfig{kAscends}>(params); });
  return fault;
}

TEST(GroupCheckKernelTest, FindsTheFirstThatIsNone) {
  Index numbers(20 * 100, 5);
  const auto fault = [&] { return fault_of<false>(numbers, 90, 100, -1, 5); };
  numbers[95] = 99;  // between rows
  EXPECT_EQ(fault().state, config::GroupFault::kNone);
  for (const std::size_t row : {19, 7, 0}) {
    numbers[100 * row + 89] = row == 7 ? -2 : 6;
    const config::GroupFault found = fault();
    EXPECT_EQ(found.state, config::GroupFault::kWhole);
    EXPECT_EQ(found.argument, 3);
    EXPECT_FALSE(found.ascends);
    EXPECT_EQ(found.index, 90 * row + 89);
    EXPECT_EQ(found.value, row == 7 ? -2 : 6);
    EXPECT_EQ(found.low, -1);
    EXPECT_EQ(found.high, 5);
  }
}

TEST(GroupCheckKernelTest, OffsetsAscendFromZero) {
  Index offsets(1001);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int>(i / 2 * 2);
  const auto fault = [&](int most) { return fault_of<true>(offsets, 1001, 0, 0, most); };
  EXPECT_EQ(fault(1000).state, config::GroupFault::kNone);
  EXPECT_EQ(fault(999).index, 1000);
  const config::GroupFault no_multiple = fault_of<true>(offsets, 1001, 0, 0, 1000, 4);
  EXPECT_EQ(no_multiple.index, 2);
  EXPECT_EQ(no_multiple.unit, 4);
  offsets[700] = 1001;  // the next one is less, but this one is beyond the end
  EXPECT_EQ(fault(1000).index, 700);
  EXPECT_EQ(fault(2000).index, 701);
  EXPECT_EQ(fault(2000).before, 1001);
  offsets[0] = 1;
  EXPECT_EQ(fault(2000).index, 0);
  EXPECT_EQ(fault(2000).value, 1);
  EXPECT_TRUE(fault(2000).ascends);
  offsets[0] = -1;
  EXPECT_EQ(fault(2000).index, 0);
}

// The first that is found stays until the host has seen it.
TEST(GroupCheckKernelTest, LeavesAnotherFaultAsItIs) {
  config::GroupFault fault{};
  fault.state = config::GroupFault::kWhole;
  fault.argument = 1;
  const Index numbers{7};
  config::GroupCheckParams params{};
  params.numbers = numbers.data();
  params.cols = params.count = 1;
  params.argument = 2;
  params.fault = &fault;
  test::launch(1, 512, [&] { group_check_kernel<config::GroupCheckConfig{}>(params); });
  EXPECT_EQ(fault.argument, 1);
}

}  // namespace
}  // namespace octofold
