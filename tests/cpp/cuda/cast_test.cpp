// The launches with which casts and norms reach the GPU. Their results are tested on a GPU, and by
// the same parameters on the host in tests/cpp/kernels.
#include "plan/cast.h"

#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/cast/config/params.h"
#include "kernels/norm/config/norm.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::CastParams;
using test::address, test::kGpu, test::matrix_at, test::vector_at;
using enum DType;
using enum Granularity;

constexpr std::int64_t kRows = 200, kCols = 640;

// Codes whose rows are whole vectors, at 0x2000.
CastTarget output(std::int64_t rows, std::int64_t cols, Granularity granularity) {
  CastTarget target = test::operand(kE4M3, granularity, rows, rows, cols, 0x2000);
  target.data.strides[0] = cols + 16;
  return target;
}

auto cast_of(const CastSource& source, const CastTargets& out, DType in = kBFloat16) {
  const CastTarget& any = out.rows ? *out.rows : *out.transposed;
  const config::CastFormat format{
      .in = in, .out = any.data.dtype, .granularity = any.format.granularity};
  return [=](Device& device, Stream stream) { cast(device, source, out, format, stream); };
}

class CastTest : public LaunchTest {
 protected:
  Blocks blocks(const CastTargets& out) { return blocks_of(cast_of(x_, out)); }

  TensorView x_ = matrix_at(0x1000, kBFloat16, kRows, kCols, 8);
};

TEST_F(CastTest, BothTargetsAreOneRead) {
  EXPECT_EQ(blocks({.rows = output(kRows, kCols, kBlock128x128),
                    .transposed = output(kCols, kRows, kBlock128x128)}),
            Blocks{2 * 5});
  EXPECT_EQ(blocks({.rows = output(kRows, kCols, kTensor)}).size(), 4u);
  CastTarget given = output(kRows, kCols, kTensor);
  given.scales = ScaleSource::kGiven;
  EXPECT_EQ(blocks({.rows = given}).size(), 1u);
  // Largest magnitudes are taken for the transpose, beside rows that find their own.
  CastTarget transposed = output(kCols, kRows, kChannel);
  transposed.amax = vector_at(0x7000, kFloat32, kCols);
  const Blocks taken =
      blocks({.rows = output(kRows, kCols, kBlock1x128), .transposed = transposed});
  EXPECT_THAT(taken, ElementsAre(3, 2 * 5, testing::_));  // 640 / 256 units
}

// The sizes of groups stay on the GPU: what is launched is known from their number.
TEST_F(CastTest, GroupsAreToldByWhereTheyBegin) {
  const TensorView offsets = vector_at(0x9000, kInt32, 7);
  EXPECT_EQ(blocks({.rows = output(kRows, kCols, kBlock1x128),
                    .transposed = output(kCols, 128 * (1 + 6), kBlock1x128),
                    .offsets = offsets}),
            Blocks{(1 + 6) * 5});
  EXPECT_EQ(blocks({.transposed = output(kCols, 128, kBlock1x128),
                    .offsets = offsets,
                    .group_layout = GroupLayout::kTight}),
            Blocks{5});
}

// One launch, whose kernel finds each tile's matrix by the number of tiles that one has. The rows
// of transposes are those of all matrices.
TEST_F(CastTest, AStackIsOneKernel) {
  const auto of_stack = [&](std::int64_t matrices, bool to_rows) {
    const auto squares = [](std::uintptr_t codes, std::int64_t rows, std::int64_t cols,
                            std::int64_t down, std::int64_t across) {
      return CastTarget{matrix_at(codes, kE4M3, rows, cols, 8),
                        matrix_at(codes + 0x1000, kFloat32, down, across),
                        {.granularity = kBlock128x128}};
    };
    CastTargets targets{
        .transposed = squares(0x8000, matrices * kCols, kRows / matrices, matrices * 5, 2),
        .matrices = matrices};
    if (to_rows) targets.rows = squares(0x2000, kRows, kCols, matrices, 5);
    return blocks(targets);
  };
  EXPECT_EQ(of_stack(1, true), Blocks{2 * 5});
  EXPECT_EQ(of_stack(4, true), Blocks{4 * 1 * 5});
  EXPECT_EQ(of_stack(4, false), Blocks{4 * 1 * 5});
}

