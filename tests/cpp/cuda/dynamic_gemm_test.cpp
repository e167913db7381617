// What of a product that casts its A reaches the GPU: the plan, tensor maps, parameters, and what
// no kernel takes.
#include "cuda/dynamic_gemm.h"

#include <gmock/gmock.h>

#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr octofold::Device kGpu{DeviceType::kCuda, 0};

// Addresses that nobody reads.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

DynamicGemmArguments product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const MutableTensorView scale = scale_layout(Granularity::kBlock128x128, n, k, DeviceType::kCuda)
                                      .view(address(0x21000), kGpu);
  return {.x = matrix(address(0x10000), DType::kBFloat16, m, k, -1, kGpu),
          .b = {matrix(address(0x20000), DType::kE4M3, n, k, -1, kGpu), scale,
                Granularity::kBlock128x128},
          .out = matrix(address(0x30000), DType::kBFloat16, m, n, -1, kGpu)};
}

class DynamicGemmTest : public FakeGpuTest {
 protected:
  void dynamic_gemm(const DynamicGemmArguments& arguments) {
    cuda::dynamic_gemm(runtime().device(0), arguments, {.in = arguments.x.dtype}, {});
  }
  config::Sm90GemmParams last_params() {
    return state().launches.back().params_as<config::Sm90GemmParams>();
  }
};

TEST_F(DynamicGemmTest, TheKernelGetsTheArguments) {
  DynamicGemmArguments arguments = product(5, 1000, 640);
  arguments.x.strides[0] = 704;
  arguments.bias = vector(address(0x40000), DType::kFloat32, 1000, kGpu);
  dynamic_gemm(arguments);
  ASSERT_EQ(state().launches.size(), 1u);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 5);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.columns.data, address(0x10000));
  EXPECT_EQ(params.columns.stride, 704);
  EXPECT_EQ(params.rows.scale.data, address(0x21000));
  EXPECT_EQ(params.rows.scale.row_stride, 5);
  EXPECT_EQ(params.out, address(0x30000));
  EXPECT_EQ(params.bias, address(0x40000));
  // Who multiplies, who loads, who casts.
  EXPECT_EQ(state().launches.back().threads, 384u);
}

TEST_F(DynamicGemmTest, XHasNoTensorMap) {
  cuda::dynamic_gemm(runtime().device(0), product(5, 1000, 640), {}, {},
                     "64x8.swapped.w1.c1x1x2.b2");
  EXPECT_EQ(state().launches.back().cluster, 2u);
  EXPECT_EQ(state().launches.back().blocks, 32u);
  ASSERT_EQ(state().tensor_maps.size(), 3u);
  const fake::TensorMapCall& b = state().tensor_maps[0];
  EXPECT_EQ(b.address, address(0x20000));
  EXPECT_EQ(b.rows, 1000u);
  EXPECT_EQ(b.box_rows, 64u);
  EXPECT_EQ(state().tensor_maps[1].address, address(0x20000));
  EXPECT_EQ(state().tensor_maps[1].box_rows, 40u);  // the last rows of B
  EXPECT_EQ(state().tensor_maps[2].address, address(0x30000));
}

TEST_F(DynamicGemmTest, AProblemIsPreparedOnce) {
  for (int i = 0; i < 3; ++i) {
    DynamicGemmArguments arguments = product(5, 1000, 640);
    arguments.x.data = address(0x40000u * (i + 1));
    dynamic_gemm(arguments);
    EXPECT_EQ(last_params().columns.data, arguments.x.data);
  }
  EXPECT_EQ(compilations_, 1);
  DynamicGemmArguments other = product(5, 1000, 640);
  other.x.data = address(0x10002);  // element by element
  dynamic_gemm(other);
  EXPECT_EQ(compilations_, 2);
  other = product(5, 1000, 640);
  other.x.strides[0] = 641;
  dynamic_gemm(other);
  EXPECT_EQ(compilations_, 2);
  other = product(5, 1000, 640);
  other.x.dtype = DType::kFloat32;
  dynamic_gemm(other);
  EXPECT_EQ(compilations_, 3);
  config::CastFormat format;
  format.power_of_two = true;
  cuda::dynamic_gemm(runtime().device(0), product(5, 1000, 640), format, {});
  EXPECT_EQ(compilations_, 4);
}

TEST_F(DynamicGemmTest, NothingIsQueuedForAnEmptyResult) {
  dynamic_gemm(product(0, 512, 640));
  dynamic_gemm(product(5, 0, 640));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(DynamicGemmTest, WhatNoKernelTakesIsNamed) {
  const auto refusal = [&](const DynamicGemmArguments& arguments) {
    return error_of([&] { dynamic_gemm(arguments); }, ErrorCode::kUnsupported);
  };
  EXPECT_THAT(refusal(product(5, 256, 648)),
              AllOf(HasSubstr("dynamic_gemm: argument 'b'"), HasSubstr("row stride"),
                    HasSubstr("quantize() and gemm() take it")));
  EXPECT_THAT(refusal(product(5, 256, 0)),
              AllOf(HasSubstr("argument 'b'"), HasSubstr("no elements")));
  DynamicGemmArguments arguments = product(5, 256, 640);
  arguments.b.data.data = address(0x20008);
  EXPECT_THAT(refusal(arguments), AllOf(HasSubstr("argument 'b'"), HasSubstr("address")));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(DynamicGemmTest, AnUnknownCandidateIsToldWhichThereAre) {
  EXPECT_THAT(
      error_of(
          [&] { cuda::dynamic_gemm(runtime().device(0), product(5, 256, 640), {}, {}, "1x1"); },
          ErrorCode::kInvalidArgument),
      AllOf(HasSubstr("dynamic_gemm: argument 'candidate'"), HasSubstr("64x8.swapped.w1")));
}

}  // namespace
}  // namespace octofold::cuda
