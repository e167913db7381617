// The arithmetic of norms, and the vectors that a norm applies to rows, a vector of 16 bytes of x's
// type at a time.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/access.h"
#include "kernels/cast/config/norm_form.h"
#include "kernels/numeric/vector.h"

namespace octofold::cast {

using config::NormForm;
using config::NormOperand;

// FP32, each operation rounded by itself, so that every kernel, the CPU backend and whoever repeats
// it get the same bits from the same statistics.
template <NormKind kKind>
__device__ inline float normalized(float x, float mean, float rstd) {
  if constexpr (kKind == NormKind::kLayer) x = __fadd_rn(x, -mean);
  return __fmul_rn(x, rstd);
}

// y · (1 + scale).
__device__ inline float modulated(float y, float scale) {
  return __fmul_rn(y, __fadd_rn(1.0f, scale));
}

// From the mean of squares.
__device__ inline float reciprocal_deviation(float variance, float epsilon) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(variance, epsilon)));
}

// The mean of `count` numbers, 0 if there are none.
__device__ inline float mean_of(float sum, long long count) {
  return __fdiv_rn(sum, static_cast<float>(count < 1 ? 1 : count));
}

template <NormOperand kOperand, DType kIn>
inline constexpr DType kTypeOf = kOperand == NormOperand::kFloat32 ? DType::kFloat32 : kIn;

// Elements of one operand, as many as a vector of kIn has, from `data` on; packed, and in memory
// that is read by other rows too.
template <NormOperand kOperand, DType kIn, bool kVectors>
class OperandVector {
  static constexpr DType kType = kTypeOf<kOperand, kIn>;
  static constexpr int kCount = 16 / size_of(kIn);
  static constexpr int kQuads = kCount * size_of(kType) / 16;

 public:
  static constexpr bool kExists = kOperand != NormOperand::kNone;

  __device__ void load(const void* data, long long offset, int exist) {
    if constexpr (kExists) {
      const Storage<kType>* elements = static_cast<const Storage<kType>*>(data) + offset;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        if constexpr (kVectors) {
          if (exist > 0) ptx::load_cached(elements + i * (16 / size_of(kType)), words_[i]);
        } else {
          cast::load<Storage<kType>, false, 16 / size_of(kType)>(
              elements + i * (16 / size_of(kType)), exist - i * (16 / size_of(kType)), words_[i]);
        }
      }
    }
  }

  __device__ void widen(float (&values)[kCount]) const {
    if constexpr (kExists) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        constexpr int kEach = kCount / kQuads;
        float part[kEach];
        numeric::widen<kType>(words_[i], part);
#pragma unroll
        for (int j = 0; j < kEach; ++j) values[i * kEach + j] = part[j];
      }
    }
  }

 private:
  unsigned words_[kQuads][4];
};

// All of them, at some columns of a row.
template <NormForm kForm, DType kIn, bool kVectors>
struct NormVectors {
  static constexpr int kCount = 16 / size_of(kIn);

  OperandVector<kForm.weight, kIn, kVectors> weight;
  OperandVector<kForm.bias, kIn, kVectors> bias;
  OperandVector<kForm.scale, kIn, kVectors> scale;
  OperandVector<kForm.shift, kIn, kVectors> shift;

  __device__ void load(const config::NormOperands& operands, long long row, long long col,
                       int exist) {
    weight.load(operands.weight, col, exist);
    bias.load(operands.bias, col, exist);
    if constexpr (kForm.modulates()) {
      // Both fit into 32 bits, of which a quotient takes far fewer instructions.
      const unsigned batch =
          static_cast<unsigned>(row) / static_cast<unsigned>(operands.rows_per_batch);
      scale.load(operands.scale, batch * operands.scale_stride + col, exist);
      shift.load(operands.shift, batch * operands.shift_stride + col, exist);
    }
  }

  // From x to y.
  __device__ void apply(float mean, float rstd, float (&values)[kCount]) const {
#pragma unroll
    for (float& value : values) value = normalized<kForm.kind>(value, mean, rstd);
    float operand[kCount];
    if constexpr (kForm.weight != NormOperand::kNone) {
      weight.widen(operand);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], operand[i]);
    }
    if constexpr (kForm.bias != NormOperand::kNone) {
      bias.widen(operand);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fadd_rn(values[i], operand[i]);
    }
    if constexpr (kForm.scale != NormOperand::kNone) {
      scale.widen(operand);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = modulated(values[i], operand[i]);
    }
    if constexpr (kForm.shift != NormOperand::kNone) {
      shift.widen(operand);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fadd_rn(values[i], operand[i]);
    }
  }
};

// A vector of x, as it was read, becomes y in the same type. What does not exist is 0.
template <NormForm kForm, DType kIn, bool kVectors>
__device__ inline void normalize(const NormVectors<kForm, kIn, kVectors>& operands, float mean,
                                 float rstd, int exist, unsigned (&words)[4]) {
  constexpr int kCount = 16 / size_of(kIn);
  if (kVectors && exist <= 0) return;  // 0 as it is
  float values[kCount];
  numeric::widen<kIn>(words, values);
  operands.apply(mean, rstd, values);
  if constexpr (!kVectors) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = i < exist ? values[i] : 0;
  }
  numeric::narrow<kIn, false>(values, words);
}

}  // namespace octofold::cast
