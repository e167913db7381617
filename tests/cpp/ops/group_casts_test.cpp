// octofold::cast of rows in groups, and of rows that are gathered, on the CPU: the bytes of casts
// of each group alone, and of the rows in memory.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "octofold/cast.h"
#include "octofold/error.h"
#include "octofold/norm_gradient.h"
#include "octofold/scaled_matrix.h"

#include "support/error_of.h"
#include "support/matrix.h"
#include "support/random.h"
#include "support/targets.h"

namespace octofold {
namespace {

using enum Granularity;
using test::error_of;
using test::Matrix;
using testing::HasSubstr;

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
        EXPECT_EQ(
            std::memcmp(codes, alone.codes().data() + row * count, static_cast<std::size_t>(count)),
            0);
        for (std::int64_t i = count; i < 128 * slots; ++i) EXPECT_EQ(codes[i], 0);
      }
      const std::int64_t scale_rows = granularity == kBlock1x128 ? kCols : 2;
      for (std::int64_t row = 0; row < scale_rows; ++row) {
        for (std::int64_t i = 0; i < slots; ++i) {
          EXPECT_EQ(grouped.scales()[static_cast<std::size_t>(row * scale_columns + slot + i)],
                    alone.scales()[static_cast<std::size_t>(row * slots + i)]);
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
    ScaledMatrix of_rows(kRows, kCols, {.granularity = kBlock1x128}),
        of_groups(kCols, columns(), {.granularity = transposed});
    cast(x_.view(),
         {.rows = of_rows.target(), .transposed = of_groups.target(), .offsets = offsets()});
    expect_groups(of_groups, transposed);
    ScaledMatrix alone(270, kCols, {.granularity = kBlock1x128});
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
  ScaledMatrix of_rows(kRows, kCols, {.granularity = kBlock1x128}),
      of_groups(kCols, columns(), {.granularity = kBlock1x128});
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
  ScaledMatrix of_rows(kRows, kCols, {.granularity = kBlock1x128}),
      of_groups(kCols, columns(), {.granularity = kBlock1x128});
  CastTargets out{.rows = of_rows.target(), .transposed = of_groups.target(), .offsets = offsets()};
  const auto error = [&] { return error_of([&] { cast(x_.view(), out); }); };
  offsets_[3] = 4;
  EXPECT_THAT(error(), HasSubstr("'offsets': expected entries that begin at 0, do not decrease and "
                                 "do not exceed 300 rows, got 4 at [3]"));
  offsets_ = {1, 5, 5, 140, 270};
  out.offsets = offsets();
  EXPECT_THAT(error(), HasSubstr("got 1 at [0]"));
  offsets_ = {0, 5, 5, 140, 301};
  out.offsets = offsets();
  EXPECT_THAT(error(), HasSubstr("got 301 at [4]"));
  offsets_ = {0, 5, 5, 140, 270};
  out.offsets = offsets();
  out.offsets->dtype = DType::kFloat32;
  EXPECT_THAT(error(), HasSubstr("'offsets': expected dtype int32, got float32"));
  out.offsets = offsets();
  out.offsets->shape[0] = 1;
  EXPECT_THAT(error(), HasSubstr("'offsets': expected [groups + 1] elements"));
  out.offsets->shape[0] = 3;
  EXPECT_THAT(error(), HasSubstr("'out.transposed': expected shape [200, 512], got [200, 768]"));
  out.offsets = offsets();
  out.transposed.reset();
  EXPECT_THAT(error(), HasSubstr("'offsets': expected none without 'out.transposed'"));

  ScaledMatrix squares(kRows, kCols, {.granularity = kBlock128x128}),
      of_squares(kCols, columns(), {.granularity = kBlock128x128});
  out = {.rows = squares.target(), .transposed = of_squares.target(), .offsets = offsets()};
  EXPECT_THAT(error(), HasSubstr("'out.rows': expected granularity tensor, channel or 1x128"));
  std::vector<float> sums(kCols), workspace(3 * kCols);
  out = {.transposed = of_squares.target(),
         .columns = {.sums = vector(sums.data(), DType::kFloat32, kCols),
                     .workspace = matrix(workspace.data(), DType::kFloat32, 3, kCols)},
         .offsets = offsets()};
  EXPECT_THAT(error(), HasSubstr("'out.columns': expected none beside 'offsets'"));
  out = {.transposed = of_squares.target(), .offsets = offsets()};
  out.offsets->data = of_squares.codes().data();
  EXPECT_THAT(error(), HasSubstr("apart from 'offsets'"));
  EXPECT_THAT(error_of([] { group_columns(5, 0); }), HasSubstr("group_columns: expected rows"));
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
      const std::int32_t source = sources_[static_cast<std::size_t>(row)];
      for (std::int64_t col = 0; col < kCols; ++col) {
        result.float_at(row, col) = source < 0 ? 0.0f
                                               : static_cast<float>(x_.at(source / kSlots, col)) *
                                                     factors_[static_cast<std::size_t>(source)];
      }
    }
    return result;
  }

  std::vector<std::int32_t> sources_;
  std::vector<float> factors_;
};

TEST_F(GatheredTest, RowsOfNowhereAreNotWritten) {
  sources_[0] = sources_[77] = sources_[169] = -1;
  ScaledMatrix of_rows(kGathered, kCols, {.granularity = kBlock1x128}),
      columns(kCols, kGathered, {.granularity = kBlock1x128});
  ScaledMatrix wanted_rows(kGathered, kCols, {.granularity = kBlock1x128}),
      wanted_columns(kCols, kGathered, {.granularity = kBlock1x128});
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
  ScaledMatrix of_rows(kGathered, kCols, {.granularity = kBlock1x128});
  CastTargets out{.rows = of_rows.target()};
  GatheredRows given = rows();
  const auto error = [&] { return error_of([&] { cast(given, out); }); };
  sources_[3] = 900;
  EXPECT_THAT(error(), HasSubstr("cast: argument 'sources': expected places "
                                 "in 300 rows of 3 slots, or -1, got 900 at [3]"));
  sources_[3] = -2;
  EXPECT_THAT(error(), HasSubstr("got -2 at [3]"));
  sources_[3] = 0;
  given.slots = 0;
  EXPECT_THAT(error(), HasSubstr("'slots': expected 1 to 2147483647, got 0"));
  given.slots = 2;
  EXPECT_THAT(error(), HasSubstr("'factors': expected shape [300, 2], got [300, 3]"));
  given = rows();
  given.factors->strides[0] = 4;
  EXPECT_THAT(error(), HasSubstr("'factors': expected contiguous rows"));
  given = rows();
  given.sources.dtype = DType::kFloat32;
  EXPECT_THAT(error(), HasSubstr("'sources': expected dtype int32, got float32"));
  given = rows();
  given.x.dtype = DType::kE4M3;
  EXPECT_THAT(error(), HasSubstr("'x': expected dtype float32 or float16 or bfloat16"));
  given = rows();
  given.sources.shape[0] = 5;
  EXPECT_THAT(error(), HasSubstr("'out.rows': expected shape [5, 200], got [170, 200]"));
  given = rows();
  given.sources.data = of_rows.codes().data();
  EXPECT_THAT(error(), HasSubstr("apart from 'sources'"));
}

}  // namespace
}  // namespace octofold
