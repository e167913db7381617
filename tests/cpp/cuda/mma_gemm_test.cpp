// What of a product reaches a GPU that multiplies by warps. What the kernel makes of it is tested
// on the host (tests/cpp/kernels) and on a GPU.
#include "plan/mma_gemm.h"

#include <gmock/gmock.h>
#include <string>
#include <vector>

#include "octofold/error.h"
#include "octofold/log.h"
#include "octofold/scale_layout.h"

#include "cuda/fake_runtime.h"
#include "cuda/gemm.h"
#include "support/error_of.h"
#include "support/gpu_product.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using test::product;
using testing::AllOf;
using testing::HasSubstr;

class MmaGemmTest : public FakeGpuTest {
 protected:
  MmaGemmTest() {
    state().compute_major = 8;
    state().compute_minor = 9;
    state().multiprocessors = 128;
    state().shared_memory_per_block = 99 * 1024;
    state().params_bytes = sizeof(config::GemmParams);
  }
  const fake::Launch& last() { return state().launches.back(); }
};

TEST_F(MmaGemmTest, TheKernelGetsTheArguments) {
  GemmArguments arguments = product(1000, 512, 640);
  arguments.a.data.strides[0] = -656;
  arguments.b.channel_scale = vector<const void>(address(0x8000), DType::kFloat32, 512, kGpu);
  arguments.c = matrix<const void>(address(0x6000), DType::kFloat32, 1000, 512, 520, kGpu);
  arguments.bias = vector<const void>(address(0x7000), DType::kBFloat16, 512, kGpu);
  int stream = 0;
  cuda::gemm(runtime().device(0), arguments, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().tensor_maps.empty());
  EXPECT_EQ(last().stream, &stream);
  const plan::MmaGemmPlan plan = plan_mma_gemm(plan::problem_of(arguments), plan::gpu_of(89, 128));
  EXPECT_EQ(plan.config.load_bytes, 4);  // rows that run backwards
  EXPECT_TRUE(plan.config.columns_have_factors());
  EXPECT_EQ(last().blocks, plan.kernels.front().blocks);
  EXPECT_EQ(last().threads, static_cast<unsigned>(plan.config.threads()));
  EXPECT_EQ(last().shared_bytes, static_cast<unsigned>(plan.config.shared_bytes()));
  const auto params = last().params_as<config::GemmParams>();
  EXPECT_EQ(params.work.rows, 1000);
  EXPECT_EQ(params.work.columns, 512);
  EXPECT_EQ(params.work.depth, 640);
  EXPECT_EQ(params.rows.data, address(0x1000));
  EXPECT_EQ(params.columns.data, address(0x2000));
  EXPECT_EQ(params.rows.stride, -656);
  EXPECT_EQ(params.columns.stride, 640);
  EXPECT_EQ(params.rows.scale.data, address(0x3000));
  EXPECT_EQ(params.rows.scale.row_stride, 1);
  EXPECT_EQ(params.rows.scale.k_stride, 1000);
  EXPECT_EQ(params.columns.scale.data, address(0x4000));
  EXPECT_EQ(params.columns.scale.row_stride, 5);
  EXPECT_EQ(params.columns.scale.k_stride, 1);
  EXPECT_EQ(params.channel_scale, address(0x8000));
  EXPECT_EQ(params.out, address(0x5000));
  EXPECT_EQ(params.out_stride, 512);
  EXPECT_EQ(params.c, address(0x6000));
  EXPECT_EQ(params.c_stride, 520);
  EXPECT_EQ(params.bias, address(0x7000));
}

TEST_F(MmaGemmTest, OneProblemIsPlannedAndLoadedOnce) {
  for (int i = 0; i < 3; ++i) cuda::gemm(runtime().device(0), product(16, 512, 640), {});
  EXPECT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().loads, 1);
}

TEST_F(MmaGemmTest, TheLogNamesWhatIsSlow) {
  std::vector<std::string> log;
  set_log_handler([&](LogLevel, std::string_view message) { log.emplace_back(message); });
  GemmArguments arguments = product(1000, 510, 640);  // a D that no other store would suit better
  cuda::gemm(runtime().device(0), arguments, {});
  EXPECT_TRUE(log.empty());
  arguments.a.data.strides[0] = 644;
  cuda::gemm(runtime().device(0), arguments, {});
  set_log_handler({});
  ASSERT_EQ(log.size(), 1u);
  EXPECT_THAT(log[0], AllOf(HasSubstr("'a': its row stride is not"), HasSubstr("16 bytes")));
}

TEST_F(MmaGemmTest, NothingIsLaunchedForNothing) {
  cuda::gemm(runtime().device(0), product(0, 512, 640), {});
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(MmaGemmTest, CandidatesCanBeAskedFor) {
  cuda::gemm(runtime().device(0), product(1000, 512, 640), {}, "64x64.w2x2.b2");
  EXPECT_EQ(last().blocks, 16u * 8);
  EXPECT_EQ(last().threads, 128u);
  EXPECT_THAT(test::error_of([&] {
                cuda::gemm(runtime().device(0), product(1000, 512, 640), {},
                           "128x128.w2.c1x1x1.b1.early");
              }),
              AllOf(HasSubstr("'candidate'"), HasSubstr("64x64.w2x2.b2")));
}

TEST_F(MmaGemmTest, ConsumerBlackwellDoesTheSame) {
  state().compute_major = 12;
  state().compute_minor = 0;
  cuda::gemm(runtime().device(0), product(1000, 512, 640), {});
  EXPECT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().tensor_maps.empty());
}

}  // namespace
}  // namespace octofold::cuda
