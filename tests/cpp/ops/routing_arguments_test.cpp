// Bad arguments of routing, rotary embeddings, packed words and transposes beyond those that Python
// can make (its tests have the others): memory that overlaps or is none, devices, strides.
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

using Index = std::vector<std::int32_t>;
using Floats = std::vector<float>;

MutableTensorView index_of(Index& values) {
  return vector(values.data(), DType::kInt32, std::ssize(values));
}
MutableTensorView index_of(Index& values, std::int64_t rows) {
  return matrix(values.data(), DType::kInt32, rows, std::ssize(values) / rows);
}
MutableTensorView floats_of(Floats& values, std::int64_t rows) {
  return matrix(values.data(), DType::kFloat32, rows, std::ssize(values) / rows);
}

TEST(TopKArgumentsTest, EachErrorNamesItsArgument) {
  Floats logits(2 * 8, 1.0f), weights(2 * 3);
  Index ids(2 * 3);
  const TopKArguments arguments{
      .logits = floats_of(logits, 2), .ids = index_of(ids, 2), .weights = floats_of(weights, 2)};
  const TopKOptions options{.scoring = Scoring::kSigmoid, .groups = 2};
  test::refused([](auto& given, auto& out) { top_k(given, out); }, arguments, options)({
      {[](auto&, auto& o) { o.scoring = static_cast<Scoring>(5); },
       "'scoring': expected a Scoring, got 5"},
      {[](auto&, auto& o) { o.groups = 0; }, "'groups'"},
      {[](auto&, auto& o) { o.groups = 8, o.top_groups = 8; },
       "'groups': expected groups of at least 2 experts, got 8"},
      {[](auto&, auto& o) { o.top_groups = 3; },
       "'top_groups': expected from 1 to the 2 groups, got 3"},
      {[](auto&, auto& o) { o.scaling_factor = NAN; }, "'scaling_factor'"},
      {[](auto& a, auto&) { a.ids.strides[0] = 4; }, "'ids': expected a contiguous tensor"},
      {[](auto& a, auto&) { a.weights.dtype = DType::kInt32; },
       "'weights': expected dtype float32, got int32"},
      {[](auto& a, auto&) { a.weights.shape[0] = 1; },
       "'weights': expected shape [2, 3], got [1, 3]"},
      {[](auto& a, auto&) { a.weights.data = a.ids.data; },
       "'weights': expected memory of its own, apart from 'ids'"},
      {[](auto& a, auto&) { a.ids.device = kGpu; },
       "'ids': expected a tensor on cpu, got one on cuda:0"},
  });
  Floats gradient(weights.size(), 1.0f), result(logits.size());
  const TopKGradientArguments of_gradient{.gradient = floats_of(gradient, 2),
                                          .logits = floats_of(logits, 2),
                                          .ids = index_of(ids, 2),
                                          .logits_gradient = floats_of(result, 2)};
  test::refused([](auto& given) { top_k_gradient(given); }, of_gradient)({
      {[](auto& a) { a.logits_gradient.dtype = DType::kBFloat16; },
       "'logits_gradient': expected dtype float32, got bfloat16"},
      {[](auto& a) { a.logits_gradient.data = const_cast<void*>(a.logits.data); },
       "'logits_gradient': expected memory of its own, apart from 'logits'"},
  });
}

TEST(SortArgumentsTest, EachErrorNamesItsArgument) {
  Index ids{3, 0, -1, 0, 3, 1}, offsets(5), sources(6), positions(6);
  Index workspace(as_size(sort_workspace_size(6, 4)));
  const SortedSlots valid{.offsets = index_of(offsets),
                          .sources = index_of(sources),
                          .positions = index_of(positions, 2),
                          .workspace = index_of(workspace)};
  const auto sort = [&](auto experts, auto& out) {
    sort_by_expert(index_of(ids, 2), experts, out);
  };
  test::refused(sort, std::int64_t{4}, valid)({
      {[](auto& experts, auto&) { experts = -1; },
       "'experts': expected a number of at least 0, below 2^31 - 1, got -1"},
      {[](auto& experts, auto&) { experts = 5; }, "'offsets': expected shape [6], got [5]"},
      {[](auto&, auto& out) { --out.workspace.shape[0]; },
       "'workspace': expected shape [4], got [3]"},
      {[](auto&, auto& out) { out.sources.data = out.positions.data; },
       "'positions': expected memory of its own, apart from 'sources'"},
      {[&](auto&, auto&) { ids[3] = 4; }, "expected numbers from -1 to 3, got 4 at [1, 0]"},
      {[&](auto&, auto&) { ids[3] = std::numeric_limits<std::int32_t>::min(); },
       "expected numbers from -1 to 3, got -2147483648 at [1, 0]"},
  });
}

