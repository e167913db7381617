// 64 rows of queries in shared memory, as a product of a warpgroup reads them: float16. Those of
// bfloat16 are divided by a power of two of their row, so that float16 holds them: what is 2^-39 of
// the row's largest number, or less, is lost. For FP8 scores they are e4m3 codes instead, of a
// scale of each row, in one panel.
#pragma once

#include "kernels/attention/output.h"
#include "kernels/attention/warpgroup_memory.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"

namespace octofold::attention {

template <WarpgroupQueriesConfig kConfig>
class WarpgroupQueryTile {
  static constexpr DType kType = kConfig.form.q;
  static constexpr int kHeadSize = kConfig.form.head_size;
  static constexpr int kThreads = 128;
  // Two threads to a row, neighbours, with every other piece of 16 bytes.
  static constexpr int kPieces = kConfig.key_numbers() / 8 / 2;

 public:
  __device__ WarpgroupQueryTile(const AttentionParams& params,
                                const WarpgroupMemory<kConfig>& memory, int warpgroup)
      : params_(params), memory_(memory), warpgroup_(warpgroup) {}

  // Starts the copies of rows from `first` on, once no warp reads those that are there.
  __device__ void copy(const Rows& rows, int first) const {
    sync();
    const int row = first + own_row();
    if (!params_.q_vectors) {
#pragma unroll 1
      for (int i = 0; i < kPieces; ++i) {
        unsigned words[4];
        load_query<kHeadSize>(params_, rows, row, 8 * own_piece(i), false, words);
        ptx::store_shared_words(address(i), words);
      }
      return;
    }
    const bool exists = row < rows.end;
    const unsigned short* const numbers =
        row_of_queries(params_, rows, exists ? row : rows.first) + 8 * own_piece(0);
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      const bool are_there = 16 * (i + 1) <= kHeadSize || 8 * own_piece(i) < kHeadSize;
      ptx::copy_async<16, false>(address(i), numbers + (are_there ? 16 * i : 0),
                                 exists && are_there);
    }
    ptx::copies_commit();
  }

  // Until they are there for all warps. `flip` changes all signs.
  __device__ void await(bool flip) const {
    ptx::copies_wait<0>();
    const unsigned signs = flip ? 0x80008000u : 0u;
    if constexpr (kConfig.fp8_scores) {
      encode(signs);
    } else if constexpr (kType == DType::kBFloat16) {
      divide(signs);
    } else if (flip) {
      for_each_piece([&](unsigned (&words)[4]) {
        for (unsigned& word : words) word ^= signs;
      });
    }
    ptx::fence_proxy_async();
    sync();
  }

  // The divisor of a row of the tile.
  __device__ float unit(int row) const {
    if constexpr (!kConfig.fp8_scores && kType != DType::kBFloat16) return 1;
    return ptx::load_shared(memory_.query_units(warpgroup_) + static_cast<unsigned>(4 * row));
  }

 private:
  // NaN stays, and infinity becomes NaN. The CPU backend's round_to_codes() does the same.
  __device__ void encode(unsigned signs) const {
    constexpr int kUnits = 2 * kConfig.key_steps();  // of 16 codes, half of which the thread has
    const unsigned bits = largest_of_row();
    const float largest = __uint_as_float(bits);
    const float code = __uint_as_float(config::fp8_query_code(bits));
    const float inverse = __fdiv_rn(code, largest);
    store_unit(__float_as_uint(__fdiv_rn(largest, code)));
    unsigned codes[kUnits][2] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      unsigned words[4];
      ptx::load_shared_words(address(i), words);
      float numbers[8];
#pragma unroll
      for (unsigned& word : words) word ^= signs;
      numeric::widen<kType>(words, numbers);
#pragma unroll
      for (float& number : numbers) number = __fmul_rn(number, inverse);
      numeric::narrow<DType::kE4M3, true>(numbers, codes[i]);
    }
    __syncwarp();  // the codes go where numbers of the row are, of both threads
    const unsigned panel = memory_.queries(warpgroup_) + threadIdx.x % 2 * 8;
    const auto row = static_cast<unsigned>(own_row());
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      ptx::store_shared_words(panel + swizzled(row, static_cast<unsigned>(i)), codes[i]);
    }
  }

  // The largest number of the row becomes 2^14 to 2^15.
  __device__ void divide(unsigned signs) const {
    // Both are bits of FP32: 2^14 over the power of two, and the power over 2^14.
    constexpr unsigned kOne = 127, kTop = 14;
    const unsigned exponent = largest_of_row() >> 23;
    const float inverse = __uint_as_float((2 * kOne + kTop - exponent) << 23);
    store_unit((exponent - kTop) << 23);
    for_each_piece([&](unsigned (&words)[4]) {
      for (unsigned& word : words) {
        float pair[2];
        numeric::widen<kType>(&word, pair);
        pair[0] = __fmul_rn(pair[0], inverse);
        pair[1] = __fmul_rn(pair[1], inverse);
        numeric::narrow<DType::kFloat16, false>(pair, &word);
        word ^= signs;
      }
    });
  }

  // The largest magnitude as bits of FP32, which are of two threads' numbers. What is below 2^-100
  // has few bits.
  __device__ unsigned largest_of_row() const {
    unsigned largest = 0;
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      unsigned words[4];
      ptx::load_shared_words(address(i), words);
#pragma unroll
      for (const unsigned word : words) {
        largest = numeric::larger<kType>(largest, numeric::magnitude<kType>(word));
      }
    }
    largest = numeric::larger<kType>(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    constexpr unsigned kLeast = (127 - 100) << 23;
    return max(__float_as_uint(numeric::largest<kType>(largest)), kLeast);
  }

  __device__ void store_unit(unsigned bits) const {
    if (threadIdx.x % 2 != 0) return;
    ptx::store_shared_word(memory_.query_units(warpgroup_) + static_cast<unsigned>(4 * own_row()),
                           bits);
  }

  template <typename Change>
  __device__ void for_each_piece(Change&& change) const {
#pragma unroll 4
    for (int i = 0; i < kPieces; ++i) {
      unsigned words[4];
      ptx::load_shared_words(address(i), words);
      change(words);
      ptx::store_shared_words(address(i), words);
    }
  }

  static __device__ int own_row() { return static_cast<int>(threadIdx.x % kThreads / 2); }
  static __device__ int own_piece(int i) { return 2 * i + static_cast<int>(threadIdx.x % 2); }
  __device__ unsigned address(int i) const {
    const auto unit = static_cast<unsigned>(own_piece(i));
    return memory_.queries(warpgroup_) + unit / 8 * kConfig.query_panel_bytes() +
           swizzled(static_cast<unsigned>(own_row()), unit % 8);
  }
  __device__ void sync() const {
    ptx::barrier_sync(1 + static_cast<unsigned>(warpgroup_), kThreads);
  }

  const AttentionParams& params_;
  const WarpgroupMemory<kConfig>& memory_;
  const int warpgroup_;
};

}  // namespace octofold::attention
