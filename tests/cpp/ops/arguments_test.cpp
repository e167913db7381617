// Bad arguments beyond those that Python can make (tests/python/test_refused_*.py has these): each
// gets an error of its own that names the argument.
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;

// A valid problem that each test spoils in one place.
struct Problem {
  static constexpr std::int64_t kM = 5, kN = 200, kK = 300;
  std::vector<std::uint8_t> a = std::vector<std::uint8_t>(kM * kK, 0x38);
  std::vector<std::uint8_t> b = std::vector<std::uint8_t>(kN * kK, 0x38);
  std::vector<float> a_scale = std::vector<float>(kM * 3, 1.0f);
  std::vector<float> b_scale = std::vector<float>(2 * 3, 1.0f);
  std::vector<float> d = std::vector<float>(kM * kN, std::nanf(""));
  std::vector<float> bias = std::vector<float>(kN, 1.0f);

  GemmArguments arguments() {
    return {.a = ScaledTensorView{matrix(a.data(), DType::kE4M3, kM, kK),
                                  matrix(a_scale.data(), DType::kFloat32, kM, 3),
                                  Granularity::kBlock1x128},
            .b = {matrix(b.data(), DType::kE4M3, kN, kK),
                  matrix(b_scale.data(), DType::kFloat32, 2, 3), Granularity::kBlock128x128},
            .out = matrix(d.data(), DType::kFloat32, kM, kN)};
  }
};

ScaledTensorView& a_of(GemmArguments& arguments) { return std::get<ScaledTensorView>(arguments.a); }

const auto refuse_gemm = test::refusing<Problem, GemmArguments>([](auto&& spoil) {
  Problem problem;
  GemmArguments arguments = problem.arguments();
  spoil(problem, arguments);
  return error_of([&] { gemm(arguments); });
});

TEST(GemmArgumentsTest, TheProblemIsValidUntilItIsSpoiled) {
  Problem problem;
  gemm(problem.arguments());
  EXPECT_EQ(problem.d[0], 300.0f);
}

TEST(GemmArgumentsTest, EachErrorNamesItsArgument) {
  refuse_gemm({
      // Wrong dtypes.
      {[](auto&, auto& g) { g.b.scale.dtype = DType::kBFloat16; },
       "argument 'b.scale': expected dtype float32, got bfloat16"},
      {[](auto& p, auto& g) { g.bias = vector(p.bias.data(), DType::kBFloat16, p.kN); },
       "argument 'bias': expected dtype"},
      // Wrong shapes.
      {[](auto&, auto& g) { g.b.data.rank = 3; }, "argument 'b': expected a matrix"},
      {[](auto&, auto& g) { a_of(g).data.shape[0] = -1; },
       "argument 'a': expected sizes of at least 0"},
      {[](auto&, auto& g) { a_of(g).data.shape[0] = std::int64_t{1} << 62; },
       "argument 'a': expected sizes that memory can hold"},
      // Wrong scales.
      {[](auto&, auto& g) { a_of(g).scale.rank = 1; }, "argument 'a.scale': expected shape [5, 3]"},
      {[](auto&, auto& g) { a_of(g).scale.data = nullptr; },
       "argument 'a.scale': expected data, got a null pointer"},
      // Wrong strides.
      {[](auto&, auto& g) { a_of(g).data.strides = {1, 5}; },
       "argument 'a': expected contiguous columns"},
      {[](auto&, auto& g) { g.out.strides[0] = 199; },
       "argument 'out': expected rows that do not overlap"},
      {[](auto&, auto& g) { g.out.strides[0] = -200; },
       "argument 'out': expected rows that do not overlap"},
      {[](auto&, auto& g) { g.out.data = nullptr; },
       "argument 'out': expected data, got a null pointer"},
      // Wrong alignment.
      {[](auto&, auto& g) {
         a_of(g).scale.data = static_cast<const char*>(a_of(g).scale.data) + 1;
       },
       "argument 'a.scale': expected data aligned to its element size"},
      {[](auto&, auto& g) { g.out.data = static_cast<char*>(g.out.data) + 2; },
       "argument 'out': expected data aligned to its element size"},
      // Wrong memory that is written.
      {[](auto& p, auto& g) { a_of(g).scale.data = p.d.data(); },
       "argument 'out': expected memory of its own, apart from 'a.scale'"},
      {[](auto& p, auto& g) { g.bias = vector(p.d.data() + 10, DType::kFloat32, p.kN); },
       "argument 'out': expected memory of its own, apart from 'bias'"},
  });
}

