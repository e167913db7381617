// Operands of FP8 products that run on the host, among NaN, and what FP64 makes of them.
#pragma once

#include "octofold/gemm_form.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

#include "core/product.h"
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

// A product in memory: a[M, K] · b[N, K]ᵀ and what is added.
template <GemmForm kForm>
class GemmProduct {
 public:
  explicit GemmProduct(const GemmProblem& problem)
      : m_(problem.m),
        n_(problem.n),
        k_(problem.k),
        a_(kForm.a, m_, problem, problem.reversed, false, random_),
        b_(kForm.b, n_, problem, false, problem.one_row, random_),
        out_(kForm.out, m_, n_, problem.out_padding),
        c_(type_of(kForm.c, kForm.out), m_, n_, problem.out_padding + 8),
        bias_(type_of(kForm.bias, kForm.out), 1, n_, 0) {
    c_.fill(random_);
    bias_.fill(random_);
    factors_.resize(as_size(n_));
    for (float& factor : factors_) factor = std::exp2f(static_cast<float>(random_() % 5));
    if (k_ > 200) a_.code(m_ / 2, 200) = 0x7F;  // NaN: of one row, and no other
  }

  core::Product product() {
    core::Product product{.a = a_.view(),
                          .b = b_.view(),
                          .out = out_.view(),
                          .fast_accumulation = kForm.fast_accumulation};
    if (kForm.c != Addend::kNone) product.c = c_.view();
    if (kForm.bias != Addend::kNone) {
      product.bias = vector<const void>(bias_.memory.data(), bias_.type, n_, kGpu);
    }
    if (kForm.b_channel_scale) {
      product.b.channel_scale = vector<const void>(factors_.data(), DType::kFloat32, n_, kGpu);
    }
    return product;
  }

  void expect_right() const {
    Judge judge(kForm.out);
    for (int row = 0; row < m_; ++row) {
      for (int column = 0; column < n_; ++column) {
        double terms;
        const double expected = sum_of(row, column, terms), actual = out_.value(row, column);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(actual)) << row << ", " << column;
        } else {
          judge.see(actual, expected, terms);
        }
      }
      for (std::int64_t i = n_ * size_of(kForm.out); i < out_.stride * size_of(kForm.out); ++i) {
        EXPECT_EQ(out_.memory[as_size(row * out_.stride * size_of(kForm.out) + i)], 0xFF)
            << "behind row " << row;
      }
    }
    EXPECT_EQ(judge.verdict(), "");
  }

  const std::vector<unsigned char>& out() const { return out_.memory; }
  const Numbers& numbers() const { return out_; }

 private:
  double sum_of(int row, int column, double& terms) const {
    double sum = terms = 0;
    for (int i = 0; i < k_; ++i) {
      const double product = a_.value(row, i) * b_.value(column, i);
      sum += product;
      terms += std::abs(product);
    }
    const double factor =
        kForm.b_channel_scale ? static_cast<double>(factors_[as_size(column)]) : 1;
    sum *= factor, terms *= factor;
    for (const auto& [kind, value] : {std::pair{kForm.c, c_.value(row, column)},
                                      std::pair{kForm.bias, bias_.value(0, column)}}) {
      if (kind == Addend::kNone) continue;
      sum += value;
      terms += std::abs(value);
    }
    return sum;
  }

  Random random_;
  int m_, n_, k_;
  Codes a_, b_;
  Numbers out_, c_, bias_;
  std::vector<float> factors_;
};

}  // namespace octofold::test
