// The launches with which products with FP8 weights reach the GPU. The results of the kernels are
// tested on a GPU, and by the same parameters on the host in tests/cpp/kernels.
#include "cuda/backend.h"
#include "cuda/fake_runtime.h"
#include "kernels/weight_only/config/config.h"
#include "kernels/weight_only_sm90/config/config.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::WeightOnlyParams;

using test::address;
using test::kGpu;

MutableTensorView matrix_at(std::uintptr_t value, DType dtype, std::int64_t rows, std::int64_t cols,
                            std::int64_t stride = -1) {
  return matrix(address(value), dtype, rows, cols, stride, kGpu);
}

// W [256, 512] by blocks of 1x128, whose scales lie column by column.
ScaledTensorView weights() {
  ScaledTensorView w{.data = matrix_at(0x1000, DType::kE4M3, 256, 512, 640),
                     .scale = matrix_at(0x5000, DType::kFloat32, 256, 4),
                     .granularity = Granularity::kBlock1x128};
  w.scale.strides = {1, 260};
  return w;
}

class WeightOnlyTest : public FakeGpuTest {
 protected:
  // A GPU without products of warpgroups.
  WeightOnlyTest() {
    state().compute_major = 8;
    state().params_bytes = sizeof(WeightOnlyParams);
  }

  int stream_ = 0;
};

TEST_F(WeightOnlyTest, AProductIsOneKernel) {
  const DotOperand x{.data = matrix_at(0x2000, DType::kE5M2, 3, 512, 528),
                     .scale = matrix_at(0x6000, DType::kFloat32, 1, 4),
                     .granularity = Granularity::kBlock128x128};
  multiply(runtime().device(0),
           {.x = x, .w = weights(), .out = matrix_at(0x3000, DType::kFloat32, 3, 256, 300)},
           {&stream_});
  ASSERT_EQ(state().launches.size(), 1u);
  const auto& launch = state().launches.back();
  EXPECT_EQ(launch.stream, &stream_);
  EXPECT_FALSE(launch.may_overlap);
  EXPECT_GT(launch.shared_bytes, 0u);
  const auto params = launch.params_as<WeightOnlyParams>();
  EXPECT_EQ(params.w, address(0x1000));
  // No kernel on the host has codes of x by squares.
  EXPECT_EQ(params.x_scale.data, address(0x6000));
  EXPECT_EQ(params.x_scale.stride, 4);
  EXPECT_EQ(params.x_scale.depth_stride, 1);
  EXPECT_EQ(params.x_scale.shift, 7);
}

TEST_F(WeightOnlyTest, WithAWorkspaceBlocksShareTheDepth) {
  multiply(runtime().device(0),
           {.x = {matrix_at(0x2000, DType::kBFloat16, 64, 7168)},
            .w = {.data = matrix_at(0x1000, DType::kE4M3, 4096, 7168),
                  .scale = vector(address(0x5000), DType::kFloat32, 4096, kGpu),
                  .granularity = Granularity::kChannel},
            .out = matrix_at(0x3000, DType::kBFloat16, 64, 4096),
            .workspace = vector(address(0x7000), DType::kFloat32, 4 * 64 * 4096, kGpu)},
           {&stream_});
  ASSERT_EQ(state().launches.size(), 2u);
  for (const auto& launch : state().launches) {
    EXPECT_EQ(launch.stream, &stream_);
    const auto params = launch.params_as<WeightOnlyParams>();
    EXPECT_EQ(params.partials, address(0x7000));
    EXPECT_GT(params.splits, 1);
    EXPECT_LE(params.splits, 4);
  }
}

// Hopper has more than 16 rows of 16-bit numbers by TMA.
TEST_F(WeightOnlyTest, HopperHasTensorMaps) {
  state().compute_major = 9;
  state().params_bytes = sizeof(config::Sm90WeightOnlyParams);
  multiply(runtime().device(0),
           {.x = {matrix_at(0x2000, DType::kBFloat16, 100, 512)},
            .w = weights(),
            .out = matrix_at(0x3000, DType::kBFloat16, 100, 256, 264)},
           {&stream_});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().launches.back().may_overlap);
  ASSERT_EQ(state().tensor_maps.size(), 2u);  // of W and x, 128 bytes of the depth wide
  EXPECT_EQ(state().tensor_maps[0].address, address(0x1000));
  EXPECT_EQ(state().tensor_maps[1].address, address(0x2000));
}

// Other kernels: memory that vectors cannot access.
TEST_F(WeightOnlyTest, RowsAnywhereHaveKernelsOfTheirOwn) {
  const auto run = [&](std::uintptr_t x, std::int64_t x_stride, std::int64_t depth) {
    ScaledTensorView w = weights();
    w.data.shape[1] = depth;
    w.scale.shape[1] = (depth + 127) / 128;
    const int before = compilations_;
    multiply(runtime().device(0),
             {.x = {matrix_at(x, DType::kBFloat16, 100, depth, x_stride)},
              .w = w,
              .out = matrix_at(0x3000, DType::kBFloat16, 100, 256)},
             {&stream_});
    return compilations_ - before;
  };
  EXPECT_EQ(run(0x2000, 512, 512), 1);
  EXPECT_EQ(run(0x2000, 520, 512), 0);
  EXPECT_EQ(run(0x2002, 512, 512), 1);
  EXPECT_EQ(run(0x2000, 513, 512), 0);
  EXPECT_EQ(run(0x2000, 512, 504), 0);
  EXPECT_EQ(run(0x2000, 512, 496), 0);
}

}  // namespace
}  // namespace octofold::cuda
