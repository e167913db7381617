// The launches and parameters with which a cast reaches the GPU. Its results are tested on a GPU.
#include "cuda/backend.h"

#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "kernels/cast/config/params.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

constexpr std::int64_t kRows = 200, kCols = 640;

class CastTest : public FakeGpuTest {
 protected:
  CastTest() { state().params_bytes = sizeof(config::CastParams); }

  void cast(const CastTargets& out) { cast(x_, out); }
  void cast(const CastSource& source, const CastTargets& out) {
    const CastTarget& any = out.rows ? *out.rows : *out.transposed;
    const config::CastFormat format{
        .in = DType::kBFloat16, .out = any.data.dtype, .granularity = any.format.granularity};
    cuda::cast(runtime().device(0), source, out, format, {&stream_});
  }

  TensorView x_ = matrix<const void>(address(0x1000), DType::kBFloat16, kRows, kCols, 648, kGpu);
  int stream_ = 0;
};

CastTarget output(std::int64_t rows, std::int64_t cols, Granularity granularity) {
  const MutableTensorView scale =
      scale_layout(granularity, rows, cols, DeviceType::kCuda).view(address(0x3000), kGpu);
  return {matrix(address(0x2000), DType::kE4M3, rows, cols, cols + 16, kGpu),
          scale,
          {.granularity = granularity}};
}

TEST_F(CastTest, TheKernelGetsTheArguments) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  cast({.rows = out});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, &stream_);
  EXPECT_TRUE(state().launches[0].may_overlap);
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.x, address(0x1000));
  EXPECT_EQ(params.x_stride, 648);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(params.row_target.codes, address(0x2000));
  EXPECT_EQ(params.row_target.codes_stride, kCols + 16);
  EXPECT_EQ(params.row_target.scale, address(0x3000));
  EXPECT_EQ(params.row_target.scale_row_stride, 1);
  EXPECT_EQ(params.row_target.scale_col_stride, kRows);
  EXPECT_EQ(params.transposed_target.codes, nullptr);
}

TEST_F(CastTest, BothCastsAreOneKernel) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock128x128);
  const CastTarget transposed = output(kCols, kRows, Granularity::kBlock128x128);
  cast({.rows = out, .transposed = transposed});
  ASSERT_EQ(state().launches.size(), 1u);
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.row_target.codes_stride, kCols + 16);
  EXPECT_EQ(params.transposed_target.codes_stride, kRows + 16);
}

// Their sizes stay on the GPU: what is launched is known from their number.
TEST_F(CastTest, GroupsAreToldByWhereTheyBegin) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  const CastTarget transposed = output(kCols, 128 * (1 + 6), Granularity::kBlock1x128);
  const auto offsets = vector<const void>(address(0x9000), DType::kInt32, 7, kGpu);
  cast({.rows = out, .transposed = transposed, .offsets = offsets});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].blocks, (1u + 6) * 5);
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.offsets, address(0x9000));
  EXPECT_EQ(params.groups, 6);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(params.sources, nullptr);
  const CastTarget tight = output(kCols, 128, Granularity::kBlock1x128);
  cast({.transposed = tight, .offsets = offsets, .group_layout = GroupLayout::kTight});
  EXPECT_EQ(state().launches[1].blocks, 5u);
  EXPECT_EQ(state().launches[1].params_as<config::CastParams>().rows, kRows);
  cast({.rows = out});
  EXPECT_EQ(state().launches[2].params_as<config::CastParams>().offsets, nullptr);
}

// One launch, whose kernel finds each tile's matrix by the number of tiles that one has.
TEST_F(CastTest, AStackIsOneKernel) {
  const auto cast_stack = [&](std::int64_t matrices, const MutableTensorView& scales) {
    const CastTarget out{matrix(address(0x2000), DType::kE4M3, kRows, kCols, kCols, kGpu),
                         scales,
                         {.granularity = Granularity::kBlock128x128}};
    const CastTarget transposed{
        matrix(address(0x8000), DType::kE4M3, matrices * kCols, kRows / matrices, 208, kGpu),
        matrix(address(0x9000), DType::kFloat32, matrices * 5, 2, 2, kGpu),
        {.granularity = Granularity::kBlock128x128}};
    cast({.rows = out, .transposed = transposed, .matrices = matrices});
  };
  cast_stack(1, matrix(address(0x3000), DType::kFloat32, 2, 5, 5, kGpu));
  cast_stack(4, matrix(address(0x3000), DType::kFloat32, 4, 5, 5, kGpu));
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].blocks, 2u * 5);
  EXPECT_EQ(state().launches[1].blocks, 4u * 1 * 5);
  const auto params = state().launches[1].params_as<config::CastParams>();
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  EXPECT_EQ(params.matrices, 4);
  EXPECT_EQ(params.matrix_rows, kRows / 4);
  EXPECT_EQ(params.matrix_tiles, 1);
  EXPECT_EQ(params.by_matrix_tiles.quotient(3), 3u);
  EXPECT_EQ(params.transposed_target.codes_stride, 208);
  EXPECT_EQ(params.transposed_target.scale_row_stride, 2);
}

