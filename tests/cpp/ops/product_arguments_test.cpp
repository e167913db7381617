// Bad arguments of products beyond those that Python can make (its tests have the others): memory
// that overlaps, devices, enumerators, strides and workspaces.
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/shaped.h"
#include "support/test.h"

namespace octofold {
namespace {

using test::error_of;
using test::Matrix;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr Format kSquares{.granularity = Granularity::kBlock128x128};

void* writable(const TensorView& view) { return const_cast<void*>(view.data); }

TEST(GatedGemmArgumentsTest, EachErrorNamesItsArgument) {
  const ScaledMatrix a(5, 256), b(400, 256, kSquares);
  ScaledMatrix out(5, 200);
  std::vector<std::int32_t> offsets{0, 5};
  const GatedGemmArguments arguments{.a = a.view(), .b = b.view(), .out = out.target()};
  test::refused([](auto& given) { gated_gemm(given); }, arguments)({
      {[](auto& g) { g.activation = static_cast<Activation>(77); }, "argument 'activation'"},
      {[](auto& g) {
         g.out.format.granularity = Granularity::kTensor;
         g.out.scale.shape = {1, 1};
       },
       "argument 'out': expected scales of granularity 1x128"},
      {[](auto& g) { g.out.data.data = writable(g.b.data); }, "argument 'out'"},
      {[&](auto& g) {
         g.b.data = test::shaped(g.b.data, {1, 400, 256});
         g.b.scale = test::shaped(g.b.scale, {1, 4, 2});
         g.groups = RowGroups{vector<const void>(offsets.data(), DType::kInt32, 2)};
         g.out.scale.data = offsets.data();
       },
       "argument 'out.scale': expected memory of its own, apart from 'groups.offsets'"},
      {[](auto& g) { g.out.data.device = kGpu; }, "argument 'out"},
      {[](auto& g) { g.out.format.rule = static_cast<Rule>(99); }, "argument 'rule'"},
      {[](auto& g) { g.out.scales = ScaleSource::kGiven; }, "argument 'out.scales'"},
  });
}

TEST(GemmCastArgumentsTest, EachErrorNamesItsArgument) {
  const Matrix x(DType::kBFloat16, 5, 256);
  Matrix out(DType::kBFloat16, 5, 300);
  const ScaledMatrix b(300, 256, kSquares);
  const auto cast_and_multiply = [](GemmArguments given, const CastOperand& a) {
    given.a = a;
    gemm(given);
  };
  test::refused(cast_and_multiply,
                GemmArguments{.a = CastOperand{}, .b = b.view(), .out = out.view()},
                CastOperand{x.view()})({
      {[](auto&, auto& a) { a.data.rank = 1; }, "argument 'a'"},
      {[](auto& d, auto&) { d.b.data.device = kGpu; }, "argument 'b"},
      {[](auto& d, auto& a) { d.out.data = writable(a.data); }, "argument 'out'"},
      {[](auto& d, auto&) { d.out.data = writable(d.b.data); }, "argument 'out'"},
      {[](auto&, auto& a) { a.format.dtype = DType::kFloat16; },
       "argument 'dtype': expected dtype e4m3 or e5m2, got float16"},
      {[](auto&, auto& a) { a.format.rule = static_cast<Rule>(99); }, "argument 'rule'"},
      {[](auto&, auto& a) { a.format.overflow = static_cast<Overflow>(9); }, "argument 'overflow'"},
      {[](auto&, auto& a) { a.format.granularity = Granularity::kChannel; },
       "argument 'granularity': expected 1x128"},
  });
}

// Candidates of the GPU's are none of the CPU's.
TEST(ProductArgumentsTest, TheCpuHasNoCandidates) {
  const Matrix x(DType::kBFloat16, 5, 256);
  const ScaledMatrix a(5, 256), b(256, 256, kSquares);
  Matrix out(DType::kBFloat16, 5, 256);
  ScaledMatrix h(5, 128);
  const std::int32_t offsets[] = {0, 5};
  ScaledTensorView stack = b.view();
  stack.data = test::shaped(stack.data, {1, 256, 256});
  const std::vector<std::function<void()>> calls{
      [&] { gated_gemm({.a = a.view(), .b = b.view(), .out = h.target()}); },
      [&] { gemm({.a = CastOperand{x.view()}, .b = b.view(), .out = out.view()}); },
      [&] { gemm_weight_only({.x = x.view(), .w = b.view(), .out = out.view()}); },
      [&] {
        grouped_gemm_weight_only(
            {.x = x.view(),
             .w = stack,
             .groups = RowGroups{vector<const void>(offsets, DType::kInt32, 2)},
             .out = out.view()});
      }};
  EXPECT_EQ(use_candidate("64x16"), "");
  for (const auto& call : calls) {
    EXPECT_THAT(
        error_of(call),
        HasSubstr("argument 'candidate': expected it to be omitted for tensors on the CPU"));
  }
  std::thread([&] { calls.front()(); }).join();  // which takes the one kernel
  EXPECT_EQ(use_candidate(""), "64x16");
  for (const auto& call : calls) call();
}

TEST(GroupedGemmArgumentsTest, DepthHasNoBias) {
  const std::int32_t offsets[] = {0, 100};
  const ScaledMatrix a(16, 128), b(24, 128);
  std::vector<float> out(16 * 24), bias(24);
  GroupedGemmArguments arguments{
      .a = a.view(),
      .b = b.view(),
      .groups = DepthGroups{vector<const void>(offsets, DType::kInt32, 2)},
      .out = test::tensor(out.data(), DType::kFloat32, {1, 16, 24})};
  EXPECT_EQ(error_of([&] { grouped_gemm(arguments); }), "no error");
  arguments.bias = vector<const void>(bias.data(), DType::kFloat32, 24);
  EXPECT_THAT(
      error_of([&] { grouped_gemm(arguments); }),
      HasSubstr("grouped_gemm: argument 'bias': expected it to be omitted beside DepthGroups"));
}

TEST(ArrivalsArgumentsTest, EachErrorNamesItsArgument) {
  const ScaledMatrix a(12, 300), b(200, 300, kSquares), squares(300, 300, kSquares);
  std::vector<float> out(300 * 200);
  const std::vector<std::int32_t> flags(3, 1);
  const GemmArguments arguments{.a = a.view(),
                                .b = b.view(),
                                .out = matrix(out.data(), DType::kFloat32, 12, 200),
                                .arrivals = Arrivals{vector(flags.data(), DType::kInt32, 3), 0}};
  test::refused([](auto& given) { gemm(given); }, arguments)({
      {[](auto& g) { g.arrivals->own = -1; }, "argument 'arrivals.own': expected"},
      {[](auto& g) { g.arrivals->flags.shape[0] = 0; },
       "argument 'arrivals.flags': expected as many as divide 12 rows of 'a', got 0"},
      {[](auto& g) { g.arrivals->flags.device = kGpu; },
       "argument 'arrivals.flags': expected a tensor on cpu, got one on cuda:0"},
      {[&](auto& g) { g.arrivals->flags.data = out.data(); },
       "argument 'out': expected memory of its own, apart from 'arrivals.flags'"},
      {[&](auto& g) {
         g.a = squares.view();
         g.out.shape[0] = 300;
       },
       "argument 'arrivals.flags': expected shards of a multiple of 128 rows, for 128x128 scales "
       "of "
       "'a', got 3 of 100"},
  });
}

using WeightOnlyRefusals = test::Refusals<GemmWeightOnlyArguments>;

TEST(GemmWeightOnlyArgumentsTest, EachErrorNamesItsArgument) {
  ScaledMatrix w(300, 256, kSquares), codes(5, 256);
  Matrix x(DType::kBFloat16, 5, 256), out(DType::kBFloat16, 5, 300), bias(DType::kFloat32, 1, 300);
  const auto refuses = [&](const DotOperand& operand, const WeightOnlyRefusals& refusals) {
    const GemmWeightOnlyArguments arguments{.x = operand, .w = w.view(), .out = out.view()};
    test::refused([](auto& given) { gemm_weight_only(given); }, arguments)(refusals);
  };
  const WeightOnlyRefusals of_both{
      {[](auto& d) { d.x.data.rank = 0; }, "argument 'x': expected at least 1 dimension"},
      {[](auto& d) { d.x.data.data = nullptr; }, "argument 'x': expected data"},
      {[](auto& d) { d.w.data.strides[1] = 3; }, "argument 'w'"},
      {[](auto& d) { d.out.strides[0] = 200; },
       "argument 'out': expected rows that do not overlap"},
      {[](auto& d) { d.out.device = kGpu; }, "argument 'out': expected a tensor on cpu"},
      {[](auto& d) { d.out.data = writable(d.w.data); },
       "argument 'out': expected memory of its own, apart from 'w'"},
      {[](auto& d) { d.w.scale.data = d.out.data; },
       "argument 'out': expected memory of its own, apart from 'w.scale'"},
  };
  refuses({x.view()}, of_both);
  refuses({x.view()},
          {{[](auto& d) { d.x.data.device = kGpu; }, "argument 'w': expected a tensor on cuda:0"},
           {[&](auto& d) { d.bias = matrix(d.out.data, DType::kBFloat16, 1, 300); },
            "argument 'bias': expected"},
           {[&](auto& d) { d.bias = vector(d.out.data, DType::kBFloat16, 300); },
            "argument 'out': expected memory of its own, apart from 'bias'"}});
  const ScaledTensorView vectors = codes.view();
  const DotOperand of_codes{vectors.data, vectors.scale, vectors.granularity};
  refuses(of_codes, of_both);
  refuses(
      of_codes,
      {{[&](auto& d) { d.bias = bias.row_vector(); },
        "argument 'bias': expected it to be omitted beside an 'x' of e4m3, got float32 [300]"},
       {[](auto& d) { d.x.scale->device = {DeviceType::kCuda, 1}; },
        "argument 'x.scale': expected a tensor on cpu"},
       {[](auto& d) { d.x.granularity = static_cast<Granularity>(7); }, "argument 'x.granularity'"},
       {[](auto& d) { d.x.scale->data = d.out.data; },
        "argument 'out': expected memory of its own, apart from 'x.scale'"}});
}

TEST(GemmWeightOnlyArgumentsTest, AWorkspaceIsAsLargeAsIsSaid) {
  EXPECT_EQ(weight_only_workspace_size(64, 4096, 7168), 4 * 64 * 4096);
  EXPECT_EQ(weight_only_workspace_size(5, 300, 256), 0);
  EXPECT_EQ(weight_only_workspace_size(0, 0, 0), 0);
  // A product of 20 rows with a W of [300, 1024] has 2 · 20 · 300 sums.
  const ScaledMatrix w(300, 1024, {.granularity = Granularity::kTensor});
  const Matrix x(DType::kBFloat16, 20, 1024);
  std::vector<float> out(20 * 300), workspace(2 * 20 * 300);
  const GemmWeightOnlyArguments arguments{
      .x = {x.view()},
      .w = w.view(),
      .out = matrix(out.data(), DType::kFloat32, 20, 300),
      .workspace = vector(workspace.data(), DType::kFloat32, std::ssize(workspace))};
  test::refused([](auto& given) { gemm_weight_only(given); }, arguments)({
      {[](auto& d) { d.workspace->shape[0] = 300; },
       "gemm_weight_only: argument 'workspace': expected shape [12000], got [300]"},
      {[](auto& d) { d.workspace->dtype = DType::kFloat16; },
       "argument 'workspace': expected dtype float32"},
      {[](auto& d) { d.workspace->device = kGpu; },
       "argument 'workspace': expected a tensor on cpu"},
      {[](auto& d) { d.out.data = d.workspace->data; },
       "argument 'workspace': expected memory of its own, apart from 'out'"},
  });
}

TEST(GemmWeightOnlyGradientArgumentsTest, EachErrorNamesItsArgument) {
  const ScaledMatrix w(300, 256);
  const Matrix gradient(DType::kFloat16, 5, 300);
  Matrix out(DType::kFloat32, 5, 256);
  float sum = 0;
  const GemmWeightOnlyGradientArguments arguments{
      .gradient = gradient.view(), .w = w.view(), .out = out.view()};
  test::refused([](auto& given) { gemm_weight_only_gradient(given); }, arguments)({
      {[](auto& d) { d.w.scale.data = nullptr; }, "argument 'w.scale': expected data"},
      {[](auto& d) { d.out.data = writable(d.gradient); },
       "argument 'out': expected memory of its own, apart from 'gradient'"},
      {[&](auto& d) { d.workspace = vector(&sum, DType::kFloat32, 1); },
       "gemm_weight_only_gradient: argument 'workspace': expected shape [0], got [1]"},
  });
}

TEST(DotArgumentsTest, EachErrorNamesItsArgument) {
  std::vector<float> a(300), scales{2, 4, 8}, workspace(1), out(1);
  const std::vector<std::uint8_t> codes(300, 0x38);
  EXPECT_EQ(dot_workspace_size(0), 0);
  EXPECT_EQ(dot_workspace_size(8193), 2);
  const DotArguments valid{.a = {.data = vector(a.data(), DType::kFloat32, 300)},
                           .b = {.data = matrix(codes.data(), DType::kE4M3, 1, 300),
                                 .scale = matrix(scales.data(), DType::kFloat32, 1, 3),
                                 .granularity = Granularity::kBlock1x128},
                           .out = vector(out.data(), DType::kFloat32, 1),
                           .workspace = vector(workspace.data(), DType::kFloat32, 1)};
  test::refused([](auto& given) { dot(given); }, valid)({
      // The scale is that of a matrix of one row, which may be a vector where the codes are.
      {[&](auto& d) { d.b.scale = vector(scales.data(), DType::kFloat32, 3); },
       "'b.scale': expected shape [1, 3]"},
      {[](auto& d) { d.out.data = nullptr; }, "'out'"},
      {[&](auto& d) { d.out.data = a.data() + 9; },
       "'out': expected memory of its own, apart from 'a'"},
      {[&](auto& d) { d.out.data = scales.data() + 1; },
       "'out': expected memory of its own, apart from 'b.scale'"},
      {[&](auto& d) { d.workspace.data = out.data(); },
       "'workspace': expected memory of its own, apart from 'out'"},
      {[](auto& d) { d.workspace.shape[0] = 0; }, "'workspace'"},
      {[](auto& d) { d.b.data.device = kGpu; }, "'b.scale'"},
      {[](auto& d) { d.a.data.device = kGpu; }, "'b': expected a tensor on cuda:0"},
      {[](auto& d) { d.a.data.shape[0] = 299; }, "'b': expected K = 299"},
  });
}

}  // namespace
}  // namespace octofold