TEST_F(CastTest, GatheredRowsAreAsManyAsTheirSources) {
  const GatheredRows rows{.x = x_, .sources = vector_at(0x9000, kInt32, 900), .slots = 6};
  EXPECT_EQ(blocks_of(cast_of(rows, {.rows = output(900, kCols, kBlock1x128)})), Blocks{29 * 5});
}

// The workspace has two rows for 200 of x, of sums first where there are both; a kernel more goes
// on from there.
TEST_F(CastTest, ColumnsAreReducedByWayOfTheWorkspace) {
  const auto sums = vector_at(0x5000, kFloat32, kCols), amax = vector_at(0x6000, kFloat32, kCols);
  CastTargets targets{.rows = output(kRows, kCols, kBlock1x128)};
  auto* const workspace = static_cast<float*>(address(0x100000));
  for (const ColumnTargets& columns :
       {ColumnTargets{.sums = sums}, {.amax = amax}, {.sums = sums, .amax = amax}}) {
    targets.columns = columns;
    targets.columns.workspace = matrix(workspace, kFloat32, 4, kCols, kCols, kGpu);
    const auto params = params_of_call<CastParams>(cast_of(x_, targets)).columns;
    EXPECT_EQ(params.partial_sums, columns.sums ? workspace : nullptr);
    EXPECT_EQ(params.partial_amax,
              columns.amax ? workspace + (columns.sums ? 2 * kCols : 0) : nullptr);
    EXPECT_EQ(blocks(targets), (Blocks{2 * 5, 20}));
  }
  EXPECT_EQ(compilations_, 6);
}

// There are as many clusters as rows, or as the GPU runs at one time.
TEST_F(CastTest, AWideRowIsAClusters) {
  const auto wide = [](std::int64_t rows) {
    return cast_of(matrix_at(0x1000, kBFloat16, rows, 65536),
                   {.rows = output(rows, 65536, kChannel)});
  };
  EXPECT_EQ(blocks_of(wide(3)), Blocks{3 * 4});
  EXPECT_EQ(blocks_of(wide(1000)), Blocks{132});
  EXPECT_EQ(state().launches[0].cluster, 4u);
  EXPECT_EQ(state().launches[0].shared_bytes, 2u * 36 * 1024);
}

TEST_F(CastTest, SaysThatTheDriverDoesNotCountClusters) {
  state().occupancy_error = 1;
  x_ = matrix_at(0x1000, kBFloat16, 3, 65536);
  EXPECT_THAT([&] { blocks({.rows = output(3, 65536, kChannel)}); },
              testing::ThrowsMessage<Error>(HasSubstr("cuOccupancyMaxActiveClusters")));
}

// Rows of x may coincide, or go backwards.
TEST_F(CastTest, ACastIsPreparedOnce) {
  const CastTargets targets{.rows = output(kRows, kCols, kBlock1x128)};
  for (const std::int64_t stride : {kCols + 8, std::int64_t{0}, -kCols}) {
    x_.strides[0] = stride;
    EXPECT_EQ(params_of_call<CastParams>(cast_of(x_, targets)).x_stride, stride);
  }
  EXPECT_EQ(compilations_, 1);
  first_ = x_.data = address(0x1002);  // not aligned any more
  EXPECT_EQ(compiled_by(cast_of(x_, targets)), 1);
}

