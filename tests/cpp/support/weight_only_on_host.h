// Products with FP8 weights that run on the host, of groups too: operands among NaN, and what FP64
// makes of them.
#pragma once

#include "octofold/types.h"

#include "core/product.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/work.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::test {

struct WeightOnlyCase {
  std::int64_t rows, columns, depth;  // rows: of all groups, or places of each masked one
  Granularity w_scales = Granularity::kTensor;
  Granularity x_scales = Granularity::kTensor;  // of FP8
  bool has_bias = false;
  bool bias_is_float32 = false;
  std::int64_t pad = 0, offset = 0;
  bool has_nan = false;
  int splits = 1;
  std::span<const float> scales = {};  // of W, of each 128 columns, in place of others
  // For gathered rows: the rows of x, and how many places each has. Row i is of place i · 7 + 3,
  // round and round; every fifth comes from nowhere.
  std::int64_t tokens = 0, slots = 1;
  bool has_factors = false;
};

// Scales of blocks one after another, of a depth of 896: sums in units of the last scale have to
// change it.
inline constexpr float kFarApart[][7] = {{0, 3, 0, 0, 1e-6f, 2, 0},
                                         {1e20f, 1e-30f, 1e-30f, 7e19f, 0, 1, 1},
                                         {-1, 2, 1e-38f, -3, 1e-20f, 4, 5},
                                         {0, 0, 0, 0, 0, 0, 0},
                                         {1e-30f, 2e-30f, 1e-31f, 0, 3e-30f, 1e-30f, 1e-30f}};

// A product in memory, for a kernel of this configuration, and what FP64 makes of it. `numbers`: of
// a kernel for groups, their offsets, or counts of `rows` places each.
template <auto kConfig>
class WeightOnlyProduct {
  static constexpr bool kHasGroups = config::has_groups(kConfig.work);
  static constexpr bool kIsMasked = kConfig.work == config::Work::kMaskedRows;
  static constexpr bool kIsGathered = [] {
    if constexpr (requires { kConfig.gathered; }) return kConfig.gathered;
    return false;
  }();

 public:
  explicit WeightOnlyProduct(const WeightOnlyCase& given, std::vector<std::int32_t> numbers = {})
      : given_(given),
        numbers_(std::move(numbers)),
        w_(kConfig.w, groups() * w_rows(), w_cols(), given.pad, given.offset),
        x_(kConfig.x, x_rows(), given.depth, given.pad, given.offset),
        out_(kConfig.out, all_rows(), given.columns, given.pad, given.offset),
        bias_(bias_type(), groups(), given.columns),
        w_scales_(given.w_scales, groups() * w_rows(), w_cols(), random_),
        x_scales_(given.x_scales, x_rows(), given.depth, random_),
        partials_(as_size(given.splits * given.rows * given.columns), NAN) {
    for (Matrix* drawn : {&w_, &x_, &bias_}) drawn->fill([&] { return draw_number(random_); });
    w_scales_.set(given.scales);
    if (given.has_nan) w_.set(w_rows() / 2, w_cols() / 2, NAN);
    for (std::int64_t row = 0; kIsGathered && row < given.rows; ++row) {
      const auto place = static_cast<std::int32_t>(
          (row * 7 + 3) % std::max<std::int64_t>(given.tokens * given.slots, 1));
      // On a GPU any number beyond the places is none.
      sources_.push_back(row % 5 == 2 ? (row % 2 == 0 ? -1 : 1 << 30) : place);
    }
    for (std::int64_t i = 0; i < given.tokens * given.slots; ++i) {
      factors_.push_back(static_cast<float>(i % 9) / 4 - 1);
    }
  }

  core::WeightOnlyProduct product() {
    core::WeightOnlyProduct product{
        .x = {.data = x_.view()},
        .w = {.data = w_.view(),
              .scale = w_scales_.view(w_rows(), w_cols()),
              .granularity = given_.w_scales},
        .out = out_.view(),
        .workspace = vector(partials_.data(), DType::kFloat32, std::ssize(partials_)),
        .transposed = kConfig.transposed};
    if (is_fp8(kConfig.x)) {
      product.x.scale = x_scales_.view(x_rows(), given_.depth);
      product.x.granularity = given_.x_scales;
    }
    if (given_.has_bias) {
      product.bias = vector<const void>(bias_.data(), bias_type(), groups() * given_.columns);
    }
    if (kHasGroups) {
      product.groups = {.work = kConfig.work,
                        .count = groups(),
                        .numbers = numbers_.data(),
                        .scale_stride = w_scales_.matrix_stride(w_rows()),
                        .max_rows = given_.rows};
    }
    if (kIsGathered) {
      product.gathered =
          GatheredRows{.x = product.x.data,
                       .sources = vector<const void>(sources_.data(), DType::kInt32, given_.rows),
                       .slots = given_.slots};
      if (given_.has_factors) {
        product.gathered->factors =
            matrix(factors_.data(), DType::kFloat32, given_.tokens, given_.slots);
      }
    }
    return product;
  }

