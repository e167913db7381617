// Groups of rows and their FP8 weights, for kernels that run on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/weight_only_on_host.h"

namespace octofold::test {

struct GroupedCase {
  std::vector<std::int32_t> numbers;  // offsets, or counts of `rows` places each
  std::int64_t rows, columns, depth;
  Granularity w_scales = Granularity::kTensor;
  bool has_bias = false;
  std::int64_t pad = 0, offset = 0;
  // For gathered rows: the rows of x, and how many places each has. Row i is of place i · 7 + 3,
  // round and round; every fifth comes from nowhere.
  std::int64_t tokens = 0, slots = 1;
  bool has_factors = false;
};

template <auto kConfig>
class GroupedWeightOnlyProduct {
  static constexpr bool kIsMasked = kConfig.work == config::Work::kMaskedRows;
  static constexpr bool kIsGathered = [] {
    if constexpr (requires { kConfig.gathered; }) return kConfig.gathered;
    return false;
  }();

 public:
  explicit GroupedWeightOnlyProduct(const GroupedCase& given)
      : given_(given),
        w_(kConfig.w, groups() * w_rows(), w_cols(), given.pad, given.offset),
        x_(kConfig.x, x_rows(), given.depth, given.pad, given.offset),
        out_(kConfig.out, all_rows(), given.columns, given.pad, given.offset),
        bias_(kConfig.out, groups(), given.columns, 0, 0),
        w_scales_(given.w_scales, groups() * w_rows(), w_cols()) {
    Random random;
    w_.draw(random, groups() * w_rows());
    x_.draw(random, x_rows());
    bias_.draw(random, groups());
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

  config::WeightOnlyParams params() {
    const std::int64_t scale_rows = given_.w_scales == Granularity::kTensor ? 0
                                    : given_.w_scales == Granularity::kBlock128x128
                                        ? w_rows() / kScaleBlock
                                        : w_rows();
    return {.w = w_.data(),
            .w_stride = w_.stride(),
            .x = x_.data(),
            .x_stride = x_.stride() * size_of(kConfig.x),
            .out = out_.data(),
            .out_stride = out_.stride(),
            .bias = given_.has_bias ? bias_.data() : nullptr,
            .bias_is_float32 = false,
            .w_scale = kConfig.transposed ? w_scales_.of_columns() : w_scales_.of_rows(),
            .x_scale = {},
            .rows = given_.rows,
            .columns = given_.columns,
            .depth = given_.depth,
            .groups = {.numbers = given_.numbers.data(),
                       .count = static_cast<int>(groups()),
                       .w_stride = w_rows() * w_.stride(),
                       .scale_stride = scale_rows,
                       .sources = sources_.data(),
                       .slots = config::Divisor::of(static_cast<unsigned>(given_.slots)),
                       .places = static_cast<unsigned>(given_.tokens * given_.slots),
                       .factors = given_.has_factors ? factors_.data() : nullptr}};
  }

  // Rows of groups are right, others as they were.
  void expect_right() const {
    std::vector<std::int64_t> group_of(as_size(all_rows()), -1);
    for (std::int64_t group = 0; group < groups(); ++group) {
      const auto at = as_size(group);
      const std::int64_t begin = kIsMasked ? group * given_.rows : given_.numbers[at];
      const std::int64_t end = kIsMasked ? begin + given_.numbers[at] : given_.numbers[at + 1];
      for (std::int64_t row = begin; row < end; ++row) group_of[as_size(row)] = group;
    }
    for (std::int64_t row = 0; row < all_rows(); ++row) {
      const std::int64_t group = exists(row) ? group_of[as_size(row)] : -1;
      for (std::int64_t column = 0; column < given_.columns; ++column) {
        const double actual = out_.at(row, column);
        if (group < 0) {
          ASSERT_TRUE(std::isnan(actual)) << row << " " << column;
          continue;
        }
        double terms;
        const double sum = sum_of(group, row, column, terms);
        ASSERT_NEAR(actual, sum, of_terms() * terms + of_result() * std::abs(sum))
            << row << " " << column << " of group " << group;
      }
      if (given_.pad > 0) {
        EXPECT_TRUE(std::isnan(out_.at(row, given_.columns)));
      }
    }
    EXPECT_TRUE(std::isnan(out_.at(all_rows(), 0)));
  }

  std::int64_t all_rows() const { return kIsMasked ? groups() * given_.rows : given_.rows; }
  std::int64_t groups() const { return std::ssize(given_.numbers) - (kIsMasked ? 0 : 1); }

 private:
  std::int64_t w_rows() const { return kConfig.transposed ? given_.depth : given_.columns; }
  std::int64_t w_cols() const { return kConfig.transposed ? given_.columns : given_.depth; }
  std::int64_t x_rows() const { return kIsGathered ? given_.tokens : all_rows(); }
  static double of_terms() {
    const double rounding = kConfig.x == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    return 2e-6 + (kConfig.depth_factors ? rounding : 0);
  }
  static double of_result() {
    return kConfig.out == DType::kFloat32   ? 1e-7
           : kConfig.out == DType::kFloat16 ? 0x1p-11
                                            : 0x1p-8;
  }
  bool exists(std::int64_t row) const {
    return !kIsGathered || (row % 5 != 2 && given_.tokens > 0);
  }

  double sum_of(std::int64_t group, std::int64_t row, std::int64_t column, double& terms) const {
    const std::int64_t x_row = kIsGathered ? sources_[as_size(row)] / given_.slots : row;
    const double factor =
        kIsGathered && given_.has_factors ? factors_[as_size(sources_[as_size(row)])] : 1;
    double sum = terms = 0;
    for (std::int64_t k = 0; k < given_.depth; ++k) {
      const std::int64_t w_row = group * w_rows() + (kConfig.transposed ? k : column);
      const std::int64_t w_col = kConfig.transposed ? column : k;
      const double term = x_.at(x_row, k) * w_.at(w_row, w_col) * w_scales_.at(w_row, w_col);
      sum += factor * term;
      terms += std::abs(factor * term);
    }
    return given_.has_bias ? sum + bias_.at(group, column) : sum;
  }

  GroupedCase given_;
  Matrix w_, x_, out_, bias_;
  Scales w_scales_;
  std::vector<std::int32_t> sources_;
  std::vector<float> factors_;
};

}  // namespace octofold::test