TEST(CombineArgumentsTest, EachErrorNamesItsArgument) {
  Floats y{1, 2, 3, 4, 5, 6}, weights{2, 10, 1, 3}, out{100, 200, 300, 400};
  Index positions{2, 0, -1, 1};
  const CombineArguments arguments{.y = floats_of(y, 3),
                                   .positions = TensorView(index_of(positions, 2)),
                                   .weights = floats_of(weights, 2),
                                   .out = floats_of(out, 2)};
  test::refused([](auto& given) { combine(given); }, arguments)({
      {[](auto& a) { a.y.shape[1] = 1; }, "'y': expected shape [3, 2], got [3, 1]"},
      {[&](auto& a) { a.c = TensorView(matrix(y.data(), DType::kBFloat16, 2, 2)); },
       "'c': expected dtype float32, got bfloat16"},
      {[&](auto& a) {
         a.c = TensorView(a.out);
         a.c->data = out.data() + 1;
         a.c->strides[0] = 1;
       },
       "'out': expected memory of its own, apart from 'c'"},
  });
  Floats gradient{1, 10, 100, 1000}, result(4);
  const CombineGradientArguments of_gradient{.gradient = floats_of(gradient, 2),
                                             .y = floats_of(y, 3),
                                             .positions = TensorView(index_of(positions, 2)),
                                             .weights_gradient = floats_of(result, 2)};
  test::refused([](auto& given) { combine_gradient(given); }, of_gradient)({
      {[](auto& a) { a.gradient.shape[0] = 1; }, "'gradient': expected shape [2, 2], got [1, 2]"},
      {[](auto& a) { a.weights_gradient.dtype = DType::kBFloat16; },
       "'weights_gradient': expected dtype float32, got bfloat16"},
      {[&](auto&) { positions[0] = -2; },
       "combine_gradient: argument 'positions': expected numbers from -1 to 2, got -2 at [0, 0]"},
  });
  Floats x{2, -1, 1, 3, 0, 2};
  const ActivationDotsArguments of_dots{.gradient = floats_of(y, 3),
                                        .x = floats_of(x, 3),
                                        .positions = TensorView(index_of(positions, 2)),
                                        .activation = Activation::kReluSquared,
                                        .dots = floats_of(result, 2)};
  positions[0] = 2;
  test::refused([](auto& given) { activation_dots(given); }, of_dots)({
      {[](auto& a) { a.x.shape[0] = 2; }, "'x': expected shape [3, 2], got [2, 2]"},
      {[](auto& a) { a.x.dtype = DType::kBFloat16; }, "'x': expected dtype float32, got bfloat16"},
      {[](auto& a) { a.dots.shape[1] = 1; }, "'dots': expected shape [2, 2], got [2, 1]"},
      {[](auto& a) { a.activation = static_cast<Activation>(99); }, "'activation'"},
      {[&](auto& a) { a.c = TensorView(floats_of(x, 3)); },
       "'c': expected shape [2, 2], got [3, 2]"},
      {[&](auto& a) {
         a.c = a.dots;
         a.c->strides[0] = 1;
       },
       "'dots': expected memory of its own, apart from 'c'"},
      {[&](auto&) { positions[0] = 3; },
       "activation_dots: argument 'positions': expected numbers from -1 to 2, got 3 at [0, 0]"},
  });
}

