// The places of groups' rows, and the divisions that find them: the very code of the kernels.
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"
#include "support/test.h"

namespace octofold::plan {
namespace {

using config::GroupBounds;

TEST(DivisorTest, IsExactBelowTwoToThe31st) {
  test::Random random;
  constexpr unsigned kMost = 0x7FFFFFFF;
  for (unsigned i = 0; i < 100'000; ++i) {
    const unsigned divisor = i < 2000 ? i + 1 : 1 + static_cast<unsigned>(random()) % kMost;
    const auto by = config::Divisor::of(divisor);
    const auto expect_exact = [&](unsigned value) {
      EXPECT_EQ(by.quotient(value), value / divisor) << value << " / " << divisor;
    };
    const unsigned value = static_cast<unsigned>(random()) % (kMost + 1u);
    const unsigned multiple = value / divisor * divisor;
    expect_exact(value);
    expect_exact(multiple);
    if (multiple > 0) expect_exact(multiple - 1);
    expect_exact(kMost);
    expect_exact(divisor);
    expect_exact(divisor - 1);
  }
}

GroupBounds rows_of(GroupLayout layout, const std::vector<int>& offsets, std::int64_t rows,
                    std::int64_t slot) {
  return config::rows_of_slot(layout, offsets.data(), static_cast<int>(offsets.size()) - 1, rows,
                              static_cast<int>(slot));
}

// Each group's rows come once, from the group's own first slot on, and no slot has others.
TEST(GroupLayoutTest, EachRowStandsInItsOwnGroupOnce) {
  test::Random random;
  for (int i = 0; i < 2000; ++i) {
    const bool tight = i % 2 != 0;
    const GroupLayout layout = tight ? GroupLayout::kTight : GroupLayout::kSpaced;
    const auto rows = static_cast<std::int64_t>(random() % 2000);
    const int groups = 1 + static_cast<int>(random() % 20);
    std::vector<int> offsets{0};
    for (int group = 0; group < groups; ++group) {
      offsets.push_back(static_cast<int>(random() % static_cast<unsigned>(rows + 1)));
      if (random() % 3 == 0 || tight) offsets.back() = offsets.back() / 128 * 128;
      if (random() % 4 == 0) offsets.back() = offsets[offsets.size() - 2];
    }
    std::ranges::sort(offsets);
    const std::int64_t slots = rows / 128 + (tight ? 0 : groups);
    std::vector<int> owner(as_size(slots), -1);
    for (int group = 0; group < groups; ++group) {
      const int begin = offsets[as_size(group)];
      const int end = offsets[as_size(group) + 1];
      for (int row = begin; row < end; row += 128) {
        const std::int64_t slot = begin / 128 + (tight ? 0 : group) + (row - begin) / 128;
        ASSERT_LT(slot, slots);
        EXPECT_EQ(owner[as_size(slot)], -1);
        owner[as_size(slot)] = group;
        const GroupBounds found = rows_of(layout, offsets, rows, slot);
        EXPECT_EQ(found.begin, row);
        EXPECT_EQ(found.end, end);
      }
    }
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const GroupBounds found = rows_of(layout, offsets, rows, slot);
      EXPECT_EQ(found.begin < found.end, owner[as_size(slot)] >= 0);
    }
  }
}

}  // namespace
}  // namespace octofold::plan
