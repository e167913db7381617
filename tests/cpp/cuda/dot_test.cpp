// The launches and parameters with which a dot product reaches the GPU. The results of its kernels
// are tested on a GPU, and on the host in tests/cpp/kernels/dot_test.cpp.
#include "cuda/backend.h"

#include "cuda/fake_runtime.h"
#include "kernels/dot/config/dot.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

MutableTensorView row_at(std::uintptr_t value, DType dtype, std::int64_t size) {
  return matrix(address(value), dtype, 1, size, size, kGpu);
}

class DotTest : public FakeGpuTest {
 protected:
  void run(const DotOperand& a, const DotOperand& b) {
    state().params_bytes = sizeof(config::DotParams);
    state().launches.clear();
    dot(runtime().device(0),
        {.a = a,
         .b = b,
         .out = vector(address(0x3000), DType::kFloat32, 1, kGpu),
         .workspace = vector(address(0x4000), DType::kFloat32, 3, kGpu)},
        {&stream_});
  }

  int stream_ = 0;
};

TEST_F(DotTest, BothKernelsGetTheArguments) {
  constexpr std::int64_t kSize = 20'000;
  DotOperand a{.data = row_at(0x1000, DType::kE4M3, kSize),
               .scale = row_at(0x5000, DType::kFloat32, (kSize + 127) / 128),
               .granularity = Granularity::kBlock1x128};
  a.scale->strides[1] = 12;
  const DotOperand b{.data = row_at(0x2000, DType::kE5M2, kSize),
                     .scale = row_at(0x6000, DType::kFloat32, 1)};
  run(a, b);
  ASSERT_EQ(state().launches.size(), 2u);
  EXPECT_EQ(state().launches[0].blocks, 3);
  EXPECT_EQ(state().launches[1].blocks, 1);
  for (const auto& launch : state().launches) {
    EXPECT_EQ(launch.stream, &stream_);
    EXPECT_TRUE(launch.may_overlap);
    const auto params = launch.params_as<config::DotParams>();
    EXPECT_EQ(params.a, address(0x1000));
    EXPECT_EQ(params.b, address(0x2000));
    EXPECT_EQ(params.a_scale, address(0x5000));
    EXPECT_EQ(params.b_scale, address(0x6000));
    EXPECT_EQ(params.a_scale_stride, 12);
    EXPECT_TRUE(params.a_blocks);
    EXPECT_FALSE(params.b_blocks);
    EXPECT_EQ(params.size, kSize);
    EXPECT_EQ(params.span, 8192);
    EXPECT_EQ(params.parts, 3);
    EXPECT_EQ(params.part_sums, address(0x4000));
    EXPECT_EQ(params.out, address(0x3000));
  }
}

TEST_F(DotTest, CodesWithoutScalesHaveNone) {
  run({.data = row_at(0x1000, DType::kE4M3, 100)}, {.data = row_at(0x2000, DType::kFloat32, 100)});
  ASSERT_EQ(state().launches.size(), 1u);
  const auto params = state().launches[0].params_as<config::DotParams>();
  EXPECT_EQ(params.a_scale, nullptr);
  EXPECT_EQ(params.b_scale, nullptr);
}

}  // namespace
}  // namespace octofold::cuda
