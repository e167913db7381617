// FP8 products that run on the host, of groups too: operands among NaN, and what FP64 makes of
// them.
#pragma once

#include "octofold/gemm_form.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

#include "core/product.h"
#include "cpu/backend.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/work.h"
#include "support/judge.h"
#include "support/matrix.h"
#include "support/test.h"

namespace octofold::test {

struct GemmProblem {
  int m = 35;
  int n = 33;
  int k = 268;
  int offset = 0;         // of A and B in bytes from a multiple of 16
  int padding = 4;        // between their rows
  int apart = 0;          // of B: so much more of both
  bool reversed = false;  // rows of A from the last to the first: a negative stride
  bool one_row = false;   // B's rows are all the same one: a stride of 0
  int out_padding = 3;    // in elements, and of C
  bool exact = false;     // sums have the same bits in any order
};

// Codes and their scales.
class Codes {
 public:
  Codes(const Operand& operand, int rows, const GemmProblem& problem, bool reversed, bool one_row,
        Random& random)
      : granularity_(operand.scales),
        codes_(operand.type, rows, problem.k, problem.padding, problem.offset),
        scales_(operand.scales, rows, problem.k, random),
        reversed_(reversed),
        one_row_(one_row) {
    codes_.fill([&] { return draw_number(random); });
    if (!problem.exact) return;
    codes_.fill([&] { return static_cast<float>(static_cast<int>(random() % 17) - 8) / 8; });
    std::vector<float> powers(as_size(problem.k / kScaleBlock + 1));
    for (float& power : powers) power = std::ldexp(1.0f, static_cast<int>(random() % 4) - 2);
    scales_.set(powers);
  }

  ScaledTensorView view() const {
    ScaledTensorView view{codes_.view(), scales_.view(codes_.rows(), codes_.cols()), granularity_};
    std::int64_t& stride = view.data.strides[0];
    if (reversed_) {
      view.data.data = codes_.data() + (codes_.rows() - 1) * stride;
      stride = -stride;
    }
    if (one_row_) stride = 0;
    return view;
  }
  std::int64_t matrix_stride(std::int64_t rows) const { return scales_.matrix_stride(rows); }
  double value(int row, int k) const { return codes_.at(place(row), k) * scales_.at(row, k); }
  void set(int row, int k, float value) { codes_.set(place(row), k, value); }
  Matrix& codes() { return codes_; }

 private:
  std::int64_t place(int row) const {
    return reversed_ ? codes_.rows() - 1 - row : one_row_ ? 0 : row;
  }

  Granularity granularity_;
  Matrix codes_;
  Scales scales_;
  bool reversed_, one_row_;
};

constexpr DType type_of(Addend addend, DType out) {
  return addend == Addend::kFloat32 ? DType::kFloat32 : out;
}

struct Groups {
  std::vector<int> sizes;  // of each: rows, or values of K
  int room = 0;            // for rows, all of them together or of each masked one
  int m = 0;               // rows of A, where K is in groups
  int n = 0;
  int k = 0;
  GroupLayout layout{};  // where K is in groups
  bool exact = false;    // as GemmProblem has it
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

// A product in memory: a[M, K] · b[N, K]ᵀ and what is added. C, where there is one, is another
// matrix, or (in place) D itself.
template <GemmForm kForm, config::Work kWork = config::Work::kDense>
class GemmProduct {
  static constexpr bool kOfDepth = kWork == config::Work::kGroupedDepth;

 public:
  explicit GemmProduct(const GemmProblem& problem)
    requires(!config::has_groups(kWork))
      : GemmProduct({.sizes = {problem.m}, .room = problem.m, .n = problem.n, .k = problem.k},
                    problem, false) {
    if (problem.k > 200) a_.set(problem.m / 2, 200, NAN);  // of one row, and no other
  }
  explicit GemmProduct(const Groups& given, bool in_place = false)
    requires(config::has_groups(kWork))
      : GemmProduct(given, {.padding = 0, .out_padding = 8, .exact = given.exact}, in_place) {
    if (!kOfDepth) return;
    fill_up(a_, given.m);
    fill_up(b_, given.n);
  }