// The rows of such transposes are those of all matrices.
TEST_F(CastTest, TransposesAloneOfAStackHaveTheColumnsOfOneMatrix) {
  const CastTarget transposed{
      matrix(address(0x8000), DType::kE4M3, 4 * kCols, kRows / 4, 208, kGpu),
      matrix(address(0x9000), DType::kFloat32, 4 * 5, 2, 2, kGpu),
      {.granularity = Granularity::kBlock128x128}};
  cast({.transposed = transposed, .matrices = 4});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].blocks, 4u * 1 * 5);
  EXPECT_EQ(state().launches[0].params_as<config::CastParams>().cols, kCols);
}

TEST_F(CastTest, UsedMatricesAreTakenFromTheDevice) {
  const CastTarget out{matrix(address(0x2000), DType::kE4M3, kRows, kCols, kCols, kGpu),
                       matrix(address(0x3000), DType::kFloat32, 4, 5, 5, kGpu),
                       {.granularity = Granularity::kBlock128x128}};
  const auto used = vector<const void>(address(0xA000), DType::kInt32, 5, kGpu);
  cast({.rows = out, .matrices = 4, .used = used});
  cast({.rows = out, .matrices = 4});
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].params_as<config::CastParams>().used, address(0xA000));
  EXPECT_EQ(state().launches[1].params_as<config::CastParams>().used, nullptr);
}

// The scales of tensors, one for each matrix.
TEST_F(CastTest, TensorsInAStackHaveAScaleEach) {
  MutableTensorView scales = vector(address(0x3000), DType::kFloat32, 4, kGpu);
  scales.strides[0] = 3;
  cast({.rows = CastTarget{matrix(address(0x2000), DType::kE4M3, kRows, kCols, kCols, kGpu),
                           scales,
                           {.granularity = Granularity::kTensor}},
        .matrices = 4});
  ASSERT_EQ(state().launches.size(), 4u);
  EXPECT_EQ(state().launches[1].blocks, 4u * 1 * 5);
  const auto params = state().launches[1].params_as<config::CastParams>();
  EXPECT_EQ(params.row_target.scale_row_stride, 3);
}

TEST_F(CastTest, GatheredRowsAreAsManyAsTheirSources) {
  const CastTarget out = output(900, kCols, Granularity::kBlock1x128);
  cast(GatheredRows{.x = x_,
                    .sources = vector<const void>(address(0x9000), DType::kInt32, 900, kGpu),
                    .slots = 6,
                    .factors =
                        matrix<const void>(address(0xA000), DType::kFloat32, kRows, 6, 6, kGpu)},
       {.rows = out});
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.rows, 900);
  EXPECT_EQ(params.sources, address(0x9000));
  EXPECT_EQ(params.factors, address(0xA000));
  EXPECT_EQ(params.slots.quotient(17), 2u);
  EXPECT_EQ(params.places, 1200u);
  EXPECT_EQ(state().launches[0].blocks, 29u * 5);
}

// Rows of 1x128, and the transpose with its channels' factors: from one read.
TEST_F(CastTest, TwoLevelScalesAreOneKernel) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  CastTarget transposed = output(kCols, kRows, Granularity::kBlock128x128);
  transposed.channel_scale = vector<const void>(address(0x7000), DType::kFloat32, kCols, kGpu);
  cast({.rows = out, .transposed = transposed});
  ASSERT_EQ(state().launches.size(), 1u);
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.transposed_channel_scale, address(0x7000));
  EXPECT_EQ(params.row_channel_scale, nullptr);
  EXPECT_EQ(params.transposed_target.scale_row_stride, 2);
}

TEST_F(CastTest, AScaleOfAllElementsTakesFourSteps) {
  const CastTarget out = output(kRows, kCols, Granularity::kTensor);
  for (int i = 0; i < 3; ++i) cast({.rows = out});
  EXPECT_EQ(state().launches.size(), 12u);
  EXPECT_EQ(compilations_, 4);
}

