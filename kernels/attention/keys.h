// Keys and values of a sequence and head in memory, and their way into shared memory.
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/rows.h"
#include "kernels/numeric/decode_pairs.h"
#include "kernels/ptx/global_memory.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::attention {

using config::AttentionForm;
using config::AttentionSide;
using config::KeyLayout;

inline constexpr int kKeysPerScale = 128;

// How many keys a sequence has; `begin`: the first of them among all of key_offsets.
template <KeyLayout kLayout>
__device__ inline int count_keys(const AttentionParams& params, int sequence, int& begin) {
  begin = 0;
  if constexpr (kLayout == KeyLayout::kPacked) {
    const Range keys = range_at(params.key_offsets, sequence, params.keys);
    begin = keys.begin;
    return keys.end - keys.begin;
  }
  if (params.key_counts == nullptr) return params.keys;
  return held_to(params.key_counts[sequence], 0, params.keys);
}

// The page that a key of a sequence is in: one that there is. 0 where there are no pages.
template <KeyLayout kLayout>
__device__ inline int page_of(const AttentionParams& params, int sequence, int key) {
  if constexpr (kLayout != KeyLayout::kPaged) return 0;
  const int* table = params.page_table + sequence * params.page_table_stride;
  return held_to(table[key >> params.page_shift], 0, params.pages - 1);
}

// Rows of one side: keys, or values.
template <KeyLayout kLayout>
class SideRows {
 public:
  __device__ SideRows(const AttentionParams& params, const AttentionSide& side, int sequence,
                      int first_key, int head)
      : data_(side.data + head * side.head_stride),
        scale_(side.scale + head * side.scale_head_stride),
        outer_stride_(side.outer_stride),
        key_stride_(side.key_stride),
        scale_outer_stride_(side.scale_outer_stride),
        scale_block_stride_(side.scale_block_stride),
        in_page_((1 << params.page_shift) - 1) {
    if constexpr (kLayout == KeyLayout::kDense) {
      data_ += sequence * side.outer_stride;
      scale_ += sequence * side.scale_outer_stride;
    } else if constexpr (kLayout == KeyLayout::kPacked) {
      data_ += first_key * side.key_stride;
      scale_ += (first_key / kKeysPerScale + sequence) * side.scale_block_stride;
    }
  }

  __device__ const unsigned char* row(int key, int page) const {
    if constexpr (kLayout == KeyLayout::kPaged) {
      return data_ + page * outer_stride_ + (key & in_page_) * key_stride_;
    }
    return data_ + key * key_stride_;
  }
  // The address of a key's scale, if scales differ between keys.
  __device__ const float* scale(int key, int page) const {
    if constexpr (kLayout == KeyLayout::kPaged) return scale_ + page * scale_outer_stride_;
    return scale_ + key / kKeysPerScale * scale_block_stride_;
  }

 private:
  const unsigned char* data_;
  const float* scale_;
  long long outer_stride_, key_stride_, scale_outer_stride_, scale_block_stride_;
  int in_page_;
};

// The factor of all numbers of a side: its scale, if all keys of a head share it, times the unit of
// decoded pairs.
template <DType kFp8, bool kScalesDiffer>
__device__ inline float factor_of(const AttentionSide& side, int head) {
  float factor = numeric::kPairUnit<kFp8>;
  if constexpr (!kScalesDiffer) {
    if (side.scale != nullptr) factor *= side.scale[head * side.scale_head_stride];
  }
  return factor;
}

// The factor of scores, without its sign: scores are compared before they are multiplied, so
// queries take the sign. Never 0; NaN stays.
struct ScoreFactor {
  float magnitude;
  bool flips;
};
template <config::AttentionForm kForm>
__device__ inline ScoreFactor score_factor(const AttentionParams& params, int key_head) {
  const float factor = factor_of<kForm.k, kForm.k_scales>(params.k, key_head) * params.scale;
  return {factor == 0 ? 1e-37f : fabsf(factor), factor < 0};
}

// Starts the copy of a unit of codes, or of zeros. One by one they arrive at once.
template <int kBytes>
__device__ inline void copy_codes(unsigned destination, const unsigned char* codes, bool exist) {
  if constexpr (kBytes == 1) {
    unsigned word = 0;
    if (exist) {
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= unsigned{codes[i]} << 8 * i;
    }
    ptx::store_shared_word(destination, word);
  } else {
    ptx::copy_async<kBytes, kBytes != 16>(destination, codes, exist);
  }
}

// The first `exist` of 16 codes into registers, with zeros behind them. They are a multiple of what
// is loaded at a time.
template <int kBytes>
__device__ inline void load_codes(const unsigned char* codes, int exist, unsigned (&words)[4]) {
  constexpr int kUnit = kBytes == 1 ? 4 : kBytes, kWords = kUnit / 4;
#pragma unroll
  for (int i = 0; i < 4; i += kWords) {
    unsigned unit[kWords] = {};
    if (4 * i < exist) {
      if constexpr (kBytes == 1) {
#pragma unroll
        for (int code = 0; code < 4; ++code) unit[0] |= unsigned{codes[4 * i + code]} << 8 * code;
      } else if constexpr (kBytes == 16) {
        // By way of L1: without it a latent's decode took 379 µs, and 285 with it (H200).
        ptx::load_cached(codes, unit);
      } else {
        ptx::load_global<kBytes>(codes + 4 * i, unit);
      }
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) words[i + word] = unit[word];
  }
}

}  // namespace octofold::attention
