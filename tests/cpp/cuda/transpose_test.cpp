// The launches and parameters with which a transpose reaches the GPU. The results of its kernel are
// tested on a GPU, and on the host in tests/cpp/kernels/transpose_test.cpp.
#include "cuda/backend.h"

#include "cuda/fake_runtime.h"
#include "kernels/cast/config/transpose.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

class TransposeTest : public FakeGpuTest {};

TEST_F(TransposeTest, TheKernelGetsTheArguments) {
  state().params_bytes = sizeof(config::TransposeParams);
  int stream = 0;
  constexpr std::int64_t kRows = 400, kCols = 272;
  const auto run = [&](std::uintptr_t x) {
    transpose(runtime().device(0), matrix(address(x), DType::kE4M3, 3 * kRows, kCols, 288, kGpu),
              matrix(address(0x3000), DType::kE4M3, 3 * kCols, kRows, 416, kGpu), 3, {&stream});
  };
  run(0x1000);
  ASSERT_EQ(state().launches.size(), 1u);
  const auto& launch = state().launches[0];
  EXPECT_EQ(launch.blocks, 3 * 4 * 3);
  EXPECT_EQ(launch.stream, &stream);
  EXPECT_TRUE(launch.may_overlap);
  const auto params = launch.params_as<config::TransposeParams>();
  EXPECT_EQ(params.x, address(0x1000));
  EXPECT_EQ(params.x_stride, 288);
  EXPECT_EQ(params.out, address(0x3000));
  EXPECT_EQ(params.out_stride, 416);
  EXPECT_EQ(params.rows, kRows);
  EXPECT_EQ(params.cols, kCols);
  run(0x1010);
  EXPECT_EQ(compilations_, 1);
  run(0x1008);  // not in vectors
  EXPECT_EQ(compilations_, 2);
}

}  // namespace
}  // namespace octofold::cuda
