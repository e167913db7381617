// The launches and parameters with which a product reaches a GPU that multiplies by warps. The
// results of the kernel are tested on the host (tests/cpp/kernels) and on a GPU.

#include "support/product_fixture.h"
#include "support/product_plans.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using test::product;

class MmaProductTest : public ProductTest {
 protected:
  MmaProductTest() {
    state().compute_major = 8;
    state().compute_minor = 9;
    state().multiprocessors = 128;
    state().shared_memory_per_block = 99 * 1024;
    state().params_bytes = sizeof(config::GemmParams);
  }
};

TEST_F(MmaProductTest, TheKernelGetsTheArguments) {
  core::Product dense = product(1000, 512, 640);
  dense.a.data.strides[0] = -656;
  dense.b.channel_scale = vector<const void>(address(0x8000), DType::kFloat32, 512, kGpu);
  dense.c = matrix<const void>(address(0x6000), DType::kFloat32, 1000, 512, 520, kGpu);
  dense.bias = vector<const void>(address(0x7000), DType::kBFloat16, 512, kGpu);
  int stream = 0;
  multiply(dense, {}, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().tensor_maps.empty());
  EXPECT_EQ(last().stream, &stream);
  const auto plan =
      test::plan_as<config::MmaGemmConfig>(plan::problem_of(dense), plan::gpu_of(89, 128));
  EXPECT_EQ(plan.config.load_bytes, 4);  // rows that run backwards
  EXPECT_TRUE(plan.config.columns_have_factors());
  EXPECT_EQ(last().blocks, plan.kernels.front().blocks);
  EXPECT_EQ(last().threads, static_cast<unsigned>(plan.config.threads()));
  EXPECT_EQ(last().shared_bytes, static_cast<unsigned>(plan.config.shared_bytes()));
  const auto params = last().params_as<config::GemmParams>();
  EXPECT_EQ(text(params.work), "1000×512×640");
  EXPECT_EQ(text(params.rows), "a, rows -656 apart; a.scale, 1 and 1000 apart");
  EXPECT_EQ(text(params.columns), "b, rows 640 apart; b.scale, 5 and 1 apart");
  EXPECT_EQ(params.channel_scale, address(0x8000));
  EXPECT_EQ(params.out, address(test::kOut));
  EXPECT_EQ(params.out_stride, 512);
  EXPECT_EQ(params.c, address(0x6000));
  EXPECT_EQ(params.c_stride, 520);
  EXPECT_EQ(params.bias, address(0x7000));
}

TEST_F(MmaProductTest, OneProblemIsPlannedAndLoadedOnce) {
  for (int i = 0; i < 3; ++i) multiply(product(16, 512, 640));
  EXPECT_EQ(state().launches.size(), 3u);
  EXPECT_EQ(state().loads, 1);
}

TEST_F(MmaProductTest, TheLogNamesWhatIsSlow) {
  core::Product dense = product(1000, 510, 640);  // a D that no other store would suit better
  multiply(dense);
  EXPECT_TRUE(log_.empty());
  dense.a.data.strides[0] = 644;
  multiply(dense);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_THAT(log_[0], AllOf(HasSubstr("'a': its row stride is not"), HasSubstr("16 bytes")));
}

TEST_F(MmaProductTest, NothingIsLaunchedForNothing) {
  multiply(product(0, 512, 640));
  EXPECT_TRUE(state().launches.empty());
}

TEST_F(MmaProductTest, CandidatesCanBeAskedFor) {
  multiply(product(1000, 512, 640), "64x64.w2x2.b2");
  EXPECT_EQ(last().blocks, 16u * 8);
  EXPECT_EQ(last().threads, 128u);
  EXPECT_THAT(
      refusal(product(1000, 512, 640), "128x128.w2.c1x1x1.b1.early", ErrorCode::kInvalidArgument),
      AllOf(HasSubstr("'candidate'"), HasSubstr("64x64.w2x2.b2")));
}

TEST_F(MmaProductTest, HasNoProductsThatCastTheirInput) {
  EXPECT_THAT(refusal(test::cast_product(16, 512, 640)), HasSubstr("gemm: expected a GPU"));
}

TEST_F(MmaProductTest, GroupsAndTheirScales) {
  multiply(test::grouped_product(config::Work::kGroupedRows, 1000, 256, 640), "64x64.w2x2.b2");
  auto params = last().params_as<config::GemmParams>();
  EXPECT_EQ(last().blocks, (1000u / 64 + test::kGroups) * 4);
  EXPECT_EQ(text(params.work), "1000×256×640, 4 groups by numbers");
  EXPECT_EQ(text(params.rows), "a, rows 640 apart; a.scale, 1 and 1000 apart");
  EXPECT_EQ(text(params.columns), "b, rows 640 apart; b.scale, 5 and 1 apart, of groups 10");

  multiply(test::grouped_product(config::Work::kMaskedRows, 1000, 256, 640), "64x64.w2x2.b2");
  params = last().params_as<config::GemmParams>();
  EXPECT_EQ(last().blocks, 2u * 128);
  EXPECT_EQ(text(params.work), "1000×256×640, 4 groups by numbers");
  EXPECT_EQ(params.columns.scale.group_stride, 10);

  multiply(test::grouped_product(config::Work::kGroupedDepth, 128, 256, 640), "64x64.w2x2.b2");
  params = last().params_as<config::GemmParams>();
  EXPECT_EQ(last().blocks, 2u * 4 * test::kGroups);
  EXPECT_EQ(text(params.work), "128×256×640, 4 groups by numbers");
  EXPECT_EQ(params.columns.scale.group_stride, 0);
  EXPECT_TRUE(state().tensor_maps.empty());
}

TEST_F(MmaProductTest, GatedProductsHaveScalesOfTheResult) {
  multiply(test::gated_product(1000, 512, 640), "64x128.w2x4.b1");
  auto params = last().params_as<config::GemmParams>();
  EXPECT_EQ(last().blocks, 16u * 4);
  EXPECT_EQ(text(params.work), "1000×512×640");
  EXPECT_EQ(text(params.columns), "b, rows 640 apart; b.scale, 5 and 1 apart");
  EXPECT_EQ(params.out, address(test::kOut));
  EXPECT_EQ(text(params.out_scale.data), "out.scale");
  EXPECT_EQ(params.out_scale.row_stride, 1);
  EXPECT_EQ(params.out_scale.column_stride, 1000);

  multiply(test::grouped_gated_product(1000, 256, 640), "16x128.w1x4.b1");
  params = last().params_as<config::GemmParams>();
  EXPECT_EQ(last().blocks, 128u);
  EXPECT_EQ(text(params.work), "1000×256×640, 4 groups by numbers");
  EXPECT_EQ(params.columns.scale.group_stride, 4 * 5);  // of gates and ups
}

// No kernel of any GPU takes these products.
TEST_F(MmaProductTest, GatesAndGroupsOfKLieWhereTmaCouldAddressThem) {
  EXPECT_THAT(refusal(test::gated_product(16, 200, 640)), HasSubstr("a multiple of 128"));
  core::Product in_depth = test::grouped_product(config::Work::kGroupedDepth, 128, 256, 640);
  in_depth.a.data.strides[0] = 644;
  EXPECT_THAT(refusal(in_depth), HasSubstr("argument 'a': expected a matrix that TMA can"));
}

TEST_F(MmaProductTest, ConsumerBlackwellDoesTheSame) {
  state().compute_major = 12;
  state().compute_minor = 0;
  multiply(product(1000, 512, 640));
  EXPECT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().tensor_maps.empty());
}

}  // namespace
}  // namespace octofold::cuda
