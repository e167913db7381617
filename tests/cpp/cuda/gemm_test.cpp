// What of a product reaches the GPU: the plan, tensor maps, parameters. What the kernel makes of it
// is tested on a GPU.
#include "cuda/gemm.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <gmock/gmock.h>
#include <limits>
#include <string>
#include <vector>

#include "octofold/error.h"
#include "octofold/log.h"
#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "plan/gemm.h"
#include "support/gpu_product.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using test::product;
using testing::HasSubstr;

class GemmTest : public FakeGpuTest {
 protected:
  GemmTest() {
    set_log_handler([this](LogLevel, std::string_view message) { log_.emplace_back(message); });
  }
  ~GemmTest() override { set_log_handler({}); }

  void gemm(const GemmArguments& arguments, Stream stream = {}) {
    cuda::gemm(runtime().device(0), arguments, stream);
  }
  const fake::Launch& last() { return state().launches.back(); }
  config::Sm90GemmParams last_params() { return last().params_as<config::Sm90GemmParams>(); }

  std::vector<std::string> log_;
};

TEST_F(GemmTest, TheKernelGetsTheArguments) {
  GemmArguments arguments = product(1000, 512, 640);
  arguments.a.data.strides[0] = 656;
  arguments.c = matrix<const void>(address(0x6000), DType::kFloat32, 1000, 512, 520, kGpu);
  arguments.bias = vector<const void>(address(0x7000), DType::kBFloat16, 512, kGpu);
  int stream = 0;
  gemm(arguments, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(last().stream, &stream);
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.rows.data, address(0x1000));
  EXPECT_EQ(params.columns.data, address(0x2000));
  EXPECT_EQ(params.rows.stride, 656);
  EXPECT_EQ(params.columns.stride, 640);
  EXPECT_EQ(params.rows.scale.data, address(0x3000));
  EXPECT_EQ(params.rows.scale.row_stride, 1);
  EXPECT_EQ(params.rows.scale.k_stride, 1000);
  EXPECT_EQ(params.columns.scale.data, address(0x4000));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.columns.scale.k_stride, 1);
  EXPECT_EQ(params.out, address(0x5000));
  EXPECT_EQ(params.out_stride, 512);
  EXPECT_EQ(params.c, address(0x6000));
  EXPECT_EQ(params.c_stride, 520);
  EXPECT_EQ(params.bias, address(0x7000));
}

TEST_F(GemmTest, TensorMapsDescribeTheMatrices) {
  GemmArguments arguments = product(1000, 512, 640);
  arguments.a.data.strides[0] = 656;
  cuda::gemm(runtime().device(0), arguments, {}, "128x128.w2.c1x1x1.b1.early");
  ASSERT_EQ(state().tensor_maps.size(), 4u);
  const fake::TensorMapCall& a = state().tensor_maps[0];
  EXPECT_EQ(a.address, address(0x1000));
  EXPECT_EQ(a.data_type, 0);  // bytes
  EXPECT_EQ(a.rank, 2);
  EXPECT_EQ(a.rows, 1000u);
  EXPECT_EQ(a.cols, 640u);
  EXPECT_EQ(a.row_bytes, 656u);
  EXPECT_EQ(a.box_cols, 128u);
  EXPECT_EQ(a.swizzle, 3);  // 128 bytes
  EXPECT_EQ(state().tensor_maps[1].address, address(0x2000));
  EXPECT_EQ(state().tensor_maps[1].rows, 512u);
  const fake::TensorMapCall& last_rows = state().tensor_maps[2];
  EXPECT_EQ(last_rows.address, address(0x1000));
  EXPECT_EQ(last_rows.box_rows, 104u);  // 7 · 128 + 104
  EXPECT_EQ(last_params().last_rows, 104);
  const fake::TensorMapCall& out = state().tensor_maps[3];
  EXPECT_EQ(out.address, address(0x5000));
  EXPECT_EQ(out.data_type, 9);  // BFloat16
  EXPECT_EQ(out.row_bytes, 1024u);
  EXPECT_EQ(out.box_rows, 128u);
  EXPECT_EQ(16u << out.swizzle, out.box_cols * 2);
}