TEST(ExpertSumsArgumentsTest, EachErrorNamesItsArgument) {
  Index offsets{0, 1, 4}, sources{3, 0, 1, 2};
  Floats by_rows(4 * 2), inputs(4 * 4), weights(2 * 2), sums(2 * 4);
  const ExpertSumsArguments arguments{.gradient = floats_of(by_rows, 4),
                                      .x = TensorView(floats_of(inputs, 4)),
                                      .offsets = index_of(offsets),
                                      .sources = index_of(sources),
                                      .weights = floats_of(weights, 2),
                                      .sums = floats_of(sums, 2)};
  test::refused([](auto& given) { expert_sums(given); }, arguments)({
      {[](auto& a) { a.x->shape[1] = 2; }, "'x': expected shape [4, 4], got [4, 2]"},
      {[](auto& a) { a.x->dtype = DType::kBFloat16; }, "'x': expected dtype float32, got bfloat16"},
      {[](auto& a) { a.x.reset(); }, "'gradient': expected shape [2, 2], got [4, 2]"},
      {[](auto& a) { a.activation = static_cast<Activation>(99); }, "'activation'"},
      {[](auto& a) { a.sources.shape[0] = 3; }, "'sources': expected shape [4], got [3]"},
      {[](auto& a) { a.offsets.shape[0] = 1; }, "'offsets': expected [groups + 1] elements"},
      {[](auto& a) { a.sums.shape[1] = 2; }, "'sums': expected shape [2, 4], got [2, 2]"},
      {[](auto& a) { a.sums.dtype = DType::kBFloat16; },
       "'sums': expected dtype float32, got bfloat16"},
      {[](auto& a) { a.sums.data = const_cast<void*>(a.x->data); },
       "'sums': expected memory of its own, apart from 'x'"},
      {[](auto& a) { a.weights.device = kGpu; }, "expected a tensor on cuda:0, got one on cpu"},
      {[&](auto&) { offsets[1] = 5; }, "'offsets'"},
      {[&](auto&) { offsets[1] = 1, sources[2] = 4; },
       "expert_sums: argument 'sources': expected numbers from -1 to 3, got 4 at [0, 2]"},
  });
}

// Python has no such call.
TEST(ExpertSumsTest, OfGradientsByTokensAndByRows) {
  const Index offsets{0, 1, 2, 2, 4}, sources{3, 0, 1, 2};
  Floats weights{1, 2, 4, 8}, of_tokens{1, 10, 100, 1000}, y{1, 2, 3, 4, 5, 6, 7, 8}, sums(8);
  ExpertSumsArguments arguments{.gradient = floats_of(of_tokens, 2),
                                .activation = Activation::kReluSquared,
                                .offsets = vector(offsets.data(), DType::kInt32, 5),
                                .sources = vector(sources.data(), DType::kInt32, 4),
                                .weights = floats_of(weights, 2),
                                .sums = floats_of(sums, 4)};
  expert_sums(arguments);
  EXPECT_THAT(sums, ElementsAre(800, 8000, 1, 10, 0, 0, 402, 4020));
  arguments.gradient = floats_of(y, 4);
  arguments.x = TensorView(floats_of(y, 4));
  expert_sums(arguments);
  EXPECT_THAT(sums, ElementsAre(16, 64, 18, 32, 0, 0, 492, 656));
}

TEST(RotaryArgumentsTest, EachErrorNamesItsArgument) {
  Floats x{1, 2, 3, 4, 5, 6, 7, 8}, cos{2, 3, 5, 7}, sin{11, 13, 17, 19}, y(9);
  const RotaryArguments valid{.x = test::tensor(x.data(), DType::kFloat32, {1, 2, 4}),
                              .cos = floats_of(cos, 1),
                              .sin = floats_of(sin, 1)};
  test::refused([](auto& given, auto& out) { rotary(given, out); }, valid,
                test::tensor(y.data(), DType::kFloat32, {1, 2, 4}))({
      {[](auto& a, auto&) { a.x.rank = 2; },
       "rotary: argument 'x': expected [tokens, heads, head_dim] or [batch"},
      {[](auto& a, auto&) { a.x.data = nullptr; }, "'x'"},
      {[](auto& a, auto&) { a.sin.rank = 1; }, "'sin': expected [1"},
      {[](auto& a, auto&) { a.cos.device = kGpu; }, "'cos'"},
      {[](auto& a, auto&) { a.cos.shape[1] = 2; }, "'cos': expected [1, 4]"},
      {[](auto&, auto& out) { out.shape[1] = 1; }, "'y'"},
      {[](auto&, auto& out) { out.dtype = DType::kFloat16; }, "'y'"},
      {[](auto&, auto& out) { out.strides[1] = 5; }, "'y': expected a contiguous tensor"},
      {[](auto&, auto& out) { out.data = nullptr; }, "'y'"},
      {[&](auto&, auto& out) { out.data = x.data(); },
       "'y': expected memory of its own, apart from 'x'"},
      {[&](auto&, auto& out) { out.data = sin.data(); }, "from 'sin'"},
  });
}