TEST(GemmArgumentsTest, SideBySideSlicesOfOneBufferAreDisjoint) {
  Problem problem;
  std::vector<float> both(problem.kM * problem.kN * 2, 1.0f);
  GemmArguments arguments = problem.arguments();
  const std::int64_t stride = 2 * problem.kN;
  arguments.out = matrix(both.data(), DType::kFloat32, problem.kM, problem.kN, stride);
  arguments.c = matrix(both.data() + problem.kN, DType::kFloat32, problem.kM, problem.kN, stride);
  gemm(arguments);
  EXPECT_EQ(both[0], 301.0f);
  arguments.c =
      matrix(both.data() + problem.kN - 1, DType::kFloat32, problem.kM, problem.kN, stride);
  EXPECT_THAT(error_of([&] { gemm(arguments); }), HasSubstr("apart from 'c'"));
}

TEST(GemmArgumentsTest, Devices) {
  refuse_gemm({
      {[](auto&, auto& g) { g.b.data.device = {DeviceType::kCuda, 1}; },
       "argument 'b.scale': expected a tensor on cuda:1, got one on cpu"},
      {[](auto&, auto& g) { g.b.data.device = {DeviceType::kCpu, 1}; },
       "argument 'b.scale': expected a tensor on cpu:1, got one on cpu"},
  });
  Problem problem;
  GemmArguments arguments = problem.arguments();
  for (auto* device :
       {&a_of(arguments).data.device, &a_of(arguments).scale.device, &arguments.b.data.device,
        &arguments.b.scale.device, &arguments.out.device}) {
    *device = {DeviceType::kCuda, 1000};
  }
  // No machine has that many, and most have no driver: which is said where there is none.
  const auto expected =
      info().driver.available ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable;
  EXPECT_THAT(error_of([&] { gemm(arguments); }, expected),
              HasSubstr("gemm: the tensors are on cuda:1000, but "));
}

TEST(CastArgumentsTest, EachIsNamed) {
  const std::vector<float> x(6 * 8);
  const TensorView valid = matrix(x.data(), DType::kFloat32, 6, 8);
  ScaledMatrix out(6, 8, {.granularity = Granularity::kChannel});
  test::refused([](auto& input, auto& targets) { cast(input, targets); }, valid,
                CastTargets{.rows = out.target()})({
      {[](auto&, auto& t) { t = {}; },
       "cast: argument 'out': expected rows, transposed or both, got neither"},
      {[](auto&, auto& t) { t = {.transposed = t.rows}; },
       "cast: argument 'out.transposed': expected shape [8, 6], got [6, 8]"},
      {[](auto&, auto& t) { t.rows->data.dtype = DType::kFloat32; },
       "argument 'out.rows': expected dtype e4m3 or e5m2"},
      {[](auto&, auto& t) { t.rows->scale.shape[0] = 5; },
       "argument 'out.rows.scale': expected shape [6] for granularity channel"},
      {[](auto& input, auto& t) { t.rows->data.data = const_cast<void*>(input.data); },
       "apart from 'x'"},
      // Rows of an input may coincide, those of an output not.
      {[](auto&, auto& t) { t.rows->data.strides[0] = 0; },
       "argument 'out.rows': expected rows that do not overlap"},
      {[](auto& input, auto&) { input.dtype = DType::kE5M2; },
       "argument 'x': expected dtype float32 or float16 or bfloat16, got e5m2"},
      {[](auto&, auto& t) { t = test::by({.power_of_two = true}, test::given(t)); },
       "argument 'power_of_two': expected unset or false"},
  });
}

TEST(CastArgumentsTest, LeadingDimensionsAreRowsOfOneMatrix) {
  std::vector<float> x(4 * 6 * 8), scale(24);
  std::vector<std::uint8_t> codes(4 * 6 * 8);
  TensorView input = test::tensor(x.data(), DType::kFloat32, {4, 6, 8});
  CastTarget output{test::tensor(codes.data(), DType::kE4M3, {4, 6, 8}),
                    vector(scale.data(), DType::kFloat32, 24),
                    {.granularity = Granularity::kChannel}};
  cast(input, {.rows = output});
  input.shape[1] = output.data.shape[1] = 5;  // some of the rows
  output.data.strides[0] = 40;
  output.scale.shape[0] = 20;
  EXPECT_THAT(error_of([&] { cast(input, {.rows = output}); }),
              HasSubstr("argument 'x': expected leading dimensions that are the rows of one matrix "
                        "(reshape makes a copy), got float32 [4, 5, 8] with strides [48, 8, 1]: "
                        "dimension 0 is not 5 steps of dimension 1"));
  input.strides[0] = 40;
  cast(input, {.rows = output});
  output.scale = {scale.data(), DType::kFloat32, 2, {4, 5}, {6, 1}};
  EXPECT_THAT(error_of([&] { cast(input, {.rows = output}); }),
              HasSubstr("argument 'out.rows.scale': expected leading dimensions"));
  input.rank = 0;
  EXPECT_THAT(error_of([&] { cast(input, {.rows = output}); }),
              HasSubstr("argument 'x': expected at least 1 dimension"));
}

