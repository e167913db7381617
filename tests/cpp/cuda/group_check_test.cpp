// Checks of groups' numbers: what reaches the GPU, and what is said of what it leaves.
#include "cuda/group_check.h"

#include "cuda/fake_runtime.h"
#include "kernels/routing/config/routing.h"
#include "support/gpu_product.h"
#include "support/test.h"

namespace octofold::cuda {
namespace {

using config::GroupFault;
using test::kGpu;

class GroupCheckTest : public FakeGpuTest {
 protected:
  GroupCheckTest() { state().params_bytes = sizeof(config::GroupCheckParams); }

  void look_at_offsets(std::string_view operation = "grouped_gemm", int device = 0) {
    static const std::int32_t numbers[9] = {};
    look_through_offsets(runtime().device(device), operation, "offsets", numbers, 9, 640, 128,
                         {&stream_});
  }
  void look_at_ids() {
    look_through_range(runtime().device(0), "sort_by_expert", "ids",
                       matrix(static_cast<const void*>(&stream_), DType::kInt32, 10, 6, 8, kGpu),
                       -1, 63, {&stream_});
  }
  config::GroupCheckParams last_params() {
    return state().launches.back().params_as<config::GroupCheckParams>();
  }
  // Leaves a fault as the kernel of the latest check would.
  void leave_fault(long long index, int value, int before = 0) {
    const config::GroupCheckParams params = last_params();
    *params.fault = {.state = GroupFault::kWhole,
                     .argument = params.argument,
                     .ascends = params.stride == 0,
                     .index = index,
                     .value = value,
                     .before = before,
                     .low = params.low,
                     .high = params.high,
                     .unit = params.unit};
  }
  std::string error(auto&& call) { return error_of(call, ErrorCode::kInvalidArgument); }

  int stream_ = 0;
};

TEST_F(GroupCheckTest, KernelsGetTheNumbers) {
  look_at_offsets();
  const config::GroupCheckParams offsets = last_params();
  EXPECT_EQ(offsets.cols, 9);
  EXPECT_EQ(offsets.count, 9);
  EXPECT_EQ(offsets.high, 640);
  EXPECT_EQ(state().launches.back().blocks, 1u);
  EXPECT_EQ(state().launches.back().stream, &stream_);
  look_at_ids();
  const config::GroupCheckParams ids = last_params();
  EXPECT_EQ(ids.numbers, static_cast<const void*>(&stream_));
  EXPECT_EQ(ids.stride, 8);
  EXPECT_EQ(ids.cols, 6);
  EXPECT_EQ(ids.count, 60);
  EXPECT_EQ(ids.low, -1);
  EXPECT_EQ(ids.high, 63);
  EXPECT_EQ(ids.fault, offsets.fault);
  EXPECT_NE(ids.argument, offsets.argument);
  look_at_offsets();
  EXPECT_EQ(last_params().argument, offsets.argument);
  EXPECT_EQ(compilations_, 2);
  EXPECT_EQ(state().host_memory.size(), 1u);
  EXPECT_EQ(state().synchronizations, 0);
}

TEST_F(GroupCheckTest, TheNextCallSaysWhatWasWrong) {
  look_at_offsets();
  leave_fault(4, 7, 9);
  EXPECT_EQ(error([&] { look_at_ids(); }),
            "grouped_gemm: argument 'offsets': expected offsets that begin at 0, never decrease "
            "and end at 640 at most, multiples of 128, got 7 at flat index 4 after 9 (in an "
            "earlier call on cuda:0, "
            "found by OCTOFOLD_CHECK_GROUPS)");
  EXPECT_EQ(state().launches.size(), 1u);  // of what was wrong nothing follows
  look_at_ids();                           // said once
  leave_fault(59, 64);
  EXPECT_EQ(error([&] { look_at_offsets("grouped_gemm_k"); }),
            "sort_by_expert: argument 'ids': expected numbers from -1 to 63, got 64 at flat index "
            "59 (in an earlier call on cuda:0, found by OCTOFOLD_CHECK_GROUPS)");
  EXPECT_EQ(error([&] { look_at_offsets(); }), "no error");
}

TEST_F(GroupCheckTest, DevicesHaveTheirOwn) {
  look_at_offsets();
  leave_fault(0, 1);
  EXPECT_EQ(error([&] { look_at_offsets("grouped_gemm", 1); }), "no error");
  EXPECT_EQ(state().host_memory.size(), 2u);
  EXPECT_NE(error([&] { look_at_offsets(); }), "no error");
}

TEST_F(GroupCheckTest, WhatIsBeingWrittenIsNotRead) {
  look_at_offsets();
  leave_fault(0, 1);
  last_params().fault->state = GroupFault::kBeingWritten;
  EXPECT_EQ(error([&] { look_at_offsets(); }), "no error");
}

// The option is not set here.
TEST_F(GroupCheckTest, NothingWithoutTheOption) {
  const std::int32_t number = 0;
  check_offsets(runtime().device(0), "grouped_gemm", "offsets", &number, 1, 0, 1, {});
  check_range(runtime().device(0), "combine", "positions", vector(&number, DType::kInt32, 1, kGpu),
              0, 0, {});
  EXPECT_TRUE(state().launches.empty());
  EXPECT_TRUE(state().host_memory.empty());
}

TEST_F(GroupCheckTest, OfNothing) {
  look_through_offsets(runtime().device(0), "grouped_gemm", "offsets", nullptr, 0, 0, 1, {});
  EXPECT_TRUE(state().launches.empty());
}

}  // namespace
}  // namespace octofold::cuda
