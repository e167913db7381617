// Each public header's operations once on the CPU, under the address sanitizer too: the smallest
// real call, whose result is known. What they compute in general is compared in tests/python; bad
// arguments are in *arguments_test.cpp, linear layers in linear_test.cpp, what tells of the library
// in capabilities_test.cpp and kernel_cache_test.cpp, checkpoints in tests/cpp/model.
#include "octofold/octofold.h"

#include "support/granularities.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold {
namespace {

using enum DType;
using enum Granularity;
using testing::Each;
using testing::ElementsAreArray;

using Floats = std::vector<float>;
using Index = std::vector<std::int32_t>;

constexpr std::uint8_t kOne = 0x38;                 // of e4m3
constexpr std::uint16_t kHalfOne = 0x3C00;          // of float16
constexpr std::int64_t kM = 5, kN = 131, kK = 203;  // odd tails everywhere

MutableTensorView view_of(Floats& values, std::int64_t rows) {
  return matrix(values.data(), kFloat32, rows, std::ssize(values) / rows);
}
MutableTensorView row_of(Floats& values) {
  return vector(values.data(), kFloat32, std::ssize(values));
}
TensorView view_of(const Index& values) {
  return vector(values.data(), kInt32, std::ssize(values));
}
MutableTensorView view_of(Index& values, std::int64_t rows) {
  return matrix(values.data(), kInt32, rows, std::ssize(values) / rows);
}

// Codes of 1 and scales of 1/2, 1, 2 … 2^6 by turns.
ScaledMatrix ones(std::int64_t rows, std::int64_t cols, Granularity granularity = kBlock1x128) {
  ScaledMatrix matrix(rows, cols, {.granularity = granularity});
  std::ranges::fill(matrix.codes(), kOne);
  for (std::size_t i = 0; i < matrix.scales().size(); ++i) {
    matrix.scales()[i] = std::ldexp(1.0f, static_cast<int>(i % 8) - 1);
  }
  return matrix;
}

Floats numbers(const ScaledTensorView& matrix) {
  Floats values(as_size(matrix.data.shape[0] * matrix.data.shape[1]));
  dequantize(matrix, view_of(values, matrix.data.shape[0]));
  return values;
}

// [rows, K] · [columns, K]ᵀ, of numbers whose sums FP32 holds exactly.
Floats product_of(const Floats& a, const Floats& b, std::int64_t depth) {
  Floats result;
  for (auto row = a.begin(); row != a.end(); row += depth) {
    for (auto column = b.begin(); column != b.end(); column += depth) {
      result.push_back(std::inner_product(row, row + depth, column, 0.0f));
    }
  }
  return result;
}

TEST(PublicApiTest, Gemm) {
  for (const Granularity of_a : test::kGranularities) {
    for (const Granularity of_b : test::kGranularities) {
      const ScaledMatrix a = ones(kM, kK, of_a), b = ones(kN, kK, of_b);
      Floats out(kM * kN, NAN), bias(kN, 3.0f);
      gemm({.a = a.view(), .b = b.view(), .out = view_of(out, kM)});
      EXPECT_EQ(out, product_of(numbers(a.view()), numbers(b.view()), kK));
      Floats with_all = out;
      const MutableTensorView d = view_of(with_all, kM);
      gemm({.a = a.view(), .b = b.view(), .out = d, .c = d, .bias = row_of(bias)});
      EXPECT_EQ(with_all.back(), 2 * out.back() + 3);
    }
  }
}

TEST(PublicApiTest, GemmThatCasts) {
  Floats x(kM * kK, 448.0f), out(kM * kN);
  const ScaledMatrix b = ones(kN, kK, kChannel);
  gemm({.a = CastOperand{view_of(x, kM), {.rule = Rule::kVllm}},
        .b = b.view(),
        .out = view_of(out, kM)});
  EXPECT_EQ(out, product_of(x, numbers(b.view()), kK));
}

// Shards come late, one after another, into memory that holds NaN: read before, they would show.
TEST(PublicApiTest, GemmOfArrivals) {
  constexpr std::int64_t kShards = 4, kOwn = 2;
  for (const std::int64_t rows : {512, 1000}) {
    ScaledMatrix a = ones(rows, kK);
    const ScaledMatrix b = ones(kN, kK, kBlock128x128);
    Floats whole(as_size(rows * kN)), out(whole.size());
    gemm({.a = a.view(), .b = b.view(), .out = view_of(whole, rows)});
    const std::vector<float> scales(a.scales().begin(), a.scales().end());
    std::ranges::fill(a.codes(), std::uint8_t{0xFF});
    std::ranges::fill(a.scales(), NAN);
    Index flags(kShards);
    const std::jthread copies([&] {
      for (std::int64_t i = 0; i < kShards; ++i) {
        const std::int64_t shard = (kOwn + i) % kShards;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::int64_t codes = rows * kK / kShards, count = std::ssize(scales) / kShards;
        std::fill_n(a.codes().begin() + shard * codes, codes, kOne);
        std::copy_n(scales.begin() + shard * count, count, a.scales().begin() + shard * count);
        std::atomic_ref(flags[as_size(shard)]).store(1, std::memory_order_release);
      }
    });
    gemm({.a = a.view(),
          .b = b.view(),
          .out = view_of(out, rows),
          .arrivals = Arrivals{view_of(flags), kOwn}});
    EXPECT_EQ(out, whole);
  }
}

TEST(PublicApiTest, GatedGemm) {
  constexpr std::int64_t kOut = 130;
  ScaledMatrix a(kM, kK), b(2 * kOut, kK, {.granularity = kBlock128x128}), out(kM, kOut);
  std::ranges::fill(a.scales(), 1.0f);
  std::ranges::fill(b.scales(), 1.0f);
  for (std::int64_t row = 0; row < kM; ++row) a.codes()[as_size(row * kK + kK - 1)] = kOne;
  for (std::int64_t row = 0; row < 2 * kOut; ++row) {
    b.codes()[as_size(row * kK + kK - 1)] = row < kOut ? 0x40 : 0x44;  // 2 and 3
  }
  gated_gemm({.a = a.view(), .b = b.view(), .out = out.target()});
  for (const float value : numbers(out.view())) EXPECT_NEAR(value, 6 / (1 + std::exp(-2)), 0.03);
}

TEST(PublicApiTest, GroupedGemm) {
  const Index offsets{0, 3, 3, kM}, counts{2, 0, kM};
  const ScaledMatrix a = ones(kM, kK), b = ones(3 * 128, kK, kBlock128x128);
  ScaledTensorView stack = b.view();
  stack.data = {stack.data.data, kE4M3, 3, {3, 128, kK}, {128 * kK, kK, 1}};
  Floats out(kM * 128, NAN);
  grouped_gemm(
      {.a = a.view(), .b = stack, .groups = RowGroups{view_of(offsets)}, .out = view_of(out, kM)});
  const Floats all = product_of(numbers(a.view()), numbers(b.view()), kK);
  for (std::size_t row = 0; row < kM; ++row) {
    const std::size_t group = row < 3 ? 0 : 2;
    EXPECT_THAT(std::span(out).subspan(row * 128, 128),
                ElementsAreArray(std::span(all).subspan(row * 384 + group * 128, 128)));
  }

  std::vector<std::uint16_t> x(3 * kM * kK, kHalfOne);
  Floats masked(3 * kM * 128, -7.0f);
  grouped_gemm_weight_only({.x = TensorView{x.data(), kFloat16, 3, {3, kM, kK}, {kM * kK, kK, 1}},
                            .w = stack,
                            .groups = MaskedGroups{view_of(counts), 4},
                            .out = {masked.data(), kFloat32, 3, {3, kM, 128}, {kM * 128, 128, 1}}});
  const Floats sums = product_of(Floats(kK, 1.0f), numbers(b.view()), kK);
  EXPECT_EQ(masked[127], sums[127]);
  EXPECT_EQ(masked[2 * 128], -7);
  EXPECT_EQ(masked.back(), sums.back());

  std::vector<std::uint16_t> gradient(kM * 128, kHalfOne);
  Floats back(kM * kK);
  grouped_gemm_weight_only_gradient({.gradient = matrix(gradient.data(), kFloat16, kM, 128),
                                     .w = stack,
                                     .groups = RowGroups{view_of(offsets)},
                                     .out = view_of(back, kM)});
  EXPECT_EQ(back.back(), 128 * numbers(b.view()).back());
}

TEST(PublicApiTest, GemmWeightOnly) {
  for (const Granularity granularity : test::kGranularities) {
    const ScaledMatrix w = ones(kN, kK, granularity);
    std::vector<std::uint16_t> x(kM * kK, kHalfOne), dy(kM * kN, kHalfOne);
    Floats out(kM * kN), dx(kM * kK), of_codes(kN);
    gemm_weight_only(
        {.x = {matrix(x.data(), kFloat16, kM, kK)}, .w = w.view(), .out = view_of(out, kM)});
    EXPECT_EQ(out, product_of(Floats(kM * kK, 1.0f), numbers(w.view()), kK));
    gemm_weight_only_gradient(
        {.gradient = matrix(dy.data(), kFloat16, kM, kN), .w = w.view(), .out = view_of(dx, kM)});
    EXPECT_EQ(std::reduce(dx.begin(), dx.end()), std::reduce(out.begin(), out.end()));
    const ScaledMatrix codes = ones(1, kK, kTensor);
    gemm_weight_only({.x = {codes.view().data, codes.view().scale, kTensor},
                      .w = w.view(),
                      .out = view_of(of_codes, 1)});
    EXPECT_EQ(of_codes.back(), out.back() / 2);
  }
}

TEST(PublicApiTest, Dot) {
  Floats a(300, 0.5f), out(1), workspace(as_size(dot_workspace_size(300)));
  const ScaledMatrix b = ones(1, 300);
  dot({.a = {.data = row_of(a)},
       .b = {b.view().data, b.view().scale, kBlock1x128},
       .out = row_of(out),
       .workspace = row_of(workspace)});
  EXPECT_EQ(out[0], 0.5f * (128 * 0.5f + 128 * 1 + 44 * 2));
}

TEST(PublicApiTest, CastsAndNumbers) {
  Floats x;
  for (int i = 0; i < kM * kK; ++i) x.push_back(i % 2 == 0 ? 448.0f : -64.0f);
  for (const Granularity granularity : test::kGranularities) {
    const Format format{.granularity = granularity, .rule = Rule::kVllm};
    ScaledMatrix rows(kM, kK, format), transposed(kK, kM, format), many(kM, kK, format);
    Floats sums(kK), workspace(as_size(column_workspace_rows(kM, true, false) * kK));
    cast(view_of(x, kM),
         {.rows = rows.target(),
          .transposed = transposed.target(),
          .columns = {.sums = row_of(sums),
                      .workspace = view_of(workspace, std::ssize(workspace) / kK)}});
    EXPECT_EQ(numbers(rows.view()), x);
    EXPECT_EQ(rows.codes()[0], 0x7E);
    EXPECT_EQ(sums[0], 3 * 448 - 2 * 64);
    const Floats columns = numbers(transposed.view());
    for (std::int64_t i = 0; i < kM * kK; ++i) {
      ASSERT_EQ(columns[as_size(i % kK * kM + i / kK)], x[as_size(i)]);
    }
    cast_many(std::vector<CastJob>{{view_of(x, kM), {.rows = many.target()}}});
    EXPECT_THAT(many.codes(), ElementsAreArray(rows.codes()));

    // A vector is cast as a row, whose scales are a vector too.
    ScaledMatrix row(1, kK, format);
    CastTarget target = row.target();
    target.data = vector(row.codes().data(), kE4M3, kK);
    if (granularity != kBlock128x128) {
      target.scale = vector(row.scales().data(), kFloat32, std::ssize(row.scales()));
    }
    cast(vector<const void>(x.data(), kFloat32, kK), {.rows = target});
    EXPECT_THAT(row.codes(), ElementsAreArray(rows.codes().first(kK)));
  }
}

TEST(PublicApiTest, SourcesOfCasts) {
  Floats x(kM * 2 * kK, 3.0f), gradient(kM * kK, 5.0f);
  ScaledMatrix out(kM, kK), of_x(kM, 2 * kK);
  cast(Activated{.x = view_of(x, kM)}, {.rows = out.target()});
  for (const float value : numbers(out.view())) EXPECT_NEAR(value, 9 / (1 + std::exp(-3)), 1e-5);
  cast(ActivationGradient{.gradient = view_of(gradient, kM), .x = view_of(x, kM)},
       {.rows = of_x.target()});
  EXPECT_NEAR(numbers(of_x.view()).back(), 15 / (1 + std::exp(-3)), 0.5);

  const Index sources{7, 0, -1};
  ScaledMatrix gathered(3, 2 * kK);
  std::ranges::fill(x.begin() + 3 * 2 * kK, x.begin() + 4 * 2 * kK, 8.0f);
  cast(GatheredRows{.x = view_of(x, kM), .sources = view_of(sources), .slots = 2},
       {.rows = gathered.target()});
  EXPECT_EQ(numbers(gathered.view())[0], 8);

  // Rows of groups, each group's transpose at a multiple of 128 columns.
  const Index offsets{0, 2, kM};
  ScaledMatrix groups(2 * kK, group_columns(kM, 2));
  cast(view_of(x, kM), {.transposed = groups.target(), .offsets = view_of(offsets)});
  EXPECT_EQ(numbers(groups.view())[128 + 1], 8);
}

TEST(PublicApiTest, Norms) {
  Floats x(2 * kK), y(x.size()), rstd(2), dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i < kK ? 2.0f : -4.0f;
  const Normed source{.epsilon = 0, .x = view_of(x, 2), .rstd = row_of(rstd)};
  norm(source, view_of(y, 2));
  EXPECT_THAT(rstd, ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(y.front() - y.back(), 2);
  ScaledMatrix out(2, kK);
  cast(source, {.rows = out.target()});
  EXPECT_EQ(numbers(out.view()), y);
  norm_gradient({.gradient = view_of(x, 2), .x = view_of(x, 2), .rstd = row_of(rstd)},
                {.dx = view_of(dx, 2)});
  EXPECT_THAT(dx, Each(0));  // along x a norm does not change
}

TEST(PublicApiTest, Routing) {
  Floats logits{0, 3, 1, 2, 5, 4, 5, 6}, weights(4), y{1, 2, 3, 4, 5, 6, 7, 8}, out(4), dots(4);
  Index ids(4), offsets(5), sources(4), positions(4);
  Index workspace(as_size(sort_workspace_size(4, 4)));
  top_k({.logits = view_of(logits, 2), .ids = view_of(ids, 2), .weights = view_of(weights, 2)},
        {.normalize = true});
  EXPECT_THAT(ids, ElementsAre(1, 3, 3, 0));
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(-1)), 1e-6);
  sort_by_expert(view_of(ids, 2), 4,
                 {.offsets = vector(offsets.data(), kInt32, 5),
                  .sources = vector(sources.data(), kInt32, 4),
                  .positions = view_of(positions, 2),
                  .workspace = vector(workspace.data(), kInt32, std::ssize(workspace))});
  EXPECT_THAT(offsets, ElementsAre(0, 1, 2, 2, 4));
  EXPECT_THAT(sources, ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(positions, ElementsAre(1, 2, 3, 0));
  combine({.y = view_of(y, 4), .positions = view_of(positions, 2), .out = view_of(out, 2)});
  EXPECT_THAT(out, ElementsAre(8, 10, 8, 10));
  combine_gradient({.gradient = view_of(out, 2),
                    .y = view_of(y, 4),
                    .positions = view_of(positions, 2),
                    .weights_gradient = view_of(dots, 2)});
  EXPECT_THAT(dots, ElementsAre(64, 100, 136, 28));
  activation_dots({.gradient = view_of(y, 4),
                   .x = view_of(y, 4),
                   .positions = view_of(positions, 2),
                   .activation = Activation::kReluSquared,
                   .dots = view_of(dots, 2)});
  EXPECT_THAT(dots, ElementsAre(91, 341, 855, 9));
  activation_dots({.gradient = view_of(y, 4),
                   .x = view_of(y, 4),
                   .positions = view_of(positions, 2),
                   .activation = Activation::kReluSquared,
                   .c = TensorView(view_of(dots, 2)),
                   .dots = view_of(dots, 2)});
  EXPECT_THAT(dots, ElementsAre(182, 682, 1710, 18));
  Floats shares{1, 2, 4, 8}, of_tokens{1, 10, 100, 1000}, sums(8), of_inputs(8);
  expert_sums({.gradient = view_of(of_tokens, 2),
               .offsets = view_of(offsets),
               .sources = view_of(sources),
               .weights = view_of(shares, 2),
               .sums = view_of(sums, 4)});
  EXPECT_THAT(sums, ElementsAre(800, 8000, 1, 10, 0, 0, 402, 4020));
  expert_sums({.gradient = view_of(y, 4),
               .x = view_of(y, 4),
               .activation = Activation::kReluSquared,
               .offsets = view_of(offsets),
               .sources = view_of(sources),
               .weights = view_of(shares, 2),
               .sums = view_of(of_inputs, 4)});
  EXPECT_THAT(of_inputs, ElementsAre(16, 64, 18, 32, 0, 0, 492, 656));
  Floats gradient(4, 1.0f), of_logits(8);
  top_k_gradient({.gradient = view_of(gradient, 2),
                  .logits = view_of(logits, 2),
                  .ids = view_of(ids, 2),
                  .logits_gradient = view_of(of_logits, 2)},
                 {.normalize = true});
  EXPECT_THAT(of_logits, Each(testing::FloatNear(0, 1e-6f)));  // weights that sum up to 1
}

TEST(PublicApiTest, Rotary) {
  Floats x{1, 2, 3, 4, 5, 6, 7, 8}, cos{2, 3, 5, 7}, sin{11, 13, 17, 19}, y(9, -1);
  RotaryArguments arguments{.x = {x.data(), kFloat32, 3, {1, 2, 4}, {8, 4, 1}},
                            .cos = view_of(cos, 1),
                            .sin = view_of(sin, 1)};
  const MutableTensorView out{y.data(), kFloat32, 3, {1, 2, 4}, {8, 4, 1}};
  rotary(arguments, out);
  EXPECT_EQ(y,
            (Floats{2 - 33, 6 - 52, 15 + 17, 28 + 38, 10 - 77, 18 - 104, 35 + 85, 56 + 114, -1}));
}

TEST(PublicApiTest, Attention) {
  // Attention to a single key gives its value.
  std::vector<std::uint16_t> q(3 * 4 * 8, kHalfOne), out(q.size());
  const std::vector<std::uint8_t> k(2 * 8, kOne);
  Floats scale{2, 4}, sums(12);
  Floats workspace(as_size(attention_workspace_size(3, 4, 8)));
  const AttentionOperand keys{{k.data(), kE4M3, 4, {1, 1, 2, 8}, {16, 16, 8, 1}}, row_of(scale)};
  attention({.q = {q.data(), kFloat16, 4, {1, 3, 4, 8}, {96, 32, 8, 1}},
             .k = keys,
             .v = keys,
             .out = {out.data(), kFloat16, 4, {1, 3, 4, 8}, {96, 32, 8, 1}},
             .log_sum_exp = MutableTensorView{sums.data(), kFloat32, 3, {1, 4, 3}, {12, 3, 1}},
             .softmax_scale = 1,
             .workspace = row_of(workspace)});
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 32 < 16 ? 0x4000 : 0x4400);
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], i < 6 ? 16 : 32);
}

TEST(PublicApiTest, WordsAndTransposes) {
  Floats values{1, 2, -1, 0};
  alignas(4) std::array<std::uint8_t, 4> memory{}, turned{};
  const MutableTensorView codes = vector(memory.data(), kE5M2, 4);
  convert_dtype(row_of(values), codes);
  const MutableTensorView words = as_words(codes);
  EXPECT_EQ(*static_cast<const std::uint32_t*>(words.data), 0x00BC'403Cu);
  EXPECT_EQ(from_words(words, kFloat16).shape[0], 2);
  transpose(matrix<const void>(memory.data(), kE5M2, 2, 2),
            matrix<void>(turned.data(), kE5M2, 2, 2));
  EXPECT_THAT(turned, ElementsAre(0x3C, 0xBC, 0x40, 0x00));
}

}  // namespace
}  // namespace octofold