// Codes, whose vectors are of half as many bytes as those of the gradient. No kernel on the host
// reads such a source.
TEST_F(CastTest, AnActivationInFp8HasScales) {
  ScaledTensorView codes = output(kRows, 2 * kCols, kBlock1x128);
  first_ = codes.data.data = address(0x2008);
  codes.data.strides[0] = 1288;
  const auto back = [&] {
    return cast_of(ActivationGradient{.gradient = x_, .x = codes},
                   {.rows = output(kRows, 2 * kCols, kBlock1x128)});
  };
  const auto params = params_of_call<CastParams>(back());
  EXPECT_EQ(params.x_stride, 1288);
  EXPECT_EQ(params.x_scale, codes.scale.data);
  EXPECT_EQ(params.x_scale_row_stride, 1);
  EXPECT_EQ(params.x_scale_col_stride, kRows);
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, 648);
  // Tiles of 64 rows: gate and up 8 bytes each, the gradient 16, two scales of 4.
  EXPECT_EQ(state().launches[0].shared_bytes, 64u * 16 * (8 + 8 + 16 + 4 + 4));
  EXPECT_EQ(state().launches[0].blocks, 4u * 5);
  first_ = codes.data.data = address(0x2004);  // no whole vectors any more
  EXPECT_EQ(compiled_by(back()), 1);
  EXPECT_EQ(state().launches[0].shared_bytes, 0u);
}

// ---- Many casts in one call.

class CastManyTest : public LaunchTest {
 protected:
  CastManyTest() { first_ = nullptr; }

  // A matrix that begins at an address, cast both ways.
  static CheckedCast of(std::uintptr_t place, std::int64_t rows, std::int64_t cols,
                        Granularity granularity = kBlock128x128) {
    return {matrix_at(place, kBFloat16, rows, cols),
            {.rows = test::operand(kE4M3, granularity, rows, rows, cols, place + 0x100),
             .transposed = test::operand(kE4M3, granularity, cols, cols, rows, place + 0x200)},
            {.in = kBFloat16, .granularity = granularity}};
  }
  static auto all(const std::vector<CheckedCast>& casts) {
    return [=](Device& device, Stream stream) { cast_many(device, casts, stream); };
  }
  config::CastBatchParams params(const std::vector<CheckedCast>& casts, std::size_t launch) {
    return params_of_call<config::CastBatchParams>(all(casts), launch);
  }
};

TEST_F(CastManyTest, OneKernelHasThemAll) {
  CheckedCast stack = of(0x20000, 4 * 128, 640);
  stack.targets.transposed->data = matrix_at(0x20200, kE4M3, 4 * 640, 128);
  stack.targets.matrices = 4;
  const std::vector casts{of(0x10000, 200, 640), stack, of(0x30000, 128, 128)};
  EXPECT_EQ(blocks_of(all(casts)), Blocks{2u * 5 + 4 * 1 * 5 + 1});
  EXPECT_EQ(params(casts, 0).first_block[3], config::CastBatchParams::kNoBlock);
  EXPECT_EQ(blocks_of(all({})), Blocks{});
  EXPECT_EQ(blocks_of(all({of(0x10000, 0, 640), of(0x20000, 128, 0)})), Blocks{});
}

TEST_F(CastManyTest, AsManyAsParametersHold) {
  constexpr unsigned kMost = config::CastBatchParams::kMostJobs;
  std::vector<CheckedCast> casts;
  for (std::uintptr_t i = 0; i < 2 * kMost + 1; ++i) {
    casts.push_back(of(0x10000 * (i + 1), 128, 128));
  }
  EXPECT_EQ(blocks_of(all(casts)), (Blocks{kMost, kMost, 1}));
  EXPECT_EQ(params(casts, 2).jobs[0].x, address(0x10000 * casts.size()));
}

TEST_F(CastManyTest, KindsAreLaunchesOfTheirOwn) {
  CheckedCast wide = of(0x20000, 128, 128);
  wide.source.dtype = wide.format.in = kFloat32;
  const std::vector casts{of(0x10000, 128, 128), wide, of(0x30000, 200, 640)};
  EXPECT_EQ(blocks_of(all(casts)), (Blocks{1 + 2 * 5, 1}));
  EXPECT_EQ(params(casts, 1).jobs[0].x, address(0x20000));
}

// A step for all of them comes before the next one.
TEST_F(CastManyTest, ScalesOfTensorsTakeFourKernels) {
  const std::vector casts{of(0x10000, 200, 640, kTensor), of(0x20000, 128, 128, kTensor)};
  EXPECT_EQ(blocks_of(all(casts)), (Blocks{2, 2 * 5 + 1, 2 * 5 + 1, 2}));
  EXPECT_EQ(params(casts, 3).first_block[1], 1);
}

// ---- Norms.