  core::Product product() {
    core::Product product{.a = a_.view(),
                          .b = b_.view(),
                          .out = out_.view(),
                          .fast_accumulation = kForm.fast_accumulation};
    if (kForm.c != Addend::kNone) product.c = (in_place_ ? out_ : c_).view();
    if (kForm.bias != Addend::kNone) {
      product.bias = vector<const void>(bias_.data(), bias_.dtype(), places_.b_rows);
    }
    if (!config::has_groups(kWork)) return product;
    product.groups = {.work = kWork,
                      .count = std::ssize(given_.sizes),
                      .numbers = places_.numbers.data(),
                      .layout = given_.layout};
    if (!kOfDepth) product.groups.scale_stride = b_.matrix_stride(given_.n);
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
          const double expected = sum_of(group, row, column, out_row, terms);
          const double actual = out_.at(out_row, column);
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(actual)) << out_row << ", " << column;
          } else {
            judge.see(actual, expected, terms);
          }
        }
      }
    }
    EXPECT_EQ(judge.verdict(), "");
    out_.expect_as_before(before_, written);
  }

  const Matrix& out() const { return out_; }
  Matrix& codes_of_a() { return a_.codes(); }

 private:
  GemmProduct(const Groups& given, GemmProblem problem, bool in_place)
      : given_(given),
        places_(kWork, given),
        problem_(of_depth(problem, places_.depth)),
        a_(kForm.a, places_.a_rows, problem_, problem.reversed, false, random_),
        b_(kForm.b, places_.b_rows, of_b(problem_), false, problem.one_row, random_),
        out_(kForm.out, places_.out_rows, given.n, problem.out_padding),
        c_(type_of(kForm.c, kForm.out), places_.out_rows, given.n, problem.out_padding + 8),
        bias_(type_of(kForm.bias, kForm.out), std::ssize(given.sizes), given.n),
        in_place_(in_place) {
    for (Matrix* added : {&c_, &bias_}) added->fill([&] { return draw_number(random_); });
    if (in_place) out_ = c_;
    before_ = out_;
  }
  static GemmProblem of_depth(GemmProblem problem, int depth) {
    problem.k = depth;
    return problem;
  }
  static GemmProblem of_b(GemmProblem problem) {
    problem.offset += problem.apart, problem.padding += problem.apart;
    return problem;
  }

  // With zeros behind each group's own values of K.
  void fill_up(Codes& codes, int rows) const {
    for (std::size_t group = 0; group < given_.sizes.size(); ++group) {
      const int end = places_.begins[group] + given_.sizes[group];
      for (int row = 0; row < rows; ++row) {
        for (int k = end; k < config::round_up(end, 128); ++k) codes.set(row, k, 0);
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
    if (kForm.c != Addend::kNone) add(c_.at(out_row, column));
    if (kForm.bias != Addend::kNone) add(bias_.at(group, column));
    return sum;
  }

  Random random_;
  Groups given_;
  GroupsInMemory places_;
  GemmProblem problem_;
  Codes a_, b_;
  Matrix out_, c_, bias_;
  Matrix before_{kForm.out, 0, 0};
  bool in_place_;
};

// Runs a product whose epilogue is gated, and the CPU backend's: of H, of so many columns, few
// codes differ, by one at most. `plain`: all but the epilogue, of exact sums.
template <typename Gated>
void expect_gated_as_on_cpu(const core::Product& plain, DType type, int columns, const Gated& gated,
                            auto&& run) {
  const std::int64_t rows = plain.out.shape[0], units = columns / kScaleBlock;
  Matrix codes(type, rows, columns, 16), scales(DType::kFloat32, units, rows, 3);
  Matrix expected_codes = codes, expected_scales = scales;
  const auto product_of = [&](Matrix& to, Matrix& to_scales) {
    core::Product product = plain;
    product.out = to.view();
    product.gated = core::GatedEpilogue{.activation = gated.activation,
                                        .format = {.out = type,
                                                   .rule = gated.rule,
                                                   .power_of_two = gated.power_of_two,
                                                   .saturate = gated.saturate},
                                        .scale = to_scales.view()};
    std::swap(product.gated->scale.shape[0], product.gated->scale.shape[1]);
    std::swap(product.gated->scale.strides[0], product.gated->scale.strides[1]);
    return product;
  };
  run(product_of(codes, scales));
  cpu::multiply(product_of(expected_codes, expected_scales));
  int differ = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const double scale = scales.at(unit, row), expected = expected_scales.at(unit, row);
      const bool neither = std::isnan(scale) && std::isnan(expected);  // of a row of no group
      ASSERT_TRUE(neither || std::abs(scale - expected) <= 0x1p-7 * expected)
          << row << ": " << scale << ", " << expected;
    }
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto at = as_size(row * (columns + 16) + column);
      const int code = codes.bytes()[at], expected = expected_codes.bytes()[at];
      differ += code != expected;
      ASSERT_LE(std::abs(code - expected), 1) << row << ", " << column;
    }
  }
  EXPECT_LE(differ, rows * columns / 100);
  codes.expect_untouched_beside();
  scales.expect_untouched_beside();
}

}  // namespace octofold::test
