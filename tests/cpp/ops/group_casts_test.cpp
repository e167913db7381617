// octofold::cast of rows in groups, and of rows that are gathered, on the CPU: the bytes of casts
// of each group alone, and of the rows in memory.
#include "octofold/cast.h"
#include "octofold/octofold.h"

#include "support/matrix.h"
#include "support/refusals.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using enum Granularity;
using test::error_of;
using test::Matrix;

constexpr std::int64_t kRows = 300, kCols = 200;
constexpr std::uint8_t kNanCode = 0x7F;  // of e4m3: no cast of finite values writes it

class GroupCastsTest : public testing::Test {
 protected:
  static TensorView ints(const std::vector<std::int32_t>& values) {
    return vector(values.data(), DType::kInt32, std::ssize(values));
  }
  TensorView offsets() const { return ints(offsets_); }
  TensorView rows(std::int64_t begin, std::int64_t end) const {
    return matrix(static_cast<const float*>(x_.data()) + begin * kCols, DType::kFloat32,
                  end - begin, kCols);
  }
  std::int64_t columns() const { return group_columns(kRows, std::ssize(offsets_) - 1); }

  // That each group in `grouped` is as a cast of its own rows.
  void expect_groups(const ScaledMatrix& grouped, Granularity granularity) const {
    const std::int64_t scale_columns = columns() / 128;
    for (std::size_t group = 0; group + 1 < offsets_.size(); ++group) {
      const std::int64_t begin = offsets_[group], count = offsets_[group + 1] - begin;
      if (count == 0) continue;
      ScaledMatrix alone(kCols, count, {.granularity = granularity});
      cast(rows(begin, begin + count), {.transposed = alone.target()});
      const std::int64_t slot = begin / 128 + static_cast<std::int64_t>(group);
      const std::int64_t slots = (count + 127) / 128;
      for (std::int64_t row = 0; row < kCols; ++row) {
        const auto* codes = grouped.codes().data() + row * columns() + 128 * slot;
        EXPECT_EQ(std::memcmp(codes, alone.codes().data() + row * count, as_size(count)), 0);
        for (std::int64_t i = count; i < 128 * slots; ++i) EXPECT_EQ(codes[i], 0);
      }
      const std::int64_t scale_rows = granularity == kBlock1x128 ? kCols : 2;
      for (std::int64_t row = 0; row < scale_rows; ++row) {
        for (std::int64_t i = 0; i < slots; ++i) {
          EXPECT_EQ(grouped.scales()[as_size(row * scale_columns + slot + i)],
                    alone.scales()[as_size(row * slots + i)]);
        }
      }
    }
  }

  std::mt19937 random_{test::Random()()};
  Matrix x_ = test::random_matrix(random_, kRows, kCols);
  std::vector<std::int32_t> offsets_{0, 5, 5, 140, 270};
};

TEST_F(GroupCastsTest, AreCastsOfEachGroup) {
  for (const Granularity transposed : {kBlock1x128, kBlock128x128}) {
    ScaledMatrix of_rows(kRows, kCols), of_groups(kCols, columns(), {.granularity = transposed});
    cast(x_.view(),
         {.rows = of_rows.target(), .transposed = of_groups.target(), .offsets = offsets()});
    expect_groups(of_groups, transposed);
    ScaledMatrix alone(270, kCols);
    cast(rows(0, 270), {.rows = alone.target()});
    EXPECT_EQ(std::memcmp(of_rows.codes().data(), alone.codes().data(), 270 * kCols), 0);
    EXPECT_EQ(std::memcmp(of_rows.scales().data(), alone.scales().data(), 270 * 2 * 4), 0);
    ScaledMatrix without_rows(kCols, columns(), {.granularity = transposed});
    cast(x_.view(), {.transposed = without_rows.target(), .offsets = offsets()});
    expect_groups(without_rows, transposed);
    std::ranges::fill(without_rows.codes(), std::uint8_t{0xAA});  // again, by its scales
    cast(x_.view(), test::given({.transposed = without_rows.target(), .offsets = offsets()}));
    expect_groups(without_rows, transposed);
  }
}

