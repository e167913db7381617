// Every source of a cast with every kind of targets, on the CPU: the bytes of the cast of its
// values in memory, which are worked out here.
#include "octofold/octofold.h"

#include "support/both_casts.h"
#include "support/matrix.h"
#include "support/targets.h"
#include "support/test.h"

namespace octofold {
namespace {

using enum Granularity;
using test::Matrix;

constexpr std::int64_t kRows = 150, kCols = 200;

// A source, and the matrix that it stands for.
struct Case {
  std::string name;
  CastSource source;
  const Matrix* values;
  bool is_plain = false;
};

class CastSourcesTest : public testing::Test {
 protected:
  CastSourcesTest() {
    for (std::size_t i = 0; i < kRows; ++i) {
      places_[i] = static_cast<std::int32_t>(i * 41 % (kRows * kSlots));
    }
    for (std::size_t i = 0; i < factors_.size(); ++i) {
      factors_[i] = static_cast<float>(i % 13) / 8 - 0.5f;
    }
    for (std::int64_t row = 0; row < kRows; ++row) work_out(row);
  }

  // All float32, where each is one rounding of what the definition says.
  void work_out(std::int64_t row) {
    double squares = 0;
    for (std::int64_t col = 0; col < kCols; ++col) squares += std::pow(x_.at(row, col), 2);
    const auto rstd = static_cast<float>(1 / std::sqrt(squares / kCols + double{1e-6f}));
    const std::int32_t place = places_[as_size(row)];
    const float factor = factors_[as_size(place)];
    for (std::int64_t col = 0; col < kCols; ++col) {
      const double x = x_.at(row, col), positive = std::max(x, 0.0);
      activated_.float_at(row, col) = static_cast<float>(positive * positive);
      by_x_.float_at(row, col) = static_cast<float>(gradient_.at(row, col) * 2 * positive);
      normed_.float_at(row, col) = x_.float_at(row, col) * rstd;
      gathered_.float_at(row, col) = x_.float_at(place / kSlots, col) * factor;
    }
  }

  std::vector<Case> cases() {
    const auto relu = Activation::kReluSquared;
    return {{"plain", x_.view(), &x_, true},
            {"activated", Activated{.x = x_.view(), .activation = relu}, &activated_},
            {"activation gradient",
             ActivationGradient{.gradient = gradient_.view(), .x = x_.view(), .activation = relu},
             &by_x_},
            {"normed", Normed{.x = x_.view(), .rstd = vector(rstd_.data(), DType::kFloat32, kRows)},
             &normed_},
            {"gathered",
             GatheredRows{.x = x_.view(),
                          .sources = vector(places_.data(), DType::kInt32, kRows),
                          .slots = kSlots,
                          .factors = matrix(factors_.data(), DType::kFloat32, kRows, kSlots)},
             &gathered_}};
  }

  static constexpr std::int64_t kSlots = 3;
  std::mt19937 random_{test::Random()()};
  Matrix x_ = test::random_matrix(random_, kRows, kCols);
  Matrix gradient_ = test::random_matrix(random_, kRows, kCols);
  Matrix activated_ = x_, by_x_ = x_, normed_ = x_, gathered_ = x_;
  std::vector<float> rstd_ = std::vector<float>(kRows);
  std::vector<float> factors_ = std::vector<float>(kRows * kSlots);
  std::vector<std::int32_t> places_ = std::vector<std::int32_t>(kRows);
};

// What is asked for.
struct Kind {
  std::string name;
  std::optional<Format> rows{}, transposed{};
  std::vector<std::int32_t> offsets{};
  bool two_level = false;
  bool columns = false;
};

std::vector<Kind> kinds() {
  std::vector<Kind> kinds;
  for (const GranularityRow& row : kGranularityTable) {
    const Format format{.granularity = row.granularity, .rule = Rule::kVllm};
    const Format e5m2{.dtype = DType::kE5M2, .granularity = row.granularity, .power_of_two = true};
    const std::string name = row.name;
    kinds.push_back({"rows of " + name, format});
    kinds.push_back({"a transpose of " + name, {}, e5m2});
    kinds.push_back({"both of " + name, format, format});
    kinds.push_back({"columns beside " + name, e5m2, {}, {}, false, true});
    kinds.push_back({"groups of " + name, {}, format, {0, 5, 5, 140}});
  }
  const Format lines{}, channels{.granularity = kChannel}, squares{.granularity = kBlock128x128};
  kinds.push_back({"lines beside channels", lines, channels, {}, false, true});
  kinds.push_back({"lines beside squares", lines, squares});
  kinds.push_back({"groups of lines beside channels", lines, channels, {0, 128, 150}});
  kinds.push_back({"two levels", squares, squares, {}, true});
  kinds.push_back({"lines beside two levels", lines, squares, {}, true, true});
  return kinds;
}

// All that a cast writes, poisoned before.
struct Written {
  explicit Written(const Kind& kind)
      : columns(kind.offsets.empty() ? kRows : group_columns(kRows, std::ssize(kind.offsets) - 1)),
        offsets(kind.offsets),
        factors(std::max(kRows, kCols)) {
    for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = static_cast<float>(1 + i % 7);
    if (kind.rows) add(rows, kRows, kCols, *kind.rows);
    if (kind.transposed) add(transposed, kCols, columns, *kind.transposed);
    if (kind.columns) reduced.assign(2 * kCols + 4 * kCols, -1.0f);
  }

