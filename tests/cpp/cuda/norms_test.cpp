// The launches with which a norm reaches the GPU. Its results are tested on a GPU, and by the same
// parameters on the host in tests/cpp/kernels/norms_test.cpp.
#include "octofold/scale_layout.h"

#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/norm/config/norm.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

constexpr std::int64_t kRows = 200, kCols = 640;

MutableTensorView rows_at(std::uintptr_t value, std::int64_t rows, DType dtype = DType::kBFloat16) {
  return matrix(address(value), dtype, rows, kCols, kCols + 8, kGpu);
}
MutableTensorView floats_at(std::uintptr_t value, std::int64_t size) {
  return vector(address(value), DType::kFloat32, size, kGpu);
}

class NormTest : public FakeGpuTest {
 protected:
  void cast(const CastTargets& out, DType in = DType::kBFloat16) {
    const CastTarget& any = out.rows ? *out.rows : *out.transposed;
    const config::CastFormat format{
        .in = in, .out = any.data.dtype, .granularity = any.format.granularity};
    cuda::cast(runtime().device(0), arguments_, out, format, {&stream_});
  }

  static CastTarget output(std::int64_t rows, std::int64_t cols, Granularity granularity) {
    return {matrix(address(0x2000), DType::kE4M3, rows, cols, cols + 16, kGpu),
            scale_layout(granularity, rows, cols, DeviceType::kCuda).view(address(0x3000), kGpu),
            {.granularity = granularity}};
  }

  Normed arguments_{
      .kind = NormKind::kLayer,
      .epsilon = 0.25f,
      .x = rows_at(0x10000, kRows),
      .residual = rows_at(0x20000, kRows),
      .operands = {.weight = floats_at(0x4000, kCols), .ada_scale = rows_at(0x5000, 4)},
      .sum = rows_at(0x30000, kRows),
      .rstd = floats_at(0x6000, kRows),
      .mean = floats_at(0x7000, kRows)};
  int stream_ = 0;
};

TEST_F(NormTest, RowsAreCastByTheKernelThatFindsTheStatistics) {
  state().params_bytes = sizeof(config::NormParams);
  cast({.rows = output(kRows, kCols, Granularity::kBlock1x128)});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, &stream_);
  const auto params = state().launches[0].params_as<config::NormParams>();
  EXPECT_EQ(params.x, address(0x10000));
  EXPECT_EQ(params.target.codes, address(0x2000));
}

TEST_F(NormTest, NumbersTakeOneKernel) {
  state().params_bytes = sizeof(config::NormParams);
  for (const std::uintptr_t y : {0x40000, 0x40002}) {
    norm(runtime().device(0), arguments_, rows_at(y, kRows), {&stream_});
    EXPECT_EQ(state().launches.back().params_as<config::NormParams>().y, address(y));
  }
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(compilations_, 2);  // the second is not aligned
}

// The casts read the sum, and the statistics that the first kernel leaves.
TEST_F(NormTest, TilesFollowTheStatistics) {
  constexpr std::size_t kNorm = sizeof(config::NormParams), kCast = sizeof(config::CastParams);
  state().first_params_bytes = {kNorm, kCast, kNorm};
  state().params_bytes = kCast;
  cast({.transposed = output(kCols, kRows, Granularity::kBlock1x128)});
  ASSERT_EQ(state().launches.size(), 2u);
  const auto params = state().launches[1].params_as<config::CastParams>();
  EXPECT_EQ(params.x, address(0x30000));
  EXPECT_EQ(params.rstd, address(0x6000));
  EXPECT_EQ(params.mean, address(0x7000));
  EXPECT_EQ(params.norm.weight, address(0x4000));
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);

  cast({.rows = output(kRows, kCols, Granularity::kTensor)});
  EXPECT_EQ(state().launches.size(), 2u + 5u);
}

TEST_F(NormTest, AnUnalignedOperandTakesAnotherKernel) {
  state().params_bytes = sizeof(config::NormParams);
  const CastTarget out = output(kRows, kCols, Granularity::kChannel);
  cast({.rows = out});
  cast({.rows = out});
  EXPECT_EQ(compilations_, 1);
  arguments_.operands.weight->data = address(0x4004);
  cast({.rows = out});
  EXPECT_EQ(compilations_, 2);
}

TEST_F(NormTest, GradientsTakeAKernelForEachKindOfOperand) {
  state().params_bytes = sizeof(config::NormBackwardParams);
  const std::int64_t spans = config::norm_spans(kCols, 4);
  cuda::norm_gradient(
      runtime().device(0),
      {.kind = NormKind::kLayer,
       .gradient = rows_at(0x40000, kRows),
       .x = rows_at(0x30000, kRows),
       .rstd = floats_at(0x6000, kRows),
       .mean = floats_at(0x7000, kRows),
       .operands = arguments_.operands},
      {.dx = rows_at(0x60000, kRows),
       .dweight = floats_at(0x8000, kCols),
       .d_ada_scale = rows_at(0x9000, 4, DType::kFloat32),
       .workspace = matrix(address(0x100000), DType::kFloat32, 2 * spans, kCols, kCols, kGpu)},
      {&stream_});
  ASSERT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().launches[0].blocks, kRows);
  EXPECT_EQ(state().launches[1].blocks, kCols / config::NormGradientConfig::kColumns);
  for (const fake::Launch& launch : state().launches) {
    EXPECT_EQ(launch.stream, &stream_);
    const auto params = launch.params_as<config::NormBackwardParams>();
    EXPECT_EQ(params.dx, address(0x60000));
    EXPECT_EQ(params.rows_per_block, 1);
    EXPECT_EQ(params.blocks_per_batch, kRows / 4);
  }
}

}  // namespace
}  // namespace octofold::cuda