TEST_F(GroupCastsTest, WriteNothingElse) {
  ScaledMatrix of_rows(kRows, kCols), of_groups(kCols, columns());
  for (ScaledMatrix* matrix : {&of_rows, &of_groups}) {
    std::ranges::fill(matrix->codes(), kNanCode);
    std::ranges::fill(matrix->scales(), -1.0f);
  }
  cast(x_.view(),
       {.rows = of_rows.target(), .transposed = of_groups.target(), .offsets = offsets()});
  EXPECT_THAT(of_rows.codes().subspan(270 * kCols), testing::Each(kNanCode));
  EXPECT_THAT(of_rows.scales().subspan(270 * 2), testing::Each(-1.0f));
  const std::vector<bool> written{true, false, true, true, true, true};  // slots
  for (std::size_t slot = 0; slot < written.size(); ++slot) {
    EXPECT_EQ(of_groups.codes()[128 * slot + 127] != kNanCode, written[slot]) << slot;
    EXPECT_EQ(of_groups.scales()[slot] != -1.0f, written[slot]) << slot;
  }
}

TEST_F(GroupCastsTest, SayWhatIsWrong) {
  ScaledMatrix of_rows(kRows, kCols), of_groups(kCols, columns());
  const Format square{.granularity = kBlock128x128};
  ScaledMatrix squares(kRows, kCols, square), of_squares(kCols, columns(), square);
  std::vector<float> sums(kCols), workspace(3 * kCols);
  std::vector<std::int32_t> other;
  const auto refuses = test::refusing<CastTargets>([&](auto&& spoil) {
    CastTargets out{
        .rows = of_rows.target(), .transposed = of_groups.target(), .offsets = offsets()};
    spoil(out);
    return error_of([&] { cast(x_.view(), out); });
  });
  const auto with_offsets = [&](std::vector<std::int32_t> values) {
    return [&other, values](CastTargets& out) {
      other = values;
      out.offsets = ints(other);
    };
  };
  refuses({
      {with_offsets({0, 5, 5, 4, 270}),
       "'offsets': expected entries that begin at 0, do not decrease and do not exceed 300 rows, "
       "got 4 at [3]"},
      {with_offsets({1, 5, 5, 140, 270}), "got 1 at [0]"},
      {[](auto& out) { out.group_layout = GroupLayout::kTight; },
       "'offsets': expected entries that begin at 0, do not decrease and do not exceed 300 rows, "
       "multiples of 128, got 5 at [1]"},
      {with_offsets({0, 5, 5, 140, 301}), "got 301 at [4]"},
      {[](auto& out) { out.offsets->dtype = DType::kFloat32; },
       "'offsets': expected dtype int32, got float32"},
      {[](auto& out) { out.offsets->shape[0] = 1; }, "'offsets': expected [groups + 1] elements"},
      {[](auto& out) { out.offsets->shape[0] = 3; },
       "'out.transposed': expected shape [200, 512], got [200, 768]"},
      {[](auto& out) { out.transposed.reset(); },
       "'offsets': expected none without 'out.transposed'"},
      {[&](auto& out) { out.rows = squares.target(), out.transposed = of_squares.target(); },
       "'out.rows': expected granularity tensor, channel or 1x128"},
      {[&](auto& out) {
         out.columns = {.sums = vector(sums.data(), DType::kFloat32, kCols),
                        .workspace = matrix(workspace.data(), DType::kFloat32, 3, kCols)};
       },
       "'out.columns': expected none beside 'offsets'"},
      {[&](auto& out) {
         std::ranges::fill(of_groups.codes(), std::uint8_t{0});
         out.offsets->data = of_groups.codes().data();
       },
       "apart from 'offsets'"},
  });
}

class GatheredTest : public GroupCastsTest {
 protected:
  static constexpr std::int64_t kSlots = 3, kGathered = 170;