// Numbers cast to an enum that they are no value of.
TEST(EnumeratorsTest, UnknownOnesAreErrors) {
  const auto dtype = static_cast<DType>(99);
  const auto granularity = static_cast<Granularity>(99);
  const auto overflow = static_cast<Overflow>(99);
  const auto rule = static_cast<Rule>(99);
  const auto device = static_cast<DeviceType>(99);
  refuse_gemm({
      {[&](auto&, auto& g) { a_of(g).data.dtype = dtype; },
       "argument 'a': expected an enumerator of DType, 0 to 5, got 99"},
      {[&](auto&, auto& g) { a_of(g).scale.dtype = dtype; }, "'a.scale'"},
      {[&](auto&, auto& g) { g.b.granularity = granularity; },
       "argument 'b.granularity': expected an enumerator of Granularity, 0 to 3, got 99"},
      {[&](auto&, auto& g) { g.out.dtype = dtype; }, "'out'"},
      {[&](auto& p, auto& g) { g.bias = vector(p.d.data(), dtype, p.kN); }, "argument 'bias'"},
      {[&](auto&, auto& g) { a_of(g).data.device.type = device; },
       "argument 'a': expected an enumerator of DeviceType, 0 to 2, got 99"},
  });

  std::vector<float> x(8), y(8);
  ScaledMatrix out(2, 4, {.granularity = Granularity::kTensor});
  const TensorView source = matrix(x.data(), DType::kFloat32, 2, 4);
  EXPECT_THAT(error_of([&] { cast(source, test::by({.rule = rule}, {.rows = out.target()})); }),
              HasSubstr("'rule': expected a Rule, got 99"));
  EXPECT_THAT(
      error_of([&] { cast(source, test::by({.overflow = overflow}, {.rows = out.target()})); }),
      HasSubstr("argument 'overflow': expected an enumerator of Overflow, 0 to 1, got 99"));
  EXPECT_THAT(error_of([&] { convert_dtype(source, matrix(y.data(), dtype, 2, 4)); }),
              HasSubstr("convert_dtype: argument 'out'"));
  EXPECT_THAT(
      error_of([&] { convert_dtype(source, matrix(y.data(), DType::kFloat32, 2, 4), overflow); }),
      HasSubstr("convert_dtype: argument 'overflow'"));
  EXPECT_THAT(error_of([&] { dequantize(out.view(), matrix(y.data(), dtype, 2, 4)); }),
              HasSubstr("dequantize: argument 'out'"));
  EXPECT_EQ(error_of([&] { name(dtype); }),
            "dtype 99 is not one of: float32, float16, bfloat16, e4m3, e5m2, int32");
  EXPECT_THAT(error_of([&] { name(granularity); }), HasSubstr("granularity 99 is not one of"));
  EXPECT_THAT(error_of([&] { name(overflow); }), HasSubstr("overflow 99 is not one of"));
  EXPECT_THAT(error_of([&] { name(rule); }), HasSubstr("rule 99 is not one of"));
}

TEST(NamesTest, ParseWhatTheyPrint) {
  EXPECT_EQ(parse_granularity(name(Granularity::kBlock1x128)), Granularity::kBlock1x128);
  EXPECT_EQ(parse_rule("te"), Rule::kTransformerEngine);
  EXPECT_EQ(parse_attention_compute(name(AttentionCompute::kFp8)), AttentionCompute::kFp8);
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), DType::kE4M3);
  EXPECT_EQ(error_of([] { parse_overflow("wrap"); }),
            "overflow 'wrap' is not one of: saturate, nan");
}

