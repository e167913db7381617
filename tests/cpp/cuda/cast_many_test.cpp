// The launches of many casts in one call. By the same parameters kernels run on the host in
// tests/cpp/kernels/stacked_casts_test.cpp.
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/cast/config/batch.h"
#include "plan/cast_batch.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::CastBatchParams;
using test::address;
using test::kGpu;
using enum Granularity;

class CastManyTest : public FakeGpuTest {
 protected:
  CastManyTest() { state().params_bytes = sizeof(CastBatchParams); }

  // A matrix that begins at an address, cast both ways.
  static CheckedCast of(std::uintptr_t place, std::int64_t rows, std::int64_t cols,
                        Granularity granularity = kBlock128x128) {
    const auto scales = [&](std::int64_t across) {
      const MutableTensorView squares =
          matrix(address(place + 0x300), DType::kFloat32, 2, across, across, kGpu);
      const MutableTensorView one = vector(address(place + 0x300), DType::kFloat32, 1, kGpu);
      return granularity == kTensor ? one : squares;
    };
    const Format format{.granularity = granularity};
    return {
        matrix<const void>(address(place), DType::kBFloat16, rows, cols, cols, kGpu),
        {.rows = CastTarget{matrix(address(place + 0x100), DType::kE4M3, rows, cols, cols, kGpu),
                            scales(5), format},
         .transposed =
             CastTarget{matrix(address(place + 0x200), DType::kE4M3, cols, rows, rows, kGpu),
                        scales(2), format}},
        {.in = DType::kBFloat16, .granularity = granularity}};
  }
  void cast_all(const std::vector<CheckedCast>& casts) {
    cast_many(runtime().device(0), casts, {&stream_});
  }
  CastBatchParams params(std::size_t launch) {
    return state().launches[launch].params_as<CastBatchParams>();
  }

  int stream_ = 0;
};

TEST_F(CastManyTest, OneKernelHasThemAll) {
  CheckedCast stack = of(0x20000, 4 * 128, 640);
  stack.targets.transposed->data = matrix(address(0x20200), DType::kE4M3, 4 * 640, 128, 128, kGpu);
  stack.targets.matrices = 4;
  cast_all({of(0x10000, 200, 640), stack, of(0x30000, 128, 128)});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, &stream_);
  EXPECT_EQ(state().launches[0].blocks, 2u * 5 + 4 * 1 * 5 + 1);
  EXPECT_EQ(params(0).first_block[3], CastBatchParams::kNoBlock);
}

TEST_F(CastManyTest, AsManyAsParametersHold) {
  std::vector<CheckedCast> casts;
  for (std::uintptr_t i = 0; i < 2 * CastBatchParams::kMostJobs + 1; ++i) {
    casts.push_back(of(0x10000 * (i + 1), 128, 128));
  }
  cast_all(casts);
  ASSERT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().launches[0].blocks, static_cast<unsigned>(CastBatchParams::kMostJobs));
  EXPECT_EQ(state().launches[2].blocks, 1u);
  EXPECT_EQ(params(2).jobs[0].x, address(0x10000 * casts.size()));
}

TEST_F(CastManyTest, KindsAreLaunchesOfTheirOwn) {
  CheckedCast wide = of(0x20000, 128, 128);
  wide.source.dtype = wide.format.in = DType::kFloat32;
  cast_all({of(0x10000, 128, 128), wide, of(0x30000, 200, 640)});
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].blocks, 1u + 2 * 5);
  EXPECT_EQ(params(1).jobs[0].x, address(0x20000));
}

// A step for all of them comes before the next one.
TEST_F(CastManyTest, ScalesOfTensorsTakeFourKernels) {
  cast_all({of(0x10000, 200, 640, kTensor), of(0x20000, 128, 128, kTensor)});
  ASSERT_EQ(state().launches.size(), 4u);
  EXPECT_EQ(state().launches[0].blocks, 2u);
  EXPECT_EQ(state().launches[1].blocks, 2u * 5 + 1);
  EXPECT_EQ(state().launches[2].blocks, 2u * 5 + 1);
  EXPECT_EQ(state().launches[3].blocks, 2u);
  EXPECT_EQ(params(3).first_block[1], 1);
}

TEST_F(CastManyTest, NothingIsNoLaunch) {
  cast_all({});
  cast_all({of(0x10000, 0, 640), of(0x20000, 128, 0)});
  EXPECT_TRUE(state().launches.empty());
}

}  // namespace
}  // namespace octofold::cuda