  GatheredTest() {
    for (int row = 0; row < kGathered; ++row) sources_.push_back(row * 41 % 900);
    for (int place = 0; place < 900; ++place) {
      factors_.push_back(static_cast<float>(place % 13) / 8 - 0.5f);
    }
  }
  GatheredRows rows() const {
    return {.x = x_.view(),
            .sources = ints(sources_),
            .slots = kSlots,
            .factors = matrix(factors_.data(), DType::kFloat32, kRows, kSlots)};
  }
  // What is cast, in memory.
  Matrix in_memory() const {
    Matrix result(DType::kFloat32, kGathered, kCols);
    for (std::int64_t row = 0; row < kGathered; ++row) {
      const std::int32_t source = sources_[as_size(row)];
      for (std::int64_t col = 0; col < kCols; ++col) {
        result.float_at(row, col) = source < 0 ? 0.0f
                                               : static_cast<float>(x_.at(source / kSlots, col)) *
                                                     factors_[as_size(source)];
      }
    }
    return result;
  }

  std::vector<std::int32_t> sources_;
  std::vector<float> factors_;
};

TEST_F(GatheredTest, RowsOfNowhereAreNotWritten) {
  sources_[0] = sources_[77] = sources_[169] = -1;
  ScaledMatrix of_rows(kGathered, kCols), columns(kCols, kGathered);
  ScaledMatrix wanted_rows(kGathered, kCols), wanted_columns(kCols, kGathered);
  std::ranges::fill(of_rows.codes(), kNanCode);
  std::ranges::fill(of_rows.scales(), -1.0f);
  cast(rows(), {.rows = of_rows.target(), .transposed = columns.target()});
  cast(in_memory().view(), {.rows = wanted_rows.target(), .transposed = wanted_columns.target()});
  EXPECT_THAT(columns.codes(), testing::ElementsAreArray(wanted_columns.codes()));
  EXPECT_THAT(columns.scales(), testing::ElementsAreArray(wanted_columns.scales()));
  for (std::size_t row = 0; row < kGathered; ++row) {
    const auto codes = of_rows.codes().subspan(row * kCols, kCols);
    const auto scales = of_rows.scales().subspan(row * 2, 2);
    if (sources_[row] < 0) {
      EXPECT_THAT(codes, testing::Each(kNanCode));
      EXPECT_THAT(scales, testing::Each(-1.0f));
    } else {
      EXPECT_THAT(codes,
                  testing::ElementsAreArray(wanted_rows.codes().subspan(row * kCols, kCols)));
      EXPECT_THAT(scales, testing::ElementsAreArray(wanted_rows.scales().subspan(row * 2, 2)));
    }
  }
}

TEST_F(GatheredTest, SayWhatIsWrong) {
  ScaledMatrix of_rows(kGathered, kCols);
  const auto refuses = test::refusing<GatheredRows>([&](auto&& spoil) {
    const std::vector<std::int32_t> before = sources_;
    GatheredRows given = rows();
    spoil(given);
    const std::string error = error_of([&] { cast(given, {.rows = of_rows.target()}); });
    std::ranges::copy(before, sources_.begin());
    return error;
  });
  refuses({
      {[&](auto&) { sources_[3] = 900; },
       "cast: argument 'sources': expected places in 300 rows of 3 slots, or -1, got 900 at [3]"},
      {[&](auto&) { sources_[3] = -2; }, "got -2 at [3]"},
      {[](auto& g) { g.slots = 0; }, "'slots': expected 1 to 2147483647, got 0"},
      {[](auto& g) { g.slots = 2; }, "'factors': expected shape [300, 2], got [300, 3]"},
      {[](auto& g) { g.factors->strides[0] = 4; }, "'factors': expected contiguous rows"},
      {[](auto& g) { g.sources.dtype = DType::kFloat32; },
       "'sources': expected dtype int32, got float32"},
      {[](auto& g) { g.x.dtype = DType::kE4M3; },
       "'x': expected dtype float32 or float16 or bfloat16"},
      {[](auto& g) { g.sources.shape[0] = 5; },
       "'out.rows': expected shape [5, 200], got [170, 200]"},
      {[&](auto& g) {
         std::ranges::fill(of_rows.codes(), std::uint8_t{0});
         g.sources.data = of_rows.codes().data();
       },
       "apart from 'sources'"},
  });
}

}  // namespace
}  // namespace octofold