TEST(SizesTest, ThoseBelowZeroAndThoseThatOverflowAreErrors) {
  for (const std::int64_t size : {std::int64_t{-1}, INT64_MAX}) {
    const std::vector<std::function<void()>> calls{
        [&] { sort_workspace_size(size, 256); },
        [&] { sort_workspace_size(8, size); },
        [&] { dot_workspace_size(size); },
        [&] { norm_workspace_rows(1, size); },
        [&] { column_workspace_rows(size, true, true); },
        [&] { group_columns(size, 1); },
        [&] { group_columns(1, size); },
        [&] { weight_only_workspace_size(size, 17, 1024); },
        [&] { attention_workspace_size(size, 1, 8); },
        [&] { attention_workspace_size(1, 2, 128, size); }};
    for (const auto& call : calls) EXPECT_THAT(error_of(call), HasSubstr(" to 2^48, got "));
    EXPECT_NE(error_of([&] { ScaledMatrix(size, 1); }), "no error");
  }
  EXPECT_THAT(error_of([] { scale_layout({}, std::int64_t{1} << 58, 1, DeviceType::kCuda); }),
              HasSubstr("expected sizes that memory can hold"));
}

TEST(ScaledMatrixTest, OneThatWasMovedFromHasNoMemory) {
  ScaledMatrix from(2, 4, {.granularity = Granularity::kChannel});
  const ScaledMatrix to = std::move(from);
  const std::vector<std::function<void()>> calls{[&] { from.view(); }, [&] { from.target(); },
                                                 [&] { from.to({}); }, [&] { from.codes(); },
                                                 [&] { from.scales(); }};
  for (const auto& call : calls) EXPECT_THAT(error_of(call), HasSubstr("one that was moved from"));
  EXPECT_NE(error_of([&] { ScaleLayout{}.view(to.scales().data()); }), "no error");
}

// Random arguments: an Error or a product, never a crash; the sanitizer builds watch the memory.
TEST(ArgumentFuzzTest, RandomViewsNeverCrash) {
  test::Random random;
  const auto any = [&](std::initializer_list<std::int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  const char* seconds = std::getenv("OCTOFOLD_FUZZ_SECONDS");
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double>(seconds != nullptr ? std::atof(seconds) : 1.0);
  int accepted = 0, refused = 0;
  std::vector<std::uint8_t> memory(1 << 20, 0x30);
  while (std::chrono::steady_clock::now() < end) {
    // Views start in the second quarter and reach 48 KB at most, backwards where a stride is
    // negative: they may overlap, never leave the memory.
    const auto spoil = [&](auto view) {
      view.data = memory.data() + (256 + random() % 256) * 1024;
      if (random() % 8 == 0) view.data = nullptr;
      if (random() % 8 == 0) view.rank = static_cast<std::int32_t>(random() % 7) - 1;
      if (random() % 6 == 0) view.dtype = static_cast<DType>(random() % 5);
      if (random() % 8 == 0) view.shape[random() % 2] = any({-1, 0, 1, 2, 60});
      if (random() % 8 == 0) view.strides[random() % 2] = any({-1, 0, 1, 2, 100, 200});
      return view;
    };
    const std::int64_t m = any({0, 1, 5, 60}), n = any({0, 1, 7, 60}), k = any({0, 1, 130, 200});
    const auto granularity_a = static_cast<Granularity>(random() % 4);
    const auto granularity_b = static_cast<Granularity>(random() % 4);
    const auto scale = [&](Granularity granularity, std::int64_t rows) {
      const auto shape = scale_shape(granularity, rows, k);
      return spoil(shape.size() == 1 ? vector(memory.data(), DType::kFloat32, shape[0])
                                     : matrix(memory.data(), DType::kFloat32, shape[0], shape[1]));
    };
    GemmArguments arguments{.a = ScaledTensorView{spoil(matrix(memory.data(), DType::kE4M3, m, k)),
                                                  scale(granularity_a, m), granularity_a},
                            .b = {spoil(matrix(memory.data(), DType::kE5M2, n, k)),
                                  scale(granularity_b, n), granularity_b},
                            .out = spoil(matrix(memory.data(), DType::kFloat32, m, n)),
                            .fast_accumulation = random() % 2 == 0};
    if (random() % 2 == 0) arguments.c = spoil(matrix(memory.data(), DType::kFloat32, m, n));
    if (random() % 2 == 0) arguments.bias = spoil(vector(memory.data(), DType::kFloat32, n));
    try {
      gemm(arguments);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      ++refused;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace octofold
