// Operations that there are kernels for, and GPUs as targets of earlier ones.
#include "plan/capability.h"

#include <gmock/gmock.h>
#include <string>

#include "octofold/error.h"

#include "plan/cast.h"

namespace octofold::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Gpu gpu_of(int compute_capability) {
  return {.compute_major = compute_capability / 10,
          .compute_minor = compute_capability % 10,
          .multiprocessors = 100,
          .shared_memory_per_block = 227 * 1024};
}

TEST(CapabilityTest, HopperDoesEverything) {
  for (const Operation operation : kOperations) EXPECT_EQ(why_not(operation, kHopper), "");
}

// True if there are to be kernels.
bool is_served(Operation operation, int capability) {
  switch (operation) {
    case Operation::kProduct:
    case Operation::kGroupedProduct:
    case Operation::kGatedProduct:
      return capability == 89 || capability == 90 || capability / 10 == 12;
    case Operation::kDynamicProduct: return capability == 90;
    default: return capability >= 75;
  }
}

TEST(CapabilityTest, EachRefusalSaysWhatIsExpectedAndWhatCame) {
  for (const int capability : {70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121, 130}) {
    const Gpu gpu = gpu_of(capability);
    for (const Operation operation : kOperations) {
      const std::string reason = why_not(operation, gpu);
      if (is_served(operation, capability)) {
        EXPECT_EQ(reason, "") << capability << word(operation);
      } else {
        EXPECT_THAT(reason, AllOf(HasSubstr("expected a GPU of compute capability "),
                                  HasSubstr("got " + std::to_string(capability / 10) + "." +
                                            std::to_string(capability % 10))));
      }
    }
  }
}

TEST(CapabilityTest, ProductsSayWhichOfThemThereAre) {
  for (const Operation operation :
       {Operation::kProduct, Operation::kGroupedProduct, Operation::kGatedProduct}) {
    EXPECT_THAT(why_not(operation, gpu_of(86)), HasSubstr("8.9, 9.0 or 12.x, got 8.6"));
  }
  EXPECT_THAT(why_not(Operation::kDynamicProduct, gpu_of(89)),
              HasSubstr("9.0 (H100, H200), got 8.9"));
}

TEST(CapabilityTest, SaysWhyDataCenterBlackwellHasNoProducts) {
  for (const int capability : {100, 103, 110}) {
    for (const Operation operation : {Operation::kProduct, Operation::kGatedProduct}) {
      EXPECT_THAT(why_not(operation, gpu_of(capability)), HasSubstr("tcgen05"));
    }
  }
  EXPECT_THAT(why_not(Operation::kProduct, gpu_of(86)), testing::Not(HasSubstr("tcgen05")));
}

TEST(CapabilityTest, BFloat16IsForTensorCoresFrom80On) {
  for (const Operation operation : {Operation::kWeightOnly, Operation::kAttention}) {
    EXPECT_THAT(why_not_bfloat16(operation, gpu_of(75)), HasSubstr("8.0 or later"));
    EXPECT_EQ(why_not_bfloat16(operation, gpu_of(80)), "");
    EXPECT_NO_THROW(require_kernels(operation, "f", DType::kFloat16, gpu_of(75)));
    EXPECT_THROW(require_kernels(operation, "f", DType::kBFloat16, gpu_of(75)), Error);
  }
  EXPECT_EQ(why_not_bfloat16(Operation::kCast, gpu_of(75)), "");
  EXPECT_EQ(why_not_bfloat16(Operation::kDot, gpu_of(75)), "");
}

TEST(CapabilityTest, TheErrorNamesThePublicFunction) {
  EXPECT_NO_THROW(require_kernels(Operation::kNorm, "cast", kHopper));
  try {
    require_kernels(Operation::kNorm, "cast", gpu_of(70));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cast: "), HasSubstr("CPU backend")));
  }
}

TEST(TargetTest, IsTheGpuItselfWhereNoneIsAskedFor) {
  for (const int target : {0, 90}) {
    const Gpu gpu = as_target(kHopper, target);
    EXPECT_FALSE(gpu.is_translated);
    EXPECT_EQ(gpu.shared_memory_per_block, kHopper.shared_memory_per_block);
    EXPECT_EQ(architecture(gpu), "sm_90a");
  }
}

TEST(TargetTest, HasTheLimitsOfThoseThatItStandsFor) {
  for (const auto& [target, kilobytes] :
       {std::pair{75, 64}, {80, 163}, {86, 99}, {87, 163}, {89, 99}}) {
    const Gpu gpu = as_target(kHopper, target);
    EXPECT_TRUE(gpu.is_translated);
    EXPECT_EQ(gpu.compute_capability(), target);
    EXPECT_EQ(gpu.multiprocessors, 132);
    EXPECT_EQ(gpu.shared_memory_per_block, kilobytes * 1024);
    EXPECT_EQ(architecture(gpu), "compute_" + std::to_string(target));
  }
}

TEST(TargetTest, WideRowsTakeClustersWhereThereAreSome) {
  const CastProblem problem{
      .rows = 64,
      .cols = 100'000,
      .format = {.in = DType::kBFloat16, .granularity = Granularity::kChannel},
      .x_is_aligned = true,
      .codes_are_aligned = true};
  EXPECT_GT(plan_cast(problem, kHopper).kernels[0].cluster_size, 1);
  for (const KernelPlan& kernel : plan_cast(problem, as_target(kHopper, 86)).kernels) {
    EXPECT_EQ(kernel.cluster_size, 1);
  }
}

// Fused casts stage their inputs in shared memory.
TEST(TargetTest, CastsFitIntoTheSharedMemory) {
  for (const int target : {75, 80, 86, 89, 90}) {
    const Gpu gpu = as_target(kHopper, target);
    for (const DType in : {DType::kFloat32, DType::kBFloat16}) {
      for (const config::SourceKind kind :
           {config::SourceKind::kActivation, config::SourceKind::kActivationGradient,
            config::SourceKind::kNormed}) {
        const CastProblem problem{.rows = 256,
                                  .cols = 1024,
                                  .format = {.in = in},
                                  .source = {.kind = kind},
                                  .to_transposed = true};
        for (const CastLaunch& launch : cast_launches(problem, gpu)) {
          const auto& config = std::get<config::TileCastConfig>(launch.config);
          EXPECT_EQ(config.invalid_reason(), nullptr);
          EXPECT_LE(config.shared_bytes(), gpu.shared_memory_per_block);
          EXPECT_TRUE(target != 90 || config.is_staged());
        }
      }
    }
  }
}

TEST(TargetTest, CannotBeLaterThanTheGpu) {
  const Gpu ampere = gpu_of(86);
  try {
    as_target(ampere, 89);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("OCTOFOLD_TARGET"), HasSubstr("sm_86"), HasSubstr("sm_89")));
  }
}

}  // namespace
}  // namespace octofold::plan