// The most that a cast takes.
TEST_F(CastTest, ColumnsOfACastInFourStepsAreAFifth) {
  const CastTarget out = output(kRows, kCols, Granularity::kChannel);
  const CastTarget transposed = output(kCols, kRows, Granularity::kChannel);
  const auto sums = vector(address(0x5000), DType::kFloat32, kCols, kGpu);
  const auto workspace = matrix(address(0x100000), DType::kFloat32, 2, kCols, kCols, kGpu);
  cast({.rows = out, .transposed = transposed, .columns = {.sums = sums, .workspace = workspace}});
  EXPECT_EQ(state().launches.size(), 5u);
}

// The workspace has two rows for 200 of x, of sums first; a second kernel goes on from there.
TEST_F(CastTest, ColumnsAreReducedByWayOfTheWorkspace) {
  const auto floats_at = [](std::uintptr_t value) {
    return vector(address(value), DType::kFloat32, kCols, kGpu);
  };
  const auto workspace = [](std::int64_t rows) {
    return matrix(address(0x100000), DType::kFloat32, rows, kCols, kCols, kGpu);
  };
  const auto at = [](std::uintptr_t value) { return static_cast<float*>(address(value)); };
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  const auto params_of = [&](const ColumnTargets& columns) {
    cast({.rows = out, .columns = columns});
    return state().launches.back().params_as<config::CastParams>().columns;
  };
  const auto both =
      params_of({.sums = floats_at(0x5000), .amax = floats_at(0x6000), .workspace = workspace(4)});
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].blocks, 2u * 5);
  EXPECT_EQ(state().launches[1].blocks, 20u);
  EXPECT_EQ(state().launches[0].params_as<config::CastParams>().columns.sums, at(0x5000));
  EXPECT_EQ(both.sums, at(0x5000));
  EXPECT_EQ(both.amax, at(0x6000));
  EXPECT_EQ(both.partial_sums, at(0x100000));
  EXPECT_EQ(both.partial_amax, at(0x100000) + 2 * kCols);
  const auto amax = params_of({.amax = floats_at(0x6000), .workspace = workspace(2)});
  EXPECT_EQ(amax.partial_sums, nullptr);
  EXPECT_EQ(amax.partial_amax, at(0x100000));
  const auto sums = params_of({.sums = floats_at(0x5000), .workspace = workspace(2)});
  EXPECT_EQ(sums.partial_sums, at(0x100000));
  EXPECT_EQ(sums.partial_amax, nullptr);
  EXPECT_EQ(compilations_, 6);
}

// One kernel, which reads the scales; rows of x may coincide, or go backwards.
TEST_F(CastTest, GivenScalesTakeOneStep) {
  CastTarget out = output(kRows, kCols, Granularity::kTensor);
  out.scales = ScaleSource::kGiven;
  for (const std::int64_t stride : {std::int64_t{0}, -kCols}) {
    x_.strides[0] = stride;
    cast({.rows = out});
    const auto params = state().launches.back().params_as<config::CastParams>();
    EXPECT_EQ(params.x_stride, stride);
    EXPECT_EQ(params.row_target.scale, address(0x3000));
  }
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(compilations_, 1);
}

// Largest magnitudes that are given are taken for the transpose, beside rows that find their own.
TEST_F(CastTest, AGivenAmaxTakesOneRead) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  CastTarget transposed = output(kCols, kRows, Granularity::kChannel);
  transposed.amax = vector<const void>(address(0x7000), DType::kFloat32, kCols, kGpu);
  transposed.amax->strides[0] = 2;
  cast({.rows = out, .transposed = transposed});
  ASSERT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().launches[0].blocks, 3u);  // 640 / 256
  EXPECT_EQ(state().launches[1].blocks, 2u * 5);
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.transposed_amax.data, address(0x7000));
  EXPECT_EQ(params.transposed_amax.stride, 2);
  EXPECT_EQ(params.row_amax.data, nullptr);
  EXPECT_EQ(params.transposed_target.scale, address(0x3000));
}

class WideCastTest : public CastTest {
 protected:
  void quantize_wide(std::int64_t rows) {
    x_ = matrix<const void>(address(0x1000), DType::kBFloat16, rows, 65536, 65536, kGpu);
    const CastTarget out{matrix(address(0x2000), DType::kE4M3, rows, 65536, 65536, kGpu),
                         vector(address(0x3000), DType::kFloat32, rows, kGpu),
                         {.granularity = Granularity::kChannel}};
    cast({.rows = out});
  }
};

