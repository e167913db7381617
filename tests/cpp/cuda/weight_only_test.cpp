// The launches and parameters with which products with FP8 weights reach the GPU. The results of
// the kernel are tested on a GPU, and on the host in tests/cpp/kernels/weight_only_test.cpp.
#include "cuda/weight_only.h"

#include <gmock/gmock.h>

#include "cuda/fake_runtime.h"
#include "kernels/weight_only/config/config.h"
#include "kernels/weight_only_sm90/config/config.h"

namespace octofold::cuda {
namespace {

using config::WeightOnlyParams;
using config::WeightOnlyScale;

constexpr octofold::Device kGpu{DeviceType::kCuda, 0};

// Addresses that nobody reads.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

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

void expect_scale(const WeightOnlyScale& scale, void* data, long long stride,
                  long long depth_stride, int shift) {
  EXPECT_EQ(scale.data, data);
  EXPECT_EQ(scale.stride, stride);
  EXPECT_EQ(scale.depth_stride, depth_stride);
  EXPECT_EQ(scale.shift, shift);
}

class WeightOnlyTest : public FakeGpuTest {
 protected:
  // A GPU without products of warpgroups.
  WeightOnlyTest() {
    state().compute_major = 8;
    state().params_bytes = sizeof(WeightOnlyParams);
  }

  WeightOnlyParams launched() {
    EXPECT_EQ(state().launches.size(), 1u);
    const auto& launch = state().launches.back();
    EXPECT_EQ(launch.stream, &stream_);
    EXPECT_FALSE(launch.may_overlap);
    EXPECT_GT(launch.shared_bytes, 0u);
    return launch.params_as<WeightOnlyParams>();
  }