  static void add(std::optional<ScaledMatrix>& matrix, std::int64_t height, std::int64_t width,
                  const Format& format) {
    matrix.emplace(height, width, format);
    std::ranges::fill(matrix->codes(), std::uint8_t{0xAA});
    std::ranges::fill(matrix->scales(), 0.25f);
  }

  CastTargets targets(const Kind& kind) {
    CastTargets targets;
    const auto target_of = [&](ScaledMatrix& matrix) {
      CastTarget target = matrix.target();
      if (kind.two_level && target.format.granularity == kBlock128x128) {
        target.channel_scale = vector(factors.data(), DType::kFloat32, matrix.rows());
      }
      return target;
    };
    if (rows) targets.rows = target_of(*rows);
    if (transposed) targets.transposed = target_of(*transposed);
    if (!offsets.empty()) {
      targets.offsets = vector(offsets.data(), DType::kInt32, std::ssize(offsets));
    }
    if (kind.columns) {
      float* data = reduced.data();
      targets.columns = {.sums = vector(data, DType::kFloat32, kCols),
                         .amax = vector(data + kCols, DType::kFloat32, kCols),
                         .workspace = matrix(data + 2 * kCols, DType::kFloat32, 4, kCols)};
    }
    return targets;
  }

  void expect_same(const Written& other) const {
    if (rows) test::expect_same(*rows, *other.rows);
    if (transposed) test::expect_same(*transposed, *other.transposed);
    EXPECT_THAT(reduced, testing::ElementsAreArray(other.reduced));
  }

  std::int64_t columns;
  std::vector<std::int32_t> offsets;
  std::optional<ScaledMatrix> rows, transposed;
  std::vector<float> factors, reduced;
};

TEST_F(CastSourcesTest, AreCastAsTheirValuesInMemory) {
  for (const Kind& kind : kinds()) {
    for (const Case& each : cases()) {
      SCOPED_TRACE(kind.name + " from " + each.name);
      Written actual(kind), expected(kind);
      cast(each.source, actual.targets(kind));
      cast(each.values->view(), expected.targets(kind));
      actual.expect_same(expected);
    }
  }
}

TEST_F(CastSourcesTest, AreCastByGivenScales) {
  for (const Kind& kind : kinds()) {
    const bool of_squares = kind.rows && kind.transposed &&
                            kind.rows->granularity != kind.transposed->granularity &&
                            kind.transposed->granularity == kBlock128x128;
    if (kind.two_level || of_squares) continue;
    for (const Case& each : cases()) {
      SCOPED_TRACE(kind.name + " from " + each.name);
      Written actual(kind), expected(kind);
      const Format rule{.rule = Rule::kVllm};
      cast(each.source, test::by(rule, test::given(actual.targets(kind))));
      cast(each.values->view(), test::by(rule, test::given(expected.targets(kind))));
      actual.expect_same(expected);
      for (const auto* matrix : {&actual.rows, &actual.transposed}) {
        if (*matrix) {
          EXPECT_THAT((*matrix)->scales(), testing::Each(0.25f));
        }
      }
    }
  }
}

// A stack is made of matrices in memory; offsets and columns are of one matrix.
TEST_F(CastSourcesTest, OthersThanPlainOnesAreNoStacks) {
  for (const Case& each : cases()) {
    ScaledMatrix out(kRows, kCols);
    const CastTargets targets{.rows = out.target(), .matrices = 3};
    const std::string error = test::error_of([&] { cast(each.source, targets); });
    EXPECT_THAT(error, HasSubstr(each.is_plain ? "no error"
                                               : "'matrices': expected none except for a matrix in "
                                                 "memory"));
  }
}

// Both targets are cast alike: an error names both.
TEST_F(CastSourcesTest, BothTargetsHaveOneFormat) {
  ScaledMatrix rows(kRows, kCols), transposed(kCols, kRows);
  const CastTargets good{.rows = rows.target(), .transposed = transposed.target()};
  const auto error = [&](const std::function<void(CastTarget&)>& spoil) {
    CastTargets targets = good;
    spoil(*targets.transposed);
    return test::error_of([&] { cast(x_.view(), targets); });
  };
  EXPECT_EQ(error([](CastTarget&) {}), "no error");
  EXPECT_THAT(error([](auto& target) { target.format.rule = Rule::kTorchAo; }),
              HasSubstr("cast: argument 'rule': expected one for 'out.rows' and "
                        "'out.transposed', got deepgemm and torchao"));
  EXPECT_THAT(error([](auto& target) { target.format.power_of_two = true; }),
              HasSubstr("'power_of_two': expected one for 'out.rows' and 'out.transposed', got "
                        "unset and true"));
  EXPECT_THAT(error([](auto& target) { target.format.overflow = Overflow::kNan; }),
              HasSubstr("got saturate and nan"));
  EXPECT_THAT(error([](auto& target) { target.scales = ScaleSource::kGiven; }),
              HasSubstr("'scales': expected one for 'out.rows' and 'out.transposed', got computed "
                        "and given"));
  EXPECT_THAT(error([](auto& target) { target.format.dtype = DType::kE5M2; }),
              HasSubstr("'out.transposed.format.dtype': expected e4m3, as its data, got e5m2"));
}

}  // namespace
}  // namespace octofold
