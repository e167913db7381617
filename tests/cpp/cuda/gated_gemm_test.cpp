// What of a gated product reaches the GPU: the plan, tensor maps, parameters, and what no kernel
// takes.
#include "cuda/gated_gemm.h"

#include <gmock/gmock.h>
#include <string>

#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr octofold::Device kGpu{DeviceType::kCuda, 0};
constexpr config::CastFormat kFormat{};

// Addresses that nobody reads.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

GatedGemmArguments product(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto operand = [](Granularity granularity, std::int64_t rows, std::int64_t cols,
                          std::uintptr_t data) {
    const MutableTensorView scale =
        scale_layout(granularity, rows, cols, DeviceType::kCuda).view(address(data + 0x1000));
    MutableScaledTensorView view{matrix(address(data), DType::kE4M3, rows, cols), scale,
                                 granularity};
    view.data.device = view.scale.device = kGpu;
    return view;
  };
  return {.a = operand(Granularity::kBlock1x128, m, k, 0x10000),
          .b = operand(Granularity::kBlock128x128, 2 * n, k, 0x20000),
          .out = operand(Granularity::kBlock1x128, m, n, 0x30000)};
}

class GatedGemmTest : public FakeGpuTest {
 protected:
  void gated_gemm(const GatedGemmArguments& arguments) {
    cuda::gated_gemm(runtime().device(0), arguments, kFormat, {});
  }
  config::Sm90GemmParams last_params() {
    return state().launches.back().params_as<config::Sm90GemmParams>();
  }
};

TEST_F(GatedGemmTest, TheKernelGetsTheArguments) {
  gated_gemm(product(1000, 512, 640));
  ASSERT_EQ(state().launches.size(), 1u);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.rows.scale.data, address(0x11000));
  EXPECT_EQ(params.rows.scale.row_stride, 1);
  EXPECT_EQ(params.rows.scale.k_stride, 1000);
  EXPECT_EQ(params.columns.scale.data, address(0x21000));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.out_scale.data, address(0x31000));
  EXPECT_EQ(params.out_scale.row_stride, 1);
  EXPECT_EQ(params.out_scale.column_stride, 1000);
  EXPECT_EQ(state().launches.back().threads, 384u);
}

TEST_F(GatedGemmTest, TensorMapsDescribeTheMatrices) {
  cuda::gated_gemm(runtime().device(0), product(1000, 512, 640), kFormat, {},
                   "128x128.w2.c2x1x1.b1.early");
  EXPECT_EQ(state().launches.back().cluster, 2u);
  ASSERT_EQ(state().tensor_maps.size(), 4u);
  const fake::TensorMapCall& b = state().tensor_maps[1];
  EXPECT_EQ(b.address, address(0x20000));
  EXPECT_EQ(b.rows, 1024u);  // gates and ups
  EXPECT_EQ(b.box_rows, 64u);
  EXPECT_EQ(state().tensor_maps[2].box_rows, 104u);  // the last rows of A
  const fake::TensorMapCall& out = state().tensor_maps[3];
  EXPECT_EQ(out.address, address(0x30000));
  EXPECT_EQ(out.data_type, 0);  // bytes
  EXPECT_EQ(out.rows, 1000u);
  EXPECT_EQ(out.cols, 512u);
  EXPECT_EQ(out.box_rows, 128u);
  EXPECT_EQ(out.box_cols, 128u);
  EXPECT_EQ(out.swizzle, 3);  // 128 bytes
}

TEST_F(GatedGemmTest, AProblemIsPreparedOnce) {
  for (int i = 0; i < 3; ++i) {
    GatedGemmArguments arguments = product(1000, 512, 640);
    arguments.out.data.data = address(0x40000u * (i + 1));
    gated_gemm(arguments);
    EXPECT_EQ(last_params().out, arguments.out.data.data);
  }
  EXPECT_EQ(compilations_, 1);
  GatedGemmArguments other = product(1000, 512, 640);
  other.activation = Activation::kGeGluTanh;
  gated_gemm(other);
  EXPECT_EQ(compilations_, 2);
  config::CastFormat format;
  format.power_of_two = true;
  cuda::gated_gemm(runtime().device(0), other, format, {});
  EXPECT_EQ(compilations_, 3);
}

TEST_F(GatedGemmTest, NothingIsQueuedForAnEmptyResult) {
  gated_gemm(product(0, 512, 640));
  gated_gemm(product(1000, 0, 640));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(GatedGemmTest, WhatNoKernelTakesIsNamed) {
  const auto refusal = [&](const GatedGemmArguments& arguments) {
    return error_of([&] { gated_gemm(arguments); }, ErrorCode::kUnsupported);
  };
  EXPECT_THAT(refusal(product(1000, 200, 640)),
              AllOf(HasSubstr("argument 'b'"), HasSubstr("N = 200"), HasSubstr("multiple of 128")));
  EXPECT_THAT(refusal(product(1000, 256, 648)),
              AllOf(HasSubstr("argument 'a'"), HasSubstr("row stride is not a multiple of 16")));
  EXPECT_THAT(refusal(product(1000, 256, 0)),
              AllOf(HasSubstr("argument 'a'"), HasSubstr("no elements")));
  GatedGemmArguments arguments = product(1000, 256, 640);
  arguments.b.data.data = address(0x20008);
  EXPECT_THAT(refusal(arguments), AllOf(HasSubstr("argument 'b'"), HasSubstr("address")));
  arguments = product(1000, 256, 640);
  arguments.out.data.strides[0] = 264;
  EXPECT_THAT(refusal(arguments), AllOf(HasSubstr("argument 'out'"), HasSubstr("stride")));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(GatedGemmTest, AnUnknownCandidateIsToldWhichThereAre) {
  EXPECT_THAT(error_of(
                  [&] {
                    cuda::gated_gemm(runtime().device(0), product(100, 256, 640), kFormat, {},
                                     "1x1");
                  },
                  ErrorCode::kInvalidArgument),
              AllOf(HasSubstr("gated_gemm: argument 'candidate'"), HasSubstr("128x128.w2.c2x1x1")));
}

}  // namespace
}  // namespace octofold::cuda
