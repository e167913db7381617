// The rows that the slots of a token go to: some slots at a time, whose rows are loaded together.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/numeric/elements.h"

namespace octofold::routing {

// min(value, limit) as an int.
__device__ inline int at_most(long long value, int limit) {
  return value < limit ? static_cast<int>(value) : limit;
}

// The row that each of kSlots slots from `first` on goes to, and whether it goes anywhere.
template <int kSlots>
struct SlotRows {
  long long rows[kSlots];
  bool exist[kSlots];

  // `positions` are the token's `slots`; rows of y are [0, row_count).
  __device__ SlotRows(const int* positions, int slots, int first, long long row_count) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int row = first + i < slots ? positions[first + i] : -1;
      exist[i] = row >= 0 && row < row_count;
      rows[i] = exist[i] ? row : 0;
    }
  }
};

// Vectors of this thread among the columns of a row, from column `col` on: vector i of thread t is
// number i · kThreads + t.
template <int kThreads, int kVector>
struct ThreadColumns {
  long long first, cols;

  __device__ ThreadColumns(long long col, long long cols)
      : first(col + static_cast<long long>(threadIdx.x) * kVector), cols(cols) {}

  __device__ long long column(int i) const { return first + i * (kThreads * kVector); }
  // Elements of the vector that exist.
  __device__ int exist(int i) const { return at_most(cols - column(i), kVector); }
};

// The element type's vectors of a row.
template <DType kType, bool kInVectors, int kVectors, int kVector, typename Columns>
__device__ inline void load_row(const void* data, long long offset, const Columns& columns,
                                bool exists,
                                unsigned (&words)[kVectors][kVector * size_of(kType) / 4]) {
  using T = numeric::Storage<kType>;
  const T* row = static_cast<const T*>(data) + offset;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    numeric::load<T, kInVectors, kVector>(row + columns.column(i), exists ? columns.exist(i) : 0,
                                          words[i]);
  }
}

}  // namespace octofold::routing
