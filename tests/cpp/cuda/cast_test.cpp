// The launches with which a cast reaches the GPU. Its results are tested on a GPU, and by the same
// parameters on the host in tests/cpp/kernels.
#include "octofold/scale_layout.h"

#include "cuda/backend.h"
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

  config::CastParams last_params() {
    return state().launches.back().params_as<config::CastParams>();
  }
  std::vector<unsigned> blocks() {
    std::vector<unsigned> blocks;
    for (const fake::Launch& launch : state().launches) blocks.push_back(launch.blocks);
    return blocks;
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

TEST_F(CastTest, BothCastsAreOneKernel) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock128x128);
  const CastTarget transposed = output(kCols, kRows, Granularity::kBlock128x128);
  cast({.rows = out, .transposed = transposed});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, &stream_);
  EXPECT_TRUE(state().launches[0].may_overlap);
  EXPECT_EQ(last_params().x, address(0x1000));
}

// Their sizes stay on the GPU: what is launched is known from their number.
TEST_F(CastTest, GroupsAreToldByWhereTheyBegin) {
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  const CastTarget transposed = output(kCols, 128 * (1 + 6), Granularity::kBlock1x128);
  const auto offsets = vector<const void>(address(0x9000), DType::kInt32, 7, kGpu);
  cast({.rows = out, .transposed = transposed, .offsets = offsets});
  const CastTarget tight = output(kCols, 128, Granularity::kBlock1x128);
  cast({.transposed = tight, .offsets = offsets, .group_layout = GroupLayout::kTight});
  EXPECT_THAT(blocks(), ElementsAre((1 + 6) * 5, 5));
}

// One launch, whose kernel finds each tile's matrix by the number of tiles that one has. The rows
// of transposes are those of all matrices.
TEST_F(CastTest, AStackIsOneKernel) {
  const auto cast_stack = [&](std::int64_t matrices, bool to_rows) {
    CastTargets targets{
        .transposed = CastTarget{matrix(address(0x8000), DType::kE4M3, matrices * kCols,
                                        kRows / matrices, 208, kGpu),
                                 matrix(address(0x9000), DType::kFloat32, matrices * 5, 2, 2, kGpu),
                                 {.granularity = Granularity::kBlock128x128}},
        .matrices = matrices};
    if (to_rows) {
      targets.rows = {matrix(address(0x2000), DType::kE4M3, kRows, kCols, kCols, kGpu),
                      matrix(address(0x3000), DType::kFloat32, matrices, 5, 5, kGpu),
                      {.granularity = Granularity::kBlock128x128}};
    }
    cast(targets);
  };
  cast_stack(1, true);
  cast_stack(4, true);
  cast_stack(4, false);
  EXPECT_THAT(blocks(), ElementsAre(2 * 5, 4 * 1 * 5, 4 * 1 * 5));
  EXPECT_EQ(last_params().cols, kCols);
}

TEST_F(CastTest, GatheredRowsAreAsManyAsTheirSources) {
  cast(GatheredRows{.x = x_,
                    .sources = vector<const void>(address(0x9000), DType::kInt32, 900, kGpu),
                    .slots = 6},
       {.rows = output(900, kCols, Granularity::kBlock1x128)});
  EXPECT_THAT(blocks(), ElementsAre(29 * 5));
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

// The workspace has two rows for 200 of x, of sums first where there are both; a second kernel goes
// on from there.
TEST_F(CastTest, ColumnsAreReducedByWayOfTheWorkspace) {
  const auto floats_at = [](std::uintptr_t value) {
    return vector(address(value), DType::kFloat32, kCols, kGpu);
  };
  const auto workspace = matrix(address(0x100000), DType::kFloat32, 4, kCols, kCols, kGpu);
  const CastTarget out = output(kRows, kCols, Granularity::kBlock1x128);
  for (const ColumnTargets& columns : {ColumnTargets{.sums = floats_at(0x5000)},
                                       {.amax = floats_at(0x6000)},
                                       {.sums = floats_at(0x5000), .amax = floats_at(0x6000)}}) {
    CastTargets targets{.rows = out, .columns = columns};
    targets.columns.workspace = workspace;
    cast(targets);
    const config::ColumnReductionParams written = last_params().columns;
    const auto* const first = static_cast<float*>(address(0x100000));
    EXPECT_EQ(written.partial_sums, columns.sums ? first : nullptr);
    EXPECT_EQ(written.partial_amax,
              columns.amax ? first + (columns.sums ? 2 * kCols : 0) : nullptr);
  }
  EXPECT_THAT(blocks(), ElementsAre(2 * 5, 20, 2 * 5, 20, 2 * 5, 20));
  EXPECT_EQ(compilations_, 6);
}

// One kernel, which reads the scales; rows of x may coincide, or go backwards.
TEST_F(CastTest, GivenScalesTakeOneStep) {
  CastTarget out = output(kRows, kCols, Granularity::kTensor);
  out.scales = ScaleSource::kGiven;
  for (const std::int64_t stride : {std::int64_t{0}, -kCols}) {
    x_.strides[0] = stride;
    cast({.rows = out});
    EXPECT_EQ(last_params().x_stride, stride);
  }
  EXPECT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(compilations_, 1);
}

// Largest magnitudes that are given are taken for the transpose, beside rows that find their own.
TEST_F(CastTest, AGivenAmaxTakesOneRead) {
  CastTarget transposed = output(kCols, kRows, Granularity::kChannel);
  transposed.amax = vector<const void>(address(0x7000), DType::kFloat32, kCols, kGpu);
  cast({.rows = output(kRows, kCols, Granularity::kBlock1x128), .transposed = transposed});
  ASSERT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().launches[0].blocks, 3u);  // 640 / 256
  EXPECT_EQ(state().launches[1].blocks, 2u * 5);
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
  EXPECT_EQ(last_params().x, address(0x8000));
  x_.data = address(0x8002);  // not aligned any more
  cast({.rows = out});
  EXPECT_EQ(compilations_, 2);
}

// Codes, whose vectors are of half as many bytes as those of the gradient. No kernel on the host
// reads such a source.
TEST_F(CastTest, AnActivationInFp8HasScales) {
  TensorView x = matrix<const void>(address(0x2008), DType::kE4M3, kRows, 2 * kCols, 1288, kGpu);
  const auto go_back = [&] {
    ScaledTensorView codes = output(kRows, 2 * kCols, Granularity::kBlock1x128);
    codes.data = x;
    cast(ActivationGradient{.gradient = x_, .x = codes},
         {.rows = output(kRows, 2 * kCols, Granularity::kBlock1x128)});
  };
  go_back();
  const config::CastParams params = last_params();
  EXPECT_EQ(params.x, address(0x2008));
  EXPECT_EQ(params.x_stride, 1288);
  EXPECT_EQ(params.x_scale, address(0x3000));
  EXPECT_EQ(params.x_scale_row_stride, 1);
  EXPECT_EQ(params.x_scale_col_stride, kRows);
  EXPECT_EQ(params.gradient, address(0x1000));
  EXPECT_EQ(params.gradient_stride, 648);
  // Tiles of 64 rows: gate and up 8 bytes each, the gradient 16, two scales of 4.
  EXPECT_EQ(state().launches[0].shared_bytes, 64u * 16 * (8 + 8 + 16 + 4 + 4));
  EXPECT_THAT(blocks(), ElementsAre(4 * 5));
  x.data = address(0x2004);  // no whole vectors any more
  go_back();
  EXPECT_EQ(state().launches[1].shared_bytes, 0u);
  EXPECT_EQ(compilations_, 2);
}

}  // namespace
}  // namespace octofold::cuda
