// Rows on their way into shared memory while the threads that share one work on those before.
#pragma once

#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::cast {

// The ring of one group of threads: kStages rows, each of kMatrices matrices, at most kRowBytes (a
// multiple of 16) of each, one behind the other. One thread of the group, always the same, prepares
// it and loads rows in turn.
template <int kStages, int kMatrices, int kRowBytes>
class RowRing {
 public:
  static constexpr int kBytes = kStages * kMatrices * kRowBytes;

  // `rows` in shared memory are kBytes, `barriers` are kStages; both are this group's alone.
  __device__ RowRing(const uint4* rows, const unsigned long long* barriers)
      : rows_(ptx::shared_address(rows)), barriers_(ptx::shared_address(barriers)) {}

  // Before the first load; the other threads wait behind a barrier of the block.
  __device__ void prepare() const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(barriers_ + stage * sizeof(unsigned long long), 1);
    }
    ptx::fence_mbarrier_init();
  }

  // The row of `turn`, of `bytes` bytes. The row of `turn` - kStages, whose place it takes, has
  // been read by all threads: they have passed a barrier since.
  __device__ void load(unsigned turn, const void* const (&rows)[kMatrices], unsigned bytes) const {
    const unsigned barrier = full(turn);
    ptx::mbarrier_arrive_expect_bytes(barrier, kMatrices * bytes);
#pragma unroll
    for (int i = 0; i < kMatrices; ++i) ptx::copy_async(row(turn, i), rows[i], bytes, barrier);
  }

  // Until the row of `turn`, which was loaded, is there.
  __device__ void wait(unsigned turn) const { ptx::mbarrier_wait(full(turn), turn / kStages % 2); }

  // Where it is, of a matrix.
  __device__ unsigned row(unsigned turn, int matrix) const {
    return rows_ + (turn % kStages * kMatrices + matrix) * kRowBytes;
  }

 private:
  __device__ unsigned full(unsigned turn) const {
    return barriers_ + turn % kStages * static_cast<unsigned>(sizeof(unsigned long long));
  }

  unsigned rows_, barriers_;
};

}  // namespace octofold::cast