// There are as many clusters as rows, or as the GPU runs at one time.
TEST_F(WideCastTest, AWideRowIsAClusters) {
  for (const std::int64_t rows : {3, 1000}) quantize_wide(rows);
  ASSERT_EQ(state().launches.size(), 2u);
  for (const fake::Launch& launch : state().launches) {
    EXPECT_EQ(launch.cluster, 4u);
    EXPECT_EQ(launch.shared_bytes, 2u * 36 * 1024);
  }
  EXPECT_EQ(state().launches[0].blocks, 3 * 4u);
  EXPECT_EQ(state().launches[1].blocks, 132u);
}

TEST_F(WideCastTest, SaysThatTheDriverDoesNotCountClusters) {
  state().occupancy_error = 1;
  EXPECT_THAT([&] { quantize_wide(3); },
              testing::ThrowsMessage<Error>(HasSubstr("cuOccupancyMaxActiveClusters")));
}

TEST_F(CastTest, ACastIsPreparedOnce) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  cast({.rows = out});
  x_.data = address(0x8000);
  cast({.rows = out});
  EXPECT_EQ(compilations_, 1);
  EXPECT_EQ(state().launches[1].params_as<config::CastParams>().x, address(0x8000));
  x_.data = address(0x8002);  // not aligned any more
  cast({.rows = out});
  EXPECT_EQ(compilations_, 2);
}

// Codes, and where their scales are; vectors are of half as many bytes as those of the gradient.
TEST_F(CastTest, AnActivationInFp8HasScales) {
  const CastTarget cast_before = output(kRows, 2 * kCols, Granularity::kBlock1x128);
  const CastTarget out{matrix(address(0x5000), DType::kE4M3, kRows, 2 * kCols, 2 * kCols, kGpu),
                       scale_layout(Granularity::kBlock1x128, kRows, 2 * kCols, DeviceType::kCuda)
                           .view(address(0x6000), kGpu),
                       {.granularity = Granularity::kBlock1x128}};
  TensorView x = matrix<const void>(address(0x2008), DType::kE4M3, kRows, 2 * kCols, 1288, kGpu);
  const auto go_back = [&] {
    ScaledTensorView codes = cast_before;
    codes.data = x;
    cast(ActivationGradient{.gradient = x_, .x = codes}, {.rows = out});
  };
  go_back();
  const auto params = state().launches[0].params_as<config::CastParams>();
  EXPECT_EQ(params.x, address(0x2008));
  EXPECT_EQ(params.x_stride, 1288);
  EXPECT_EQ(params.x_scale, address(0x3000));
  EXPECT_EQ(params.x_scale_row_stride, 1);
  EXPECT_EQ(params.x_scale_col_stride, kRows);
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, 648);
  // Tiles of 64 rows: gate and up 8 bytes each, the gradient 16, two scales of 4.
  EXPECT_EQ(state().launches[0].shared_bytes, 64u * 16 * (8 + 8 + 16 + 4 + 4));
  EXPECT_EQ(state().launches[0].blocks, 4u * 5);
  x.data = address(0x2004);  // no whole vectors any more
  go_back();
  EXPECT_EQ(state().launches[1].shared_bytes, 0u);
  EXPECT_EQ(compilations_, 2);
}

TEST_F(CastTest, DequantizationAndConversion) {
  state().params_bytes = sizeof(config::ConvertParams);
  const CastTarget codes = output(kRows, kCols, Granularity::kBlock1x128);
  const MutableTensorView out = matrix(address(0x4000), DType::kFloat32, kRows, kCols, -1, kGpu);
  cuda::dequantize(runtime().device(0), codes, out, {});
  auto params = state().launches[0].params_as<config::ConvertParams>();
  EXPECT_EQ(params.x, address(0x2000));
  EXPECT_EQ(params.scale, address(0x3000));
  EXPECT_EQ(params.scale_col_stride, kRows);
  EXPECT_EQ(params.out, address(0x4000));
  EXPECT_EQ(params.channel_scale, nullptr);
  CastTarget two_level = output(kRows, kCols, Granularity::kBlock128x128);
  two_level.channel_scale = vector<const void>(address(0x7000), DType::kFloat32, kRows, kGpu);
  cuda::dequantize(runtime().device(0), two_level, out, {});
  params = state().launches.back().params_as<config::ConvertParams>();
  EXPECT_EQ(params.channel_scale, address(0x7000));
  cuda::convert_dtype(runtime().device(0), x_, out, Overflow::kNan, {});
  params = state().launches.back().params_as<config::ConvertParams>();
  EXPECT_EQ(params.x_stride, 648);
  EXPECT_EQ(params.out_stride, kCols);
  EXPECT_EQ(compilations_, 3);
}

}  // namespace
}  // namespace octofold::cuda