TEST_F(GemmTest, SwappedOperandsChangePlacesButDDoesNot) {
  cuda::gemm(runtime().device(0), product(20, 512, 640), {}, "64x16.swapped.w1.c1x1x2.b3");
  const config::Sm90GemmParams params = last_params();
  EXPECT_EQ(params.rows.data, address(0x2000));
  EXPECT_EQ(params.columns.data, address(0x1000));
  EXPECT_EQ(params.rows.scale.data, address(0x4000));
  EXPECT_EQ(params.work.rows, 512);
  EXPECT_EQ(params.work.columns, 20);
  EXPECT_EQ(params.last_rows, 0);
  ASSERT_EQ(state().tensor_maps.size(), 3u);
  EXPECT_EQ(state().tensor_maps[0].address, address(0x2000));
  EXPECT_EQ(state().tensor_maps[0].box_rows, 64u);
  EXPECT_EQ(state().tensor_maps[1].box_rows, 16u);
  const fake::TensorMapCall& out = state().tensor_maps[2];
  EXPECT_EQ(out.rows, 20u);
  EXPECT_EQ(out.box_rows, 8u);  // each of two blocks stores half of the tile
  EXPECT_EQ(out.box_cols, 64u);
  EXPECT_EQ(last().cluster, 2u);
}

// b's, whichever side of the instruction b is.
TEST_F(GemmTest, FactorsOfChannelsAreThoseOfB) {
  GemmArguments arguments = product(20, 512, 640);
  arguments.b.channel_scale = vector<const void>(address(0x7000), DType::kFloat32, 512, kGpu);
  for (const char* candidate : {"64x16.swapped.w1.c1x1x2.b3", "128x128.w2.c1x1x1.b1.early"}) {
    cuda::gemm(runtime().device(0), arguments, {}, candidate);
    EXPECT_EQ(last_params().channel_scale, address(0x7000));
  }
  arguments.b.channel_scale.reset();
  gemm(arguments);
  EXPECT_EQ(last_params().channel_scale, nullptr);
}

TEST_F(GemmTest, FP32LeavesInPiecesWhereTilesAreLarge) {
  GemmArguments arguments = product(1000, 512, 640);
  arguments.out.dtype = DType::kFloat32;
  const auto box_rows = [&](std::string_view candidate) {
    cuda::gemm(runtime().device(0), arguments, {}, candidate);
    const fake::TensorMapCall& map = state().tensor_maps.back();
    EXPECT_EQ(map.address, address(0x5000));
    EXPECT_EQ(map.data_type, 7);  // FP32
    EXPECT_EQ(map.box_cols, 32u);
    return map.box_rows;
  };
  EXPECT_EQ(box_rows("256x128.w2.c1x1x1.b1.early"), 16u);
  EXPECT_EQ(box_rows("128x64.w2.c1x1x1.b1.early"), 128u);
}

TEST_F(GemmTest, TmaAddsToAnFP32OutputThatIsC) {
  GemmArguments arguments = product(1000, 512, 640);
  arguments.out.dtype = DType::kFloat32;
  const auto adds = [&](const TensorView& c) {
    arguments.c = c;
    return plan::plan_gemm(plan::problem_of(arguments), plan::kHopper, "128x64.w2.c1x1x1.b1.early")
        .config.adds_in_place;
  };
  TensorView other = arguments.out;
  EXPECT_TRUE(adds(other));
  other.strides[0] = 1024;
  EXPECT_FALSE(adds(other));
  other = arguments.out;
  other.data = address(0x6000);
  EXPECT_FALSE(adds(other));
  arguments.out.dtype = DType::kBFloat16;
  EXPECT_FALSE(adds(arguments.out));
}

TEST_F(GemmTest, AProblemIsPreparedOnce) {
  for (int i = 0; i < 3; ++i) {
    GemmArguments arguments = product(1000, 512, 640);
    arguments.out.data = address(0x10000u * (i + 1));
    gemm(arguments);
    EXPECT_EQ(last_params().out, arguments.out.data);
  }
  EXPECT_EQ(compilations_, 1);
  GemmArguments other = product(1000, 512, 640);
  other.out.dtype = DType::kFloat16;
  gemm(other);
  EXPECT_EQ(compilations_, 2);
  cuda::gemm(runtime().device(1), product(1000, 512, 640), {});
  EXPECT_EQ(compilations_, 3);
  EXPECT_EQ(last().device, 1);
}

TEST_F(GemmTest, ACandidateIsRunByItsName) {
  const auto run = [&](std::string_view candidate) {
    cuda::gemm(runtime().device(0), product(1000, 512, 640), {}, candidate);
    return last().threads;
  };
  EXPECT_EQ(run("64x16.swapped.w1.c1x1x1.b1"), 256u);
  EXPECT_EQ(run("256x128.w2.c1x2x1.b1.early"), 384u);
  EXPECT_EQ(last().cluster, 2u);
  EXPECT_EQ(compilations_, 2);
  run("64x16.swapped.w1.c1x1x1.b1");
  EXPECT_EQ(compilations_, 2);
  EXPECT_THAT(error_of([&] { run("64x17"); }, ErrorCode::kInvalidArgument),
              HasSubstr("'candidate': expected one of 256x128"));
}