  // Rows of groups are right, others as they were, and so is the memory beside them.
  void expect_right() const {
    std::vector<std::int64_t> group_of(as_size(all_rows()), kHasGroups ? -1 : 0);
    for (std::int64_t group = 0; kHasGroups && group < groups(); ++group) {
      const auto at = as_size(group);
      const std::int64_t begin = kIsMasked ? group * given_.rows : numbers_[at];
      const std::int64_t end = kIsMasked ? begin + numbers_[at] : numbers_[at + 1];
      for (std::int64_t row = begin; row < end; ++row) group_of[as_size(row)] = group;
    }
    for (std::int64_t row = 0; row < all_rows(); ++row) {
      const std::int64_t group = exists(row) ? group_of[as_size(row)] : -1;
      for (std::int64_t column = 0; column < given_.columns; ++column) {
        expect_right(group, row, column);
      }
    }
    out_.expect_untouched_beside();
  }

 private:
  std::int64_t groups() const {
    return kHasGroups ? std::ssize(numbers_) - (kIsMasked ? 0 : 1) : 1;
  }
  std::int64_t all_rows() const { return kIsMasked ? groups() * given_.rows : given_.rows; }
  std::int64_t w_rows() const { return kConfig.transposed ? given_.depth : given_.columns; }
  std::int64_t w_cols() const { return kConfig.transposed ? given_.columns : given_.depth; }
  std::int64_t x_rows() const { return kIsGathered ? given_.tokens : all_rows(); }
  DType bias_type() const { return given_.bias_is_float32 ? DType::kFloat32 : kConfig.out; }
  bool exists(std::int64_t row) const {
    return !kIsGathered || (row % 5 != 2 && given_.tokens > 0);
  }

  // Group -1: the row is of none.
  void expect_right(std::int64_t group, std::int64_t row, std::int64_t column) const {
    const double actual = out_.at(row, column);
    double terms = 0;
    const double sum = group < 0 ? NAN : sum_of(group, row, column, terms);
    if (std::isnan(sum)) {
      ASSERT_TRUE(std::isnan(actual)) << row << " " << column;
      return;
    }
    // A weight that has a factor is rounded once more.
    const double rounding = kConfig.x == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    const double of_terms = 2e-6 + (kConfig.depth_factors ? rounding : 0);
    const double of_result = kConfig.out == DType::kFloat32   ? 1e-7
                             : kConfig.out == DType::kFloat16 ? 0x1p-11
                                                              : 0x1p-8;
    ASSERT_NEAR(actual, sum, of_terms * terms + of_result * std::abs(sum))
        << row << " " << column << " of group " << group << ", " << given_.depth << " deep";
  }

  double sum_of(std::int64_t group, std::int64_t row, std::int64_t column, double& terms) const {
    const std::int64_t x_row = kIsGathered ? sources_[as_size(row)] / given_.slots : row;
    const double factor =
        kIsGathered && given_.has_factors ? factors_[as_size(sources_[as_size(row)])] : 1;
    double sum = terms = 0;
    for (std::int64_t k = 0; k < given_.depth; ++k) {
      const std::int64_t w_row = group * w_rows() + (kConfig.transposed ? k : column);
      const std::int64_t w_col = kConfig.transposed ? column : k;
      double term = factor * x_.at(x_row, k) * w_.at(w_row, w_col) * w_scales_.at(w_row, w_col);
      if (is_fp8(kConfig.x)) term *= x_scales_.at(x_row, k);
      sum += term;
      terms += std::abs(term);
    }
    return given_.has_bias ? sum + bias_.at(group, column) : sum;
  }

  Random random_;
  WeightOnlyCase given_;
  std::vector<std::int32_t> numbers_;
  Matrix w_, x_, out_, bias_;
  Scales w_scales_, x_scales_;
  std::vector<float> partials_;
  std::vector<std::int32_t> sources_;
  std::vector<float> factors_;
};

}  // namespace octofold::test
