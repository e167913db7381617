// The launches and parameters with which a rotary embedding reaches the GPU. The results of its
// kernel are tested on a GPU, and on the host in tests/cpp/kernels/rotary_test.cpp.
#include "cuda/rotary.h"

#include "cuda/fake_runtime.h"
#include "kernels/rotary/config/rotary.h"
#include "plan/small.h"
#include "support/gpu_product.h"
#include "support/nvrtc.h"
#include "support/sound_kernel.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;

class RotaryTest : public FakeGpuTest {
 protected:
  RotaryTest() { state().params_bytes = sizeof(config::RotaryParams); }

  // x, [2, 40, 8, 64] with heads before tokens, and rows of cos and sin in wider ones.
  RotaryArguments arguments_{
      .x = {address(0x10000), DType::kBFloat16, 4, {2, 40, 8, 64}, {20480, 64, 2560, 1}, kGpu},
      .cos = {address(0x20000), DType::kBFloat16, 3, {1, 40, 64}, {7, 72, 1}, kGpu},
      .sin = {address(0x30000), DType::kBFloat16, 3, {2, 40, 64}, {2880, 72, 1}, kGpu},
      .inverse = true};
  MutableTensorView y_{address(0x40000), DType::kBFloat16,    4,
                       {2, 40, 8, 64},   {20480, 512, 64, 1}, kGpu};
  int stream_ = 0;
};

TEST_F(RotaryTest, OneKernelGetsTheArguments) {
  rotary(runtime().device(0), arguments_, y_, {&stream_});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(state().launches[0].stream, &stream_);
  EXPECT_EQ(state().launches[0].blocks, 10);  // 8 tokens each
  EXPECT_TRUE(state().launches[0].may_overlap);
  const auto params = state().launches[0].params_as<config::RotaryParams>();
  EXPECT_EQ(params.x, address(0x10000));
  EXPECT_EQ(params.x_batch_stride, 20480);
  EXPECT_EQ(params.x_token_stride, 64);
  EXPECT_EQ(params.x_head_stride, 2560);
  EXPECT_EQ(params.cos.data, address(0x20000));
  EXPECT_EQ(params.cos.batch_stride, 0);  // one for all
  EXPECT_EQ(params.cos.token_stride, 72);
  EXPECT_EQ(params.sin.data, address(0x30000));
  EXPECT_EQ(params.sin.batch_stride, 2880);
  EXPECT_EQ(params.y, address(0x40000));
  EXPECT_EQ(params.all_tokens, 80u);
  EXPECT_EQ(params.tokens, 40u);
  EXPECT_EQ(params.heads, 8);
  EXPECT_EQ(params.half, 32);
  EXPECT_TRUE(params.inverse);
}

TEST_F(RotaryTest, WhatIsNotAlignedTakesAnotherKernel) {
  const auto run = [&] { rotary(runtime().device(0), arguments_, y_, {&stream_}); };
  run();
  EXPECT_EQ(compilations_, 1);
  arguments_.inverse = false;
  run();
  EXPECT_EQ(compilations_, 1);
  arguments_.cos.strides[1] = 68;
  run();
  EXPECT_EQ(compilations_, 2);
}

TEST_F(RotaryTest, NothingLaunchesNothing) {
  arguments_.x.shape[2] = y_.shape[2] = 0;
  rotary(runtime().device(0), arguments_, y_, {&stream_});
  EXPECT_TRUE(state().launches.empty());
}

class NvrtcRotaryTest : public test::NvrtcTest<> {
 protected:
  test::Compiler compiler_;
};

TEST_F(NvrtcRotaryTest, CompilesWithoutSpills) {
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const bool aligned : {false, true}) {
      for (const std::int64_t heads : {4, 32}) {
        compiler_.expect_sound(plan_rotary({.tokens = 100,
                                            .heads = heads,
                                            .head_size = 128,
                                            .type = type,
                                            .is_aligned = aligned},
                                           plan::kHopper)
                                   .kernels);
      }
    }
  }
}

}  // namespace
}  // namespace octofold::cuda