TEST_F(GemmTest, NothingIsQueuedForAnEmptyResult) {
  gemm(product(0, 512, 640));
  gemm(product(1000, 0, 640));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(GemmTest, WithoutKThereIsStillAResult) {
  GemmArguments arguments = product(100, 64, 0);
  arguments.a.data.data = arguments.b.data.data = nullptr;
  gemm(arguments);
  EXPECT_EQ(last_params().work.depth, 0);
  EXPECT_TRUE(log_.empty());
}

TEST_F(GemmTest, OperandsThatTmaCannotAddressAreNamedOnce) {
  GemmArguments address_off = product(1000, 512, 640);
  address_off.b.data.data = address(0x2001);
  GemmArguments stride_off = product(1000, 512, 641);
  GemmArguments output_off = product(1000, 510, 640);
  for (int i = 0; i < 2; ++i) {
    for (const GemmArguments* arguments : {&address_off, &stride_off, &output_off}) {
      gemm(*arguments);
    }
  }
  ASSERT_EQ(log_.size(), 4u);
  EXPECT_THAT(log_[0], HasSubstr("gemm 1000×512×640: argument 'b': its address is not a multiple"));
  EXPECT_THAT(log_[1], HasSubstr("gemm 1000×512×641: argument 'a': its row stride is not"));
  EXPECT_THAT(log_[2], HasSubstr("'b': its row stride is not"));
  EXPECT_THAT(log_[3], HasSubstr("'out': its rows are not"));
}

// TMA strides are positive and at least as long as a row.
TEST_F(GemmTest, RowsThatRepeatOrRunBackwardsAreCopiedByThreads) {
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-640}}) {
    GemmArguments arguments = product(1000, 512, 640);
    arguments.a.data.strides[0] = stride;
    gemm(arguments);
    EXPECT_EQ(last_params().rows.stride, stride);
    EXPECT_THAT(log_.back(), HasSubstr("'a': its rows overlap or run backwards"));
  }
  EXPECT_TRUE(state().tensor_maps.empty());
}

TEST_F(GemmTest, AlignedOperandsAreNotWorthAWord) {
  gemm(product(1000, 512, 640));
  EXPECT_TRUE(log_.empty());
}

TEST_F(GemmTest, TheStrideOfASingleRowDoesNotMatter) {
  GemmArguments arguments = product(1, 512, 640);
  arguments.a.data.strides[0] = 1;
  gemm(arguments);
  EXPECT_TRUE(log_.empty());
  ASSERT_FALSE(state().tensor_maps.empty());
  EXPECT_EQ(state().tensor_maps.front().row_bytes, 640u);
}

TEST_F(GemmTest, AGpuThatIsTooOldIsToldWhatThereIs) {
  state().compute_major = 8;
  state().compute_minor = 6;
  const std::string error =
      error_of([&] { gemm(product(1000, 512, 640)); }, ErrorCode::kUnsupported);
  EXPECT_THAT(error, HasSubstr("8.6"));
  EXPECT_THAT(error, HasSubstr("CPU backend"));
}

// What is planned stays: a call of one of many problems finds it as quickly as that of one.
TEST_F(GemmTest, ManyProblemsInTurnTakeAboutAsLong) {
  constexpr int kProblems = 200;
  state().params_bytes = 0;
  state().launches.reserve(40'000);
  std::vector<GemmArguments> problems;
  for (int m = 1; m <= kProblems; ++m) problems.push_back(product(m, 512, 640));
  for (const GemmArguments& problem : problems) gemm(problem);
  const int compiled = compilations_;
  const auto microseconds = [&](int count) {
    double least = std::numeric_limits<double>::infinity();  // others may use the machine
    for (int repetition = 0; repetition < 20; ++repetition) {
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < kProblems; ++call) {
        gemm(problems[static_cast<std::size_t>(call % count)]);
      }
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, time.count() / kProblems);
    }
    return least;
  };
  const double of_one = microseconds(1), of_many = microseconds(kProblems);
  std::printf("one problem %.2f µs, %d in turn %.2f µs\n", of_one, kProblems, of_many);
  EXPECT_EQ(compilations_, compiled);
  EXPECT_LT(of_many, 4 * of_one);
}

}  // namespace
}  // namespace octofold::cuda
