// Rotary embeddings. A thread has the same 16 bytes of both halves of a head, for two heads at a
// time, with what cos and sin have for them: eight vectors are on their way at one time, and each
// of x is read and written once. Neighbouring threads have neighbouring vectors, then neighbouring
// heads, then tokens.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/rotary/config/rotary.h"

namespace octofold {
namespace rotary_embedding {

using config::RotaryConfig;
using config::RotaryParams;
using config::RotaryTable;

template <RotaryConfig kConfig>
class Rotary {
  static constexpr DType kType = kConfig.type;
  static constexpr int kVector = kConfig.vector();
  static constexpr int kHeads = kConfig.kHeads;
  static constexpr int kWords = kVector * size_of(kType) / 4;
  using Number = numeric::Storage<kType>;

  // A vector of the first half, and what is rotated with it of the second.
  struct Pair {
    unsigned first[kWords];
    unsigned second[kWords];
  };

 public:
  __device__ Rotary(const RotaryParams& params, unsigned token)
      : params_(params), token_(token), batch_(token / params.tokens) {}

  __device__ void run() const {
    const int vectors = config::ceil_divide(params_.half, kVector);
    const int heads_apart = config::ceil_divide(params_.heads, kHeads);
    const int items = vectors * heads_apart;
    int item = static_cast<int>(threadIdx.x) % kConfig.threads_per_token;
    for (; item < items; item += kConfig.threads_per_token) {
      rotate(item % vectors * kVector, item / vectors, heads_apart);
    }
  }

 private:
  // Elements from `col` on of heads `head`, `head` + heads_apart, ...
  __device__ void rotate(int col, int head, int heads_apart) const {
    Pair x[kHeads];
    const Number* from = static_cast<const Number*>(params_.x) + batch_ * params_.x_batch_stride +
                         in_batch() * params_.x_token_stride;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int each = head + i * heads_apart;
      load(from + each * params_.x_head_stride, col, each < params_.heads, x[i]);
    }
    const Pair cos = row_of(params_.cos, col), sin = row_of(params_.sin, col);
    Number* to = static_cast<Number*>(params_.y) +
                 static_cast<long long>(token_) * params_.heads * 2 * params_.half;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int each = head + i * heads_apart;
      if (each >= params_.heads) continue;
      turn(x[i], cos, sin);
      Number* y = to + static_cast<long long>(each) * 2 * params_.half + col;
      numeric::store<Number, kConfig.vectors, kVector>(y, params_.half - col, x[i].first);
      numeric::store<Number, kConfig.vectors, kVector>(y + params_.half, params_.half - col,
                                                       x[i].second);
    }
  }

  __device__ long long in_batch() const { return token_ - batch_ * params_.tokens; }

  __device__ void load(const Number* row, int col, bool exists, Pair& pair) const {
    const int exist = exists ? params_.half - col : 0;
    numeric::load<Number, kConfig.vectors, kVector>(row + col, exist, pair.first);
    numeric::load<Number, kConfig.vectors, kVector>(row + params_.half + col, exist, pair.second);
  }

  __device__ Pair row_of(const RotaryTable& table, int col) const {
    Pair pair;
    load(static_cast<const Number*>(table.data) + batch_ * table.batch_stride +
             in_batch() * table.token_stride,
         col, true, pair);
    return pair;
  }

  // A vector's halves one by one, which keeps few FP32 values in registers.
  __device__ void turn(Pair& x, const Pair& cos, const Pair& sin) const {
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      constexpr int kCount = numeric::kPerWord<kType>;
      float first[kCount], second[kCount], cosines[2][kCount], sines[2][kCount];
      numeric::widen<kType>(x.first + word, first);
      numeric::widen<kType>(x.second + word, second);
      numeric::widen<kType>(cos.first + word, cosines[0]);
      numeric::widen<kType>(cos.second + word, cosines[1]);
      numeric::widen<kType>(sin.first + word, sines[0]);
      numeric::widen<kType>(sin.second + word, sines[1]);
      float turned[2][kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float down = params_.inverse ? sines[1][i] : -sines[0][i];
        const float up = params_.inverse ? -sines[0][i] : sines[1][i];
        turned[0][i] = __fadd_rn(__fmul_rn(first[i], cosines[0][i]), __fmul_rn(second[i], down));
        turned[1][i] = __fadd_rn(__fmul_rn(second[i], cosines[1][i]), __fmul_rn(first[i], up));
      }
      numeric::narrow<kType, false>(turned[0], x.first + word);
      numeric::narrow<kType, false>(turned[1], x.second + word);
    }
  }

  const RotaryParams& params_;
  unsigned token_;  // of all
  unsigned batch_;
};

}  // namespace rotary_embedding

template <config::RotaryConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    rotary_kernel(const __grid_constant__ config::RotaryParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  const unsigned token = static_cast<unsigned>(blockIdx.x) * kConfig.tokens_per_block() +
                         static_cast<unsigned>(threadIdx.x) / kConfig.threads_per_token;
  if (token < params.all_tokens) rotary_embedding::Rotary<kConfig>(params, token).run();
}

}  // namespace octofold