  int stream_ = 0;
};

TEST_F(WeightOnlyTest, PassesScalesOfBoth) {
  const DotOperand x{.data = matrix_at(0x2000, DType::kE5M2, 3, 512, 528),
                     .scale = matrix_at(0x6000, DType::kFloat32, 1, 4),
                     .granularity = Granularity::kBlock128x128};
  multiply(runtime().device(0),
           {.x = x, .w = weights(), .out = matrix_at(0x3000, DType::kFloat32, 3, 256, 300)},
           {&stream_});
  const WeightOnlyParams params = launched();
  EXPECT_EQ(params.w, address(0x1000));
  EXPECT_EQ(params.w_stride, 640);
  EXPECT_EQ(params.x, address(0x2000));
  EXPECT_EQ(params.x_stride, 528);
  EXPECT_EQ(params.out, address(0x3000));
  EXPECT_EQ(params.out_stride, 300);
  EXPECT_EQ(params.bias, nullptr);
  expect_scale(params.w_scale, address(0x5000), 1, 260, 0);
  expect_scale(params.x_scale, address(0x6000), 4, 1, 7);
  EXPECT_EQ(params.rows, 3);
  EXPECT_EQ(params.columns, 256);
  EXPECT_EQ(params.depth, 512);
}

TEST_F(WeightOnlyTest, PlainNumbersHaveNoScales) {
  ScaledTensorView w = weights();
  w.granularity = Granularity::kTensor;
  w.scale = vector(address(0x5000), DType::kFloat32, 1, kGpu);
  multiply(runtime().device(0),
           {.x = {matrix_at(0x2000, DType::kFloat32, 1, 512)},
            .w = w,
            .out = matrix_at(0x3000, DType::kFloat16, 1, 256)},
           {&stream_});
  const WeightOnlyParams params = launched();
  expect_scale(params.w_scale, address(0x5000), 0, 0, 0);
  EXPECT_EQ(params.x_scale.data, nullptr);
  EXPECT_EQ(params.x_stride, 2048);
}

TEST_F(WeightOnlyTest, ProductsHaveABias) {
  for (const DType type : {DType::kBFloat16, DType::kFloat32}) {
    state().launches.clear();
    multiply(runtime().device(0),
             {.x = {matrix_at(0x2000, DType::kBFloat16, 100, 512)},
              .w = weights(),
              .out = matrix_at(0x3000, DType::kBFloat16, 100, 256),
              .bias = vector(address(0x7000), type, 256, kGpu)},
             {&stream_});
    const WeightOnlyParams params = launched();
    EXPECT_EQ(params.bias, address(0x7000));
    EXPECT_EQ(params.bias_is_float32, type == DType::kFloat32);
    EXPECT_EQ(params.x_stride, 1024);
    EXPECT_EQ(params.rows, 100);
  }
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

TEST_F(WeightOnlyTest, GradientsSumOverTheRowsOfTheWeights) {
  const auto run = [&](const ScaledTensorView& w) {
    state().launches.clear();
    multiply(runtime().device(0),
             {.x = {matrix_at(0x2000, DType::kFloat16, 100, 256)},
              .w = w,
              .out = matrix_at(0x3000, DType::kFloat32, 100, 512),
              .transposed = true},
             {&stream_});
    return launched();
  };
  const WeightOnlyParams params = run(weights());
  EXPECT_EQ(params.rows, 100);
  EXPECT_EQ(params.columns, 512);
  EXPECT_EQ(params.depth, 256);
  EXPECT_EQ(params.w_stride, 640);
  expect_scale(params.w_scale, address(0x5000), 260, 1, 7);
  ScaledTensorView w = weights();
  w.granularity = Granularity::kChannel;
  w.scale = vector(address(0x5000), DType::kFloat32, 256, kGpu);
  expect_scale(run(w).w_scale, address(0x5000), 0, 1, 7);
  w.granularity = Granularity::kBlock128x128;
  w.scale = matrix_at(0x5000, DType::kFloat32, 2, 4, 9);
  expect_scale(run(w).w_scale, address(0x5000), 1, 9, 7);
}

TEST_F(WeightOnlyTest, GroupsHaveWeightsOneBelowAnother) {
  core::WeightOnlyProduct product{
      .x = {matrix_at(0x2000, DType::kBFloat16, 5, 512)},
      .gathered = GatheredRows{.x = matrix_at(0x2000, DType::kBFloat16, 5, 512),
                               .sources = vector(address(0x8000), DType::kInt32, 9, kGpu),
                               .slots = 3,
                               .factors = TensorView(matrix_at(0x9000, DType::kFloat32, 5, 3))},
      .w = weights(),
      .out = matrix_at(0x3000, DType::kFloat32, 9, 128),
      .groups = {.work = config::Work::kGroupedRows,
                 .count = 2,
                 .numbers = static_cast<const std::int32_t*>(address(0xA000)),
                 .scale_stride = 128,
                 .max_rows = 9}};
  multiply(runtime().device(0), product, {&stream_});
  WeightOnlyParams params = launched();
  EXPECT_EQ(params.rows, 9);
  EXPECT_EQ(params.columns, 128);
  EXPECT_EQ(params.groups.numbers, address(0xA000));
  EXPECT_EQ(params.groups.count, 2);
  EXPECT_EQ(params.groups.w_stride, 128 * 640);
  EXPECT_EQ(params.groups.scale_stride, 128);
  EXPECT_EQ(params.groups.sources, address(0x8000));
  EXPECT_EQ(params.groups.slots.quotient(8), 2u);
  EXPECT_EQ(params.groups.places, 15u);
  EXPECT_EQ(params.groups.factors, address(0x9000));

  state().launches.clear();
  product.gathered.reset();
  product.x.data = matrix_at(0x2000, DType::kBFloat16, 14, 512);
  product.out = matrix_at(0x3000, DType::kFloat32, 14, 128);
  product.groups.work = config::Work::kMaskedRows;
  product.groups.max_rows = 7;
  multiply(runtime().device(0), product, {&stream_});
  params = launched();
  EXPECT_EQ(params.rows, 7);
  EXPECT_EQ(params.groups.sources, nullptr);
}

// Hopper has more than 16 rows of 16-bit numbers by TMA.
TEST_F(WeightOnlyTest, HopperHasTensorMaps) {
  using config::Sm90WeightOnlyParams;
  state().compute_major = 9;
  state().params_bytes = sizeof(Sm90WeightOnlyParams);
  const auto run = [&](bool gradient) {
    state().launches.clear();
    state().tensor_maps.clear();
    if (gradient) {
      multiply(runtime().device(0),
               {.x = {matrix_at(0x2000, DType::kBFloat16, 100, 256)},
                .w = weights(),
                .out = matrix_at(0x3000, DType::kFloat32, 100, 512),
                .transposed = true},
               {&stream_});
    } else {
      multiply(runtime().device(0),
               {.x = {matrix_at(0x2000, DType::kBFloat16, 100, 512)},
                .w = weights(),
                .out = matrix_at(0x3000, DType::kBFloat16, 100, 256, 264),
                .bias = vector(address(0x7000), DType::kFloat32, 256, kGpu)},
               {&stream_});
    }
    EXPECT_EQ(state().launches.size(), 1u);
    EXPECT_TRUE(state().launches.back().may_overlap);
    return state().launches.back().params_as<Sm90WeightOnlyParams>();
  };
  const Sm90WeightOnlyParams params = run(false);
  EXPECT_EQ(params.out, address(0x3000));
  EXPECT_EQ(params.out_stride, 264);
  EXPECT_EQ(params.bias, address(0x7000));
  EXPECT_TRUE(params.bias_is_float32);
  expect_scale(params.w_scale, address(0x5000), 1, 260, 0);
  EXPECT_EQ(params.work.rows, 100);
  EXPECT_EQ(params.work.columns, 256);
  EXPECT_EQ(params.work.depth, 512);
  EXPECT_EQ(params.work.bands.width, config::kNeighbourRows);
  ASSERT_EQ(state().tensor_maps.size(), 2u);  // of W and x, 128 bytes of the depth wide
  EXPECT_EQ(state().tensor_maps[0].address, address(0x1000));
  EXPECT_EQ(state().tensor_maps[1].address, address(0x2000));
  const Sm90WeightOnlyParams of_gradient = run(true);
  expect_scale(of_gradient.w_scale, address(0x5000), 260, 1, 7);
  EXPECT_EQ(of_gradient.work.columns, 512);
  EXPECT_EQ(of_gradient.work.depth, 256);
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
