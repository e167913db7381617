// The launches with which a product reaches a GPU that multiplies by warps. The results of the
// kernel are tested on a GPU, and by the same parameters on the host (tests/cpp/kernels).

#include "support/product_fixture.h"
#include "support/product_plans.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using test::address;
using test::kGpu;
using test::product;

constexpr const char* kTile = "64x64.w2x2.b2";

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
  int stream = 0;
  multiply(dense, {}, {&stream});
  ASSERT_EQ(state().launches.size(), 1u);
  EXPECT_TRUE(state().tensor_maps.empty());
  EXPECT_EQ(last().stream, &stream);
  const auto plan =
      test::plan_as<config::MmaGemmConfig>(plan::problem_of(dense), plan::gpu_of(89, 128));
  EXPECT_EQ(plan.config.load_bytes, 4);  // rows that run backwards
  EXPECT_EQ(last().blocks, plan.kernels.front().blocks);
  EXPECT_EQ(last().threads, static_cast<unsigned>(plan.config.threads()));
  EXPECT_EQ(last().shared_bytes, static_cast<unsigned>(plan.config.shared_bytes()));
  EXPECT_EQ(last().params_as<config::GemmParams>().rows.data, address(test::kA));
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
  multiply(product(1000, 512, 640), kTile);
  EXPECT_EQ(last().blocks, 16u * 8);
  EXPECT_EQ(last().threads, 128u);
  EXPECT_THAT(
      refusal(product(1000, 512, 640), "128x128.w2.c1x1x1.b1.early", ErrorCode::kInvalidArgument),
      AllOf(HasSubstr("'candidate'"), HasSubstr(kTile)));
}

TEST_F(MmaProductTest, HasNoProductsThatCastTheirInput) {
  EXPECT_THAT(refusal(test::cast_product(16, 512, 640)), HasSubstr("gemm: expected a GPU"));
}

TEST_F(MmaProductTest, BlocksOfGroupsAndGates) {
  const auto blocks = [&](const core::Product& product, std::string_view candidate) {
    multiply(product, candidate);
    return last().blocks;
  };
  EXPECT_EQ(blocks(test::grouped_product(config::Work::kGroupedRows, 1000, 256, 640), kTile),
            (1000u / 64 + test::kGroups) * 4);
  EXPECT_EQ(blocks(test::grouped_product(config::Work::kMaskedRows, 1000, 256, 640), kTile),
            2u * 128);
  EXPECT_EQ(blocks(test::grouped_product(config::Work::kGroupedDepth, 128, 256, 640), kTile),
            2u * 4 * test::kGroups);
  EXPECT_EQ(blocks(test::gated_product(1000, 512, 640), "64x128.w2x4.b1"), 16u * 4);
  EXPECT_EQ(blocks(test::grouped_gated_product(1000, 256, 640), "16x128.w1x4.b1"), 128u);
  EXPECT_TRUE(state().tensor_maps.empty());
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