// Python's views are its own code.
TEST(WordsArgumentsTest, EachErrorNamesItsArgument) {
  alignas(4) std::array<std::uint8_t, 96> memory{};
  test::refused([](auto& numbers) { as_words(numbers); },
                matrix(memory.data(), DType::kE4M3, 2, 8, 12))({
      {[](auto& x) { x.shape[1] = 6; },
       "as_words: argument 'numbers': expected a last dimension that is a multiple of 4, the e4m3 "
       "numbers of a word, got e4m3 [2, 6]"},
      {[](auto& x) { x.strides[1] = 2; }, "a contiguous last dimension"},
      {[](auto& x) { x.strides[0] = 10; }, "multiples of 4, whole words"},
      {[&](auto& x) { x.data = memory.data() + 1; }, "an address that is not aligned"},
      {[](auto& x) { x.dtype = DType::kFloat32; }, "dtype e4m3 or e5m2 or float16, got float32"},
      {[](auto& x) { x.rank = 0; }, "at least 1 dimension"},
  });
  EXPECT_EQ(as_words(matrix(memory.data(), DType::kE4M3, 1, 8, 9)).shape[1], 2);  // one row
  for (const DType format : {DType::kE4M3, DType::kE5M2, DType::kFloat16}) {
    const std::int64_t each = numbers_per_word(format);
    const MutableTensorView words = as_words(matrix(memory.data(), format, 2, 2 * each, 3 * each));
    EXPECT_EQ(words.data, memory.data());
    EXPECT_EQ(words.dtype, DType::kInt32);
    EXPECT_THAT(std::vector(words.shape.begin(), words.shape.begin() + 2), ElementsAre(2, 2));
    EXPECT_THAT(std::vector(words.strides.begin(), words.strides.begin() + 2), ElementsAre(3, 1));
    const TensorView back = from_words(TensorView(words), format);
    EXPECT_EQ(back.dtype, format);
    EXPECT_EQ(back.shape[1], 2 * each);
    EXPECT_EQ(back.strides[0], 3 * each);
    const MutableTensorView floats = vector(memory.data(), DType::kFloat32, 3);
    EXPECT_EQ(from_words(floats, format).shape[0], 3 * each);
  }
  test::refused([](auto& words, auto& format) { from_words(words, format); },
                vector(memory.data(), DType::kInt32, 3), DType::kE4M3)({
      {[](auto& words, auto&) { words.dtype = DType::kFloat16; },
       "from_words: argument 'words': expected dtype int32 or float32"},
      {[](auto&, auto& format) { format = DType::kBFloat16; },
       "'format': expected e4m3, e5m2 or float16, got bfloat16"},
      {[](auto& words, auto&) { words.strides[0] = 2; }, "a contiguous last dimension"},
  });
}

TEST(TransposeArgumentsTest, EachErrorNamesItsArgument) {
  std::vector<std::uint8_t> codes(6 * 9), transposed(54);
  test::refused([](auto& x, auto& out) { transpose(x, out); },
                matrix<const void>(codes.data(), DType::kE4M3, 6, 9),
                matrix<void>(transposed.data(), DType::kE4M3, 9, 6))({
      {[](auto& x, auto&) { x.dtype = DType::kFloat16; },
       "transpose: argument 'x': expected dtype e4m3 or e5m2"},
      {[](auto& x, auto&) { x = vector(x.data, DType::kE4M3, 5); },
       "transpose: argument 'x': expected at least 2 dimensions"},
      {[](auto&, auto& out) { out.dtype = DType::kE5M2; },
       "transpose: argument 'out': expected dtype e4m3"},
      {[](auto&, auto& out) { std::swap(out.shape[0], out.shape[1]); },
       "transpose: argument 'out': expected shape"},
      {[&](auto&, auto& out) { out.data = codes.data(); }, "argument 'out'"},
  });
}

}  // namespace
}  // namespace octofold
