// The kernel that looks through the numbers of groups, run on the host.
#define __shared__ static
#include "support/block_on_host.h"  // first: it has CUDA's types
//
#include "kernels/routing/group_check.h"
#include "support/test.h"

namespace octofold {
namespace {

using Index = std::vector<std::int32_t>;

template <bool kAscends>
config::GroupFault fault_of(const Index& numbers, int cols, std::int64_t stride, int low, int high,
                            int unit = 1) {
  config::GroupFault fault{};
  const config::GroupCheckParams params{
      .numbers = numbers.data(),
      .stride = stride,
      .cols = cols,
      .count = static_cast<int>(std::ssize(numbers) / (stride > 0 ? stride : cols) * cols),
      .low = low,
      .high = high,
      .unit = unit,
      .argument = 3,
      .fault = &fault};
  test::launch(1, 512, [&] { group_check_kernel<config::GroupCheckConfig{kAscends}>(params); });
  return fault;
}

TEST(GroupCheckKernelTest, FindsTheFirstThatIsNone) {
  Index numbers(20 * 100, 5);
  const auto fault = [&] { return fault_of<false>(numbers, 90, 100, -1, 5); };
  numbers[95] = 99;  // between rows
  EXPECT_EQ(fault().state, config::GroupFault::kNone);
  for (const std::size_t row : {19, 7, 0}) {
    numbers[100 * row + 89] = row == 7 ? -2 : 6;
    const config::GroupFault found = fault();
    EXPECT_EQ(found.state, config::GroupFault::kWhole);
    EXPECT_EQ(found.argument, 3);
    EXPECT_FALSE(found.ascends);
    EXPECT_EQ(found.index, 90 * row + 89);
    EXPECT_EQ(found.value, row == 7 ? -2 : 6);
    EXPECT_EQ(found.low, -1);
    EXPECT_EQ(found.high, 5);
  }
}

TEST(GroupCheckKernelTest, OffsetsAscendFromZero) {
  Index offsets(1001);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int>(i / 2 * 2);
  const auto fault = [&](int most) { return fault_of<true>(offsets, 1001, 0, 0, most); };
  EXPECT_EQ(fault(1000).state, config::GroupFault::kNone);
  EXPECT_EQ(fault(999).index, 1000);
  const config::GroupFault no_multiple = fault_of<true>(offsets, 1001, 0, 0, 1000, 4);
  EXPECT_EQ(no_multiple.index, 2);
  EXPECT_EQ(no_multiple.unit, 4);
  offsets[700] = 1001;  // the next one is less, but this one is beyond the end
  EXPECT_EQ(fault(1000).index, 700);
  EXPECT_EQ(fault(2000).index, 701);
  EXPECT_EQ(fault(2000).before, 1001);
  offsets[0] = 1;
  EXPECT_EQ(fault(2000).index, 0);
  EXPECT_EQ(fault(2000).value, 1);
  EXPECT_TRUE(fault(2000).ascends);
  offsets[0] = -1;
  EXPECT_EQ(fault(2000).index, 0);
}

// The first that is found stays until the host has seen it.
TEST(GroupCheckKernelTest, LeavesAnotherFaultAsItIs) {
  config::GroupFault fault{};
  fault.state = config::GroupFault::kWhole;
  fault.argument = 1;
  const Index numbers{7};
  config::GroupCheckParams params{};
  params.numbers = numbers.data();
  params.cols = params.count = 1;
  params.argument = 2;
  params.fault = &fault;
  test::launch(1, 512, [&] { group_check_kernel<config::GroupCheckConfig{}>(params); });
  EXPECT_EQ(fault.argument, 1);
}

}  // namespace
}  // namespace octofold
