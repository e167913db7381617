// FP8 products of groups that run on the host, and what FP64 makes of them.
#pragma once

#include "octofold/gemm_form.h"

#include "core/product.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/work.h"
#include "support/gemm_on_host.h"
#include "support/judge.h"
#include "support/test.h"

namespace octofold::test {

struct Groups {
  std::vector<int> sizes;  // of each: rows, or values of K
  int room = 0;            // for rows, all of them together or of each masked one
  int m = 0;               // rows of A, where K is in groups
  int n = 0;
  int k = 0;
  GroupLayout layout{};  // where K is in groups
};

// The places where groups begin, what the kernel is told, and the rows of A and D, and those of B.
// Groups in K have blocks of 128 of their own, with holes between groups that are not tight.
struct GroupsInMemory {
  GroupsInMemory(config::Work work, const Groups& given) {
    using enum config::Work;
    const auto count = static_cast<int>(given.sizes.size());
    const bool tight = given.layout == GroupLayout::kTight;
    int end = 0;
    for (int group = 0; group < count; ++group) {
      const int size = given.sizes[as_size(group)];
      begins.push_back(work == kMaskedRows     ? group * given.room
                       : work == kGroupedDepth ? 128 * (end / 128 + (tight ? 0 : group))
                                               : end);
      numbers.push_back(work == kMaskedRows ? size : end);
      end += size;
    }
    if (work != kMaskedRows) numbers.push_back(end);
    if (work == kGroupedDepth) {
      a_rows = given.m, b_rows = given.n, out_rows = count * given.m;
      depth = 128 * (end / 128 + (tight ? 0 : count));
    } else {
      a_rows = out_rows = given.room * (work == kMaskedRows ? count : 1);
      b_rows = count * given.n, depth = given.k;
    }
  }
  std::vector<int> begins, numbers;
  int a_rows, b_rows, out_rows, depth;
};

// Between NaN. C, where there is one, is another matrix, or (in place) D itself.
template <GemmForm kForm, config::Work kWork>
class GroupedProduct {
  static constexpr bool kOfDepth = kWork == config::Work::kGroupedDepth;

 public:
  explicit GroupedProduct(const Groups& given, bool in_place = false)
      : given_(given),
        places_(kWork, given),
        problem_{.k = places_.depth, .padding = 0},
        a_(kForm.a, places_.a_rows, problem_, false, false, random_),
        b_(kForm.b, places_.b_rows, problem_, false, false, random_),
        out_(kForm.out, places_.out_rows, given.n, 8),
        c_(type_of(kForm.c, kForm.out), places_.out_rows, given.n, 8),
        bias_(type_of(kForm.bias, kForm.out), static_cast<int>(given.sizes.size()), given.n, 0),
        in_place_(in_place) {
    c_.fill(random_);
    bias_.fill(random_);
    if (in_place) out_ = c_;
    before_ = out_;
    if (kOfDepth) {
      fill_up(a_, given.m);
      fill_up(b_, given.n);
    }
  }

  core::Product product() {
    core::Product product{.a = a_.view(),
                          .b = b_.view(),
                          .out = out_.view(),
                          .fast_accumulation = kForm.fast_accumulation,
                          .groups = {.work = kWork,
                                     .count = std::ssize(given_.sizes),
                                     .numbers = places_.numbers.data(),
                                     .layout = given_.layout}};
    if (kForm.c != Addend::kNone) product.c = (in_place_ ? out_ : c_).view();
    if (kForm.bias != Addend::kNone) {
      product.bias = vector<const void>(bias_.memory.data(), bias_.type, places_.b_rows, kGpu);
    }
    if (!kOfDepth && kForm.b.scales != Granularity::kTensor) {
      const bool squares = kForm.b.scales == Granularity::kBlock128x128;
      product.groups.scale_stride = squares ? given_.n / 128 : given_.n;
    }
    return product;
  }

  // Each group's result, and nothing beside it.
  void expect_right() const {
    Judge judge(kForm.out);
    std::vector<bool> written(as_size(places_.out_rows), false);
    for (int group = 0; group < std::ssize(given_.sizes); ++group) {
      const int begin = places_.begins[as_size(group)];
      for (int row = 0; row < (kOfDepth ? given_.m : given_.sizes[as_size(group)]); ++row) {
        const int out_row = kOfDepth ? group * given_.m + row : begin + row;
        written[as_size(out_row)] = true;
        for (int column = 0; column < given_.n; ++column) {
          double terms;
          const double sum = sum_of(group, row, column, out_row, terms);
          judge.see(out_.value(out_row, column), sum, terms);
        }
      }
    }
    EXPECT_EQ(judge.verdict(), "");
    expect_untouched(written);
  }

  // Whatever the groups: between the rows.
  void expect_untouched_beside() const {
    expect_untouched(std::vector<bool>(as_size(places_.out_rows), true));
  }

  const Numbers& numbers() const { return out_; }

 private:
  void expect_untouched(const std::vector<bool>& written) const {
    const std::int64_t bytes = size_of(kForm.out);
    for (int row = 0; row < places_.out_rows; ++row) {
      const std::int64_t begin = row * out_.stride + (written[as_size(row)] ? given_.n : 0);
      for (std::int64_t i = begin * bytes; i < (row + 1) * out_.stride * bytes; ++i) {
        ASSERT_EQ(out_.memory[as_size(i)], before_.memory[as_size(i)]) << "beside row " << row;
      }
    }
  }

  // With zeros behind each group's own values of K.
  void fill_up(Codes& codes, int rows) const {
    for (std::size_t group = 0; group < given_.sizes.size(); ++group) {
      const int end = places_.begins[group] + given_.sizes[group];
      for (int row = 0; row < rows; ++row) {
        for (int k = end; k < config::round_up(end, 128); ++k) codes.code(row, k) = 0;
      }
    }
  }

  double sum_of(int group, int row, int column, int out_row, double& terms) const {
    const int begin = places_.begins[as_size(group)];
    const int a_row = kOfDepth ? row : out_row;
    const int b_row = kOfDepth ? column : group * given_.n + column;
    const int k_end = kOfDepth ? begin + given_.sizes[as_size(group)] : given_.k;
    double sum = terms = 0;
    const auto add = [&](double term) { sum += term, terms += std::abs(term); };
    for (int i = kOfDepth ? begin : 0; i < k_end; ++i) add(a_.value(a_row, i) * b_.value(b_row, i));
    if (kForm.c != Addend::kNone) add(c_.value(out_row, column));
    if (kForm.bias != Addend::kNone) add(bias_.value(group, column));
    return sum;
  }

  Random random_;
  Groups given_;
  GroupsInMemory places_;
  GemmProblem problem_;
  Codes a_, b_;
  Numbers out_, c_, bias_;
  Numbers before_{kForm.out, 0, 0, 0};
  bool in_place_;
};

}  // namespace octofold::test
