// Rows of x that are gathered: each is copied from where it lies.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/ptx/control.h"
#include "kernels/weight_only/shared_memory.h"

namespace octofold::weight_only {

// A matrix from a tile's first row and byte on; of `rows` rows as many bytes exist.
struct Source {
  const unsigned char* data;
  long long stride;  // bytes
  long long rows;
  long long bytes;
};

// True if row `row` of out comes from somewhere. Negative places are large.
template <WeightOnlyConfig kConfig>
__device__ inline bool row_exists(const WeightOnlyParams& params, long long row) {
  if constexpr (kConfig.gathered) {
    return static_cast<unsigned>(params.groups.sources[row]) < params.groups.places;
  }
  return true;
}

// The factor of sums of a row that comes from somewhere.
template <WeightOnlyConfig kConfig>
__device__ inline float factor_of_row(const WeightOnlyParams& params, long long row) {
  if constexpr (kConfig.gathered) {
    const config::WeightOnlyGroups& groups = params.groups;
    return groups.factors == nullptr ? 1 : groups.factors[groups.sources[row]];
  }
  return 1;
}

// Leaves in shared memory which rows of x those of a tile are; -1: none. The block has to meet
// before it copies them.
template <WeightOnlyConfig kConfig>
__device__ inline void store_places(const WeightOnlyParams& params, config::WeightOnlyTile tile,
                                    unsigned memory) {
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.places(); i += kConfig.threads()) {
    const long long row = tile.row + i;
    unsigned place = ~0u;
    if (row < tile.row_end && row_exists<kConfig>(params, row)) {
      place = params.groups.slots.quotient(static_cast<unsigned>(params.groups.sources[row]));
    }
    ptx::store_shared_word(memory + kConfig.places_offset() + 4 * i, place);
  }
}

// A thread's copies of gathered rows, as Units has those of others. `source` is all of x.
template <WeightOnlyConfig kConfig, int kRows, int kUnits>
class GatheredUnits {
  static constexpr int kThreads = kConfig.threads();
  static_assert(kThreads % kUnits == 0, "a thread has the same unit of all of its rows");
  static constexpr int kApart = kThreads / kUnits;

 public:
  static constexpr int kCount = (kRows + kApart - 1) / kApart;

  __device__ GatheredUnits(const Source&, int first_step)
      : at_(16 * (unit() + first_step * kUnits)) {}

  template <typename AddressOf>
  __device__ void begin(const Source& source, int, AddressOf&& address_of) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (kRows % kApart != 0 && row() + i * kApart >= kRows) {
        at_ += 16 * kUnits;
        return;
      }
      begin_one(source, i, address_of);
    }
  }

  // Always true: units that do not exist are as quick as others.
  __device__ bool is_whole(int) const { return true; }
  template <typename AddressOf>
  __device__ void begin_one(const Source& source, int i, AddressOf&& address_of) {
    const int of_row = row() + i * kApart;
    const unsigned place = ptx::load_shared_word(places() + 4 * of_row);
    const int bytes = static_cast<int>(min(source.bytes - at_, 16ll));
    const bool exists = place != ~0u && bytes > 0;
    const unsigned char* const from = source.data + (exists ? place * source.stride + at_ : 0);
    if constexpr (kConfig.vectors) {
      ptx::copy_async<16, true>(address_of(of_row, unit()), from, exists);
    } else {
      unsigned words[4];
      numeric::load<unsigned char, false, 16>(from, exists ? bytes : 0, words);
      ptx::store_shared_words(address_of(of_row, unit()), words);
    }
    if (i == kCount - 1) at_ += 16 * kUnits;
  }

 private:
  static __device__ int unit() { return static_cast<int>(threadIdx.x) % kUnits; }
  static __device__ int row() { return static_cast<int>(threadIdx.x) / kUnits; }
  static __device__ unsigned places() {
    return ptx::dynamic_shared_memory() + kConfig.places_offset();
  }

  int at_;  // byte of the row, in the next step
};

}  // namespace octofold::weight_only
