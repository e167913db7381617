// Memory of one's own, on the host and on the fake driver's GPUs.
#include "octofold/scaled_matrix.h"

#include "octofold/cast.h"
#include "octofold/gemm.h"

#include "cuda/fake_runtime.h"
#include "support/test.h"

namespace octofold {
namespace {

using cuda::error_of;
using testing::Each;

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr Device kSecondGpu{DeviceType::kCuda, 1};

static_assert(!std::is_copy_constructible_v<ScaledMatrix>);
static_assert(std::is_nothrow_move_constructible_v<ScaledMatrix>);

class ScaledMatrixTest : public cuda::FakeGpuTest {
 protected:
  // Different everywhere.
  static ScaledMatrix numbered(Granularity granularity) {
    ScaledMatrix matrix(301, 200, {.dtype = DType::kE5M2, .granularity = granularity});
    std::iota(matrix.codes().begin(), matrix.codes().end(), std::uint8_t{1});
    std::iota(matrix.scales().begin(), matrix.scales().end(), 1.0f);
    return matrix;
  }
};

TEST_F(ScaledMatrixTest, StartsAtZeroOnTheHost) {
  ScaledMatrix matrix(3, 200, {.granularity = Granularity::kBlock1x128});
  EXPECT_THAT(matrix.codes(), Each(0));
  EXPECT_THAT(matrix.scales(), Each(0.0f));
  EXPECT_EQ(matrix.codes().size(), 600u);
  EXPECT_EQ(matrix.scales().size(), 6u);
  EXPECT_EQ(matrix.view().data.data, matrix.codes().data());
  EXPECT_EQ(std::as_const(matrix).view().scale.data, matrix.scales().data());
}

TEST_F(ScaledMatrixTest, StartsAtZeroOnAGpuAndIsFreed) {
  {
    const ScaledMatrix matrix(5, 200, {.granularity = Granularity::kBlock1x128}, kSecondGpu);
    EXPECT_EQ(matrix.view().data.device, kSecondGpu);
    ASSERT_EQ(state().memory.size(), 2u);
    for (const auto& [address, allocation] : state().memory) {
      EXPECT_EQ(allocation.device, 1);
      EXPECT_THAT(allocation.bytes, Each(std::byte{0}));
    }
    EXPECT_GE(state().synchronizations, 2);
    EXPECT_EQ(matrix.view().scale.strides[1], 8);
  }
  EXPECT_TRUE(state().memory.empty());
  EXPECT_EQ(state().pushes, state().pops);
}

TEST_F(ScaledMatrixTest, MovesItsMemory) {
  ScaledMatrix matrix(5, 200, {.granularity = Granularity::kTensor}, kGpu);
  const void* const data = matrix.view().data.data;
  ScaledMatrix other = std::move(matrix);
  EXPECT_EQ(other.view().data.data, data);
  other = ScaledMatrix(1, 1, {.granularity = Granularity::kTensor});
  EXPECT_TRUE(state().memory.empty());
}

TEST_F(ScaledMatrixTest, EveryWayBetweenDevicesKeepsTheValues) {
  for (const Granularity granularity : test::kGranularities) {
    const ScaledMatrix matrix = numbered(granularity);
    const ScaledMatrix back = matrix.to({}).to(kGpu).to(kSecondGpu).to(kSecondGpu).to({});
    EXPECT_TRUE(std::ranges::equal(back.codes(), matrix.codes())) << name(granularity);
    EXPECT_TRUE(std::ranges::equal(back.scales(), matrix.scales())) << name(granularity);
    EXPECT_EQ(back.format().dtype, DType::kE5M2);
  }
}

TEST_F(ScaledMatrixTest, ScalesOnAGpuLieAsKernelsReadThem) {
  const ScaledMatrix on_host = numbered(Granularity::kBlock1x128);
  const ScaledMatrix on_gpu = on_host.to(kGpu);
  const TensorView scale = on_gpu.view().scale;
  EXPECT_EQ(scale.strides[0], 1);
  EXPECT_EQ(scale.strides[1], 304);
  const auto* scales = static_cast<const float*>(scale.data);
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 3.0f);    // row 1, block 0
  EXPECT_EQ(scales[304], 2.0f);  // row 0, block 1
}

TEST_F(ScaledMatrixTest, RowsOfCodesOnAGpuBeginAtMultiplesOf32Bytes) {
  const ScaledMatrix on_host = numbered(Granularity::kBlock1x128);
  EXPECT_EQ(on_host.view().data.strides[0], 200);
  const ScaledMatrix on_gpu = on_host.to(kGpu);
  const TensorView codes = on_gpu.view().data;
  EXPECT_EQ(codes.strides[0], 224);
  const auto* rows = static_cast<const std::uint8_t*>(codes.data);
  EXPECT_EQ(rows[199], on_host.codes()[199]);
  EXPECT_EQ(rows[224], on_host.codes()[200]);
}

TEST_F(ScaledMatrixTest, EmptyOnesOwnNothing) {
  const ScaledMatrix matrix(0, 200, {.granularity = Granularity::kBlock1x128}, kGpu);
  EXPECT_TRUE(state().memory.empty());
  EXPECT_EQ(matrix.to({}).codes().size(), 0u);
}

TEST_F(ScaledMatrixTest, ErrorsNameWhatIsWrong) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;
  const auto error = [](std::int64_t rows, std::int64_t cols, const Format& format,
                        Device device = {}) {
    return error_of([&] { ScaledMatrix matrix(rows, cols, format, device); },
                    ErrorCode::kInvalidArgument);
  };
  EXPECT_THAT(error(kHuge, kHuge, {.granularity = Granularity::kBlock128x128}),
              HasSubstr("4294967296×4294967296"));
  EXPECT_THAT(error(1, 1, {.granularity = static_cast<Granularity>(9)}),
              HasSubstr("'granularity'"));
  EXPECT_THAT(error(1, 1, {.dtype = DType::kFloat32}),
              HasSubstr("argument 'format.dtype': expected e4m3 or e5m2, got float32"));
  EXPECT_THAT(error(1, 1, {.dtype = static_cast<DType>(99)}), HasSubstr("dtype 99"));
  EXPECT_THAT(error(1, 1, {}, Device{DeviceType::kCuda, 9}), HasSubstr("cuda:9 does not exist"));
  const ScaledMatrix on_gpu(1, 1, {.granularity = Granularity::kTensor}, kGpu);
  EXPECT_THAT(error_of([&] { on_gpu.codes(); }, ErrorCode::kInvalidArgument),
              HasSubstr("on cuda:0, where the host cannot read them"));
}

TEST_F(ScaledMatrixTest, AFullGpuIsAnError) {
  state().memory_bytes = 1000;
  EXPECT_THAT(error_of([] { ScaledMatrix(40, 100, {.granularity = Granularity::kTensor}, kGpu); },
                       ErrorCode::kUnavailable),
              HasSubstr("cuda:0: 5120 bytes: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"));
}

}  // namespace
}  // namespace octofold
