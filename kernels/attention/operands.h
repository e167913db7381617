// Operands of products that kernels of many rows have in shared memory: rows of 16-bit numbers, an
// odd multiple of 16 bytes long, so that eight rows have all banks.
#pragma once

#include "kernels/attention/output.h"
#include "kernels/attention/rows.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::attention {

// The thread's index. What follows from it is computed at each use, not kept in registers.
__device__ inline int opaque_thread() { return static_cast<int>(ptx::opaque(threadIdx.x)); }

// The block's queries, several at a time on their way.
template <auto kConfig>
__device__ inline void copy_queries(const AttentionParams& params, const Rows& rows,
                                    unsigned memory, bool flip) {
  constexpr int kPieces = kConfig.key_numbers() / 8, kAll = kConfig.rows() * kPieces, kBatch = 4;
  constexpr int kThreads = kConfig.threads();
#pragma unroll 1
  for (int first = opaque_thread(); first < kAll; first += kBatch * kThreads) {
    unsigned words[kBatch][4];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads, piece = index % kPieces;
      if (index >= kAll) break;
      load_query<kConfig.form.head_size>(params, rows, rows.first + index / kPieces, 8 * piece,
                                         flip, words[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kThreads;
      if (index >= kAll) break;
      ptx::store_shared_words(memory +
                                  static_cast<unsigned>(index / kPieces) * kConfig.key_row_bytes() +
                                  static_cast<unsigned>(16 * (index % kPieces)),
                              words[i]);
    }
  }
}

// The address that this lane gives for four matrices of 8 rows of 8 numbers: rows first, then
// numbers, or the other way round.
template <unsigned kRowBytes>
__device__ inline unsigned row_first(unsigned tile) {
  const unsigned lane = threadIdx.x % 32;
  return tile + lane % 16 * kRowBytes + lane / 16 * 16;
}
template <unsigned kRowBytes>
__device__ inline unsigned number_first(unsigned tile) {
  const unsigned lane = threadIdx.x % 32;
  return tile + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16;
}

}  // namespace octofold::attention