class NormTest : public LaunchTest {
 protected:
  Normed source_{.kind = NormKind::kLayer,
                 .epsilon = 0.25f,
                 .x = matrix_at(0x1000, kBFloat16, kRows, kCols, 8),
                 .residual = matrix_at(0x20000, kBFloat16, kRows, kCols, 8),
                 .operands = {.weight = vector_at(0x4000, kFloat32, kCols),
                              .ada_scale = matrix_at(0x5000, kBFloat16, 4, kCols, 8)},
                 .sum = matrix_at(0x30000, kBFloat16, kRows, kCols, 8),
                 .rstd = vector_at(0x6000, kFloat32, kRows),
                 .mean = vector_at(0x7000, kFloat32, kRows)};
};

TEST_F(NormTest, RowsAreCastByTheKernelThatFindsTheStatistics) {
  const CastTargets targets{.rows = output(kRows, kCols, kBlock1x128)};
  const auto params = params_of_call<config::NormParams>(cast_of(source_, targets));
  EXPECT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(params.target.codes, address(0x2000));
  source_.operands.weight->data = address(0x4004);  // not aligned
  EXPECT_EQ(compiled_by(cast_of(source_, targets)), 1);
}

TEST_F(NormTest, NumbersTakeOneKernel) {
  for (const std::uintptr_t y : {0x40000, 0x40002}) {
    const auto numbers = [&](Device& device, Stream stream) {
      norm(device, source_, matrix_at(y, kBFloat16, kRows, kCols, 8), stream);
    };
    EXPECT_EQ(params_of_call<config::NormParams>(numbers).y, address(y));
    EXPECT_EQ(state().launches.size(), 1u);
  }
  EXPECT_EQ(compilations_, 2);  // the second is not aligned
}

// The casts read the sum, and the statistics that the first kernel leaves.
TEST_F(NormTest, TilesFollowTheStatistics) {
  first_ = nullptr;
  state().first_params_bytes = {sizeof(config::NormParams)};
  const auto params = params_of_call<CastParams>(
      cast_of(source_, {.transposed = output(kCols, kRows, kBlock1x128)}), 1);
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(params.x, address(0x30000));
  EXPECT_EQ(params.rstd, address(0x6000));
  EXPECT_EQ(params.mean, address(0x7000));
  EXPECT_EQ(params.norm.weight, address(0x4000));
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(blocks_of(cast_of(source_, {.rows = output(kRows, kCols, kTensor)})).size(), 5u);
  const CastTargets reduced{.rows = output(kRows, kCols, kBlock1x128),
                            .columns = {.amax = vector_at(0x8000, kFloat32, kCols),
                                        .workspace = vector_at(0x200000, kFloat32, kRows * kCols)}};
  EXPECT_GT(blocks_of(cast_of(source_, reduced)).size(), 1u);
}

TEST_F(NormTest, GradientsTakeAKernelForEachKindOfOperand) {
  const std::int64_t spans = config::norm_spans(kCols, 4);
  const auto back = [&](Device& device, Stream stream) {
    norm_gradient(device,
                  {.kind = NormKind::kLayer,
                   .gradient = source_.x,
                   .x = *source_.sum,
                   .rstd = source_.rstd,
                   .mean = source_.mean,
                   .operands = source_.operands},
                  {.dx = matrix_at(0x60000, kBFloat16, kRows, kCols, 8),
                   .dweight = vector_at(0x8000, kFloat32, kCols),
                   .d_ada_scale = matrix_at(0x9000, kFloat32, 4, kCols, 8),
                   .workspace = matrix_at(0x100000, kFloat32, 2 * spans, kCols)},
                  stream);
  };
  EXPECT_THAT(blocks_of(back), ElementsAre(kRows, kCols / 8, testing::_));
  for (const std::size_t launch : {0u, 1u, 2u}) {
    const auto params = params_of_call<config::NormBackwardParams>(back, launch);
    EXPECT_EQ(params.dx, address(0x60000));
    EXPECT_EQ(params.rows_per_block, 1);
    EXPECT_EQ(params.blocks_per_batch, kRows / 4);
  }
}

}  // namespace
}  // namespace octofold::cuda
