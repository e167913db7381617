// FP8 products that run on the host, of groups too: operands among NaN, and what FP64 makes of
// them.
#pragma once

#include "octofold/gemm_form.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

#include "core/product.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/work.h"
#include "support/gpu_product.h"
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
  bool reversed = false;  // rows of A from the last to the first: a negative stride
  bool one_row = false;   // B's rows are all the same one: a stride of 0
  int out_padding = 3;    // in elements, and of C
};

inline double value_of(DType type, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (type == DType::kFloat32) return static_cast<double>(static_cast<const float*>(data)[index]);
  if (size_of(type) == 2) {
    unsigned short half;
    std::memcpy(&half, bytes + 2 * index, 2);
    return type == DType::kFloat16 ? decode_bits(half, 5, 10, 15) : decode_bits(half, 8, 7, 127);
  }
  return type == DType::kE4M3 ? decode_bits(bytes[index], 4, 3, 7)
                              : decode_bits(bytes[index], 5, 2, 15);
}

// Codes in memory full of NaN, which nobody may take for a number, and their scales.
class Codes {
 public:
  Codes(const Operand& operand, int rows, const GemmProblem& problem, bool reversed, bool one_row,
        Random& random)
      : operand_(operand), rows_(rows), k_(problem.k) {
    const int pitch = problem.k + problem.padding;
    memory_.assign(as_size(32 + std::int64_t{rows} * pitch), 0xFF);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    unsigned char* first = memory_.data() + (16 - begin % 16) % 16 + problem.offset;
    for (int row = 0; row < rows; ++row) {
      // The numbers are of every magnitude up to about 4.
      for (int i = 0; i < problem.k; ++i) {
        const unsigned most = operand.type == DType::kE4M3 ? 0x48 : 0x44;
        first[row * pitch + i] = static_cast<unsigned char>(random() % most | (random() % 2) << 7);
      }
    }
    data_ = first + (reversed ? (rows - 1) * pitch : 0);
    stride_ = one_row ? 0 : reversed ? -pitch : pitch;
    sharers_ = operand.scales == Granularity::kBlock128x128 ? 128 : 1;
    row_stride_ = operand.scales == Granularity::kTensor ? 0 : 1;
    k_stride_ = varies_along_k(operand.scales) ? (rows + sharers_ - 1) / sharers_ + 3 : 0;
    scales_.assign(as_size(rows + (rows + 3) * ((problem.k + 127) / 128)), 0);
    for (float& scale : scales_) scale = 0.5f + static_cast<float>(random() % 1000) / 500;
  }

  ScaledTensorView view() const {
    const std::int64_t units = (rows_ + sharers_ - 1) / sharers_;
    TensorView scale{scales_.data(), DType::kFloat32, 0, {}, {}, kGpu};
    if (operand_.scales != Granularity::kTensor) {
      scale.rank = 2;
      scale.shape = {units, k_stride_ == 0 ? 1 : (k_ + 127) / 128};
      scale.strides = {row_stride_, k_stride_};
    }
    return {{data_, operand_.type, 2, {rows_, k_}, {stride_, 1}, kGpu}, scale, operand_.scales};
  }
  double value(int row, int k) const {
    const double scale =
        static_cast<double>(scales_[as_size(row / sharers_ * row_stride_ + k / 128 * k_stride_)]);
    return value_of(operand_.type, data_ + row * stride_, k) * scale;
  }
  unsigned char& code(int row, int k) { return data_[row * stride_ + k]; }

 private:
  Operand operand_;
  std::int64_t rows_, k_;
  std::vector<unsigned char> memory_;
  unsigned char* data_;
  std::int64_t stride_;
  int sharers_;
  std::int64_t row_stride_, k_stride_;
  std::vector<float> scales_;
};

// Numbers of this type, or of FP32, with NaN between the rows.
struct Numbers {
  Numbers(DType type_, int rows_, int columns_, int padding)
      : type(type_), rows(rows_), columns(columns_), stride(columns + padding) {
    memory.assign(as_size(rows * stride * size_of(type)), 0xFF);
  }
  void fill(Random& random) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const float value = static_cast<float>(random() % 64) / 8 - 4;  // exact in all types
        const std::int64_t place = row * stride + column;
        if (type == DType::kFloat32) {
          std::memcpy(&memory[as_size(4 * place)], &value, 4);
        } else {
          const unsigned pair = type == DType::kFloat16 ? pack_pair<DType::kFloat16>(value, 0)
                                                        : pack_pair<DType::kBFloat16>(value, 0);
          std::memcpy(&memory[as_size(2 * place)], &pair, 2);
        }
      }
    }
  }
  double value(std::int64_t row, std::int64_t column) const {
    return value_of(type, memory.data(), row * stride + column);
  }
  MutableTensorView view() { return matrix(memory.data(), type, rows, columns, stride, kGpu); }

  DType type;
  std::int64_t rows, columns, stride;
  std::vector<unsigned char> memory;
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
    requires(kWork == config::Work::kDense)
      : GemmProduct({.sizes = {problem.m}, .room = problem.m, .n = problem.n, .k = problem.k},
                    problem, false) {
    if (problem.k > 200) a_.code(problem.m / 2, 200) = 0x7F;  // NaN: of one row, and no other
  }
  explicit GemmProduct(const Groups& given, bool in_place = false)
    requires(kWork != config::Work::kDense)
      : GemmProduct(given, {.padding = 0, .out_padding = 8}, in_place) {
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
      product.bias = vector<const void>(bias_.memory.data(), bias_.type, places_.b_rows, kGpu);
    }
    if (kForm.b_channel_scale) {
      product.b.channel_scale =
          vector<const void>(factors_.data(), DType::kFloat32, given_.n, kGpu);
    }
    if (!config::has_groups(kWork)) return product;
    product.groups = {.work = kWork,
                      .count = std::ssize(given_.sizes),
                      .numbers = places_.numbers.data(),
                      .layout = given_.layout};
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
          const double expected = sum_of(group, row, column, out_row, terms);
          const double actual = out_.value(out_row, column);
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(actual)) << out_row << ", " << column;
          } else {
            judge.see(actual, expected, terms);
          }
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
  GemmProduct(const Groups& given, GemmProblem problem, bool in_place)
      : given_(given),
        places_(kWork, given),
        problem_(of_depth(problem, places_.depth)),
        a_(kForm.a, places_.a_rows, problem_, problem.reversed, false, random_),
        b_(kForm.b, places_.b_rows, problem_, false, problem.one_row, random_),
        out_(kForm.out, places_.out_rows, given.n, problem.out_padding),
        c_(type_of(kForm.c, kForm.out), places_.out_rows, given.n, problem.out_padding + 8),
        bias_(type_of(kForm.bias, kForm.out), static_cast<int>(given.sizes.size()), given.n, 0),
        in_place_(in_place) {
    c_.fill(random_);
    bias_.fill(random_);
    for (int i = 0; i < given.n; ++i) {
      factors_.push_back(std::exp2f(static_cast<float>(random_() % 5)));
    }
    if (in_place) out_ = c_;
    before_ = out_;
  }
  static GemmProblem of_depth(GemmProblem problem, int depth) {
    problem.k = depth;
    return problem;
  }

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
    const double factor =
        kForm.b_channel_scale ? static_cast<double>(factors_[as_size(column)]) : 1;
    sum *= factor, terms *= factor;
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
  std::vector<float> factors_;
  bool in_place_;
};

}  // namespace octofold::test
