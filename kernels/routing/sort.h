// The order of rows that lies expert by expert, and within an expert by flat slot. Slots are
// counted, the experts' rows come one after another, and each slot takes the next one of its
// expert's. Spans of 2048 slots or more go to at most 128 blocks of threads, parts of a span to
// warps, 32 slots at a time to lanes, all in order. So a slot's row is the number of slots before
// it that go to its expert or to one before that, whoever comes first.
//
// The first kernel leaves a histogram of each span. In the second, each block adds up all of these,
// sums over experts by a scan, counts its span once more by warps, and places its slots by
// `match.any`. Counting uses atomics in shared memory, on integers, whose order does not matter.
// Where one span holds all slots, the second kernel is alone.
#pragma once

#include "kernels/ptx/control.h"
#include "kernels/routing/config/params.h"
#include "kernels/routing/config/routing.h"
#include "kernels/shared/arithmetic.h"

namespace octofold {
namespace routing {

using config::SlotCountConfig;
using config::SlotPlaceConfig;
using config::SortParams;

// This warp's part of the block's span, and how often each expert comes in it.
template <SlotCountConfig kConfig>
class WarpSlots {
 public:
  static constexpr int kExperts = kConfig.experts;
  static constexpr int kWarps = kConfig.warps();
  static constexpr int kThreads = kConfig.threads();

  struct Shared {
    int counts[kWarps * kExperts];
  };

  __device__ WarpSlots(const SortParams& params, Shared& shared)
      : params_(params),
        counts_(shared.counts),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32) {
    const int warp = thread_ / 32;
    const int first = static_cast<int>(blockIdx.x) * params.span;
    const int size = min(params.slots - first, params.span);
    each_ = 32 * config::ceil_divide(size, 32 * kWarps);
    const int begin = min(warp * each_, size);
    first_ = static_cast<unsigned>(first + begin);
    size_ = min(size - begin, each_);
    own_ = counts_ + warp * kExperts;
  }

  // Returns once all warps have counted.
  __device__ void count() {
    for (int i = thread_; i < kWarps * kExperts; i += kThreads) counts_[i] = 0;
    __syncthreads();
    for (int i = lane_; i < each_; i += 32) {
      const int id = i < size_ ? id_at(first_ + static_cast<unsigned>(i)) : -1;
      if (id >= 0) atomicAdd(&own_[id], 1);
    }
    __syncthreads();
  }

  // The slots of an expert, counted by all warps.
  __device__ int count_of(int expert) const {
    int count = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) count += counts_[warp * kExperts + expert];
    return count;
  }

  // From counts to what is before them: each warp's come behind those of the warps before it, and
  // `before` of other blocks.
  __device__ void add_up(int expert, int before) {
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      int& count = counts_[warp * kExperts + expert];
      const int begin = before;
      before += count;
      count = begin;
    }
  }

  // After add_up() of all experts: body(slot, row) for each slot of this lane, with its row among
  // all of its expert's behind begins[expert]; -1 where it goes nowhere.
  template <typename Body>
  __device__ void place(const int* begins, Body&& body) {
    const unsigned lanes_before = (1u << lane_) - 1;
    for (int i = 0; i < each_; i += 32) {
      const bool exists = i + lane_ < size_;
      const unsigned slot = first_ + static_cast<unsigned>(i + lane_);
      const int id = exists ? id_at(slot) : -1;
      const unsigned alike = __match_any_sync(0xFFFFFFFFu, id);
      int row = -1;
      if (id >= 0) row = begins[id] + own_[id] + __popc(alike & lanes_before);
      __syncwarp();
      const bool is_last = alike >> lane_ == 1;
      if (id >= 0 && is_last) own_[id] += __popc(alike);
      __syncwarp();
      if (exists) body(slot, row);
    }
  }

 private:
  // -1 for whatever is no expert.
  __device__ int id_at(unsigned slot) const {
    const unsigned each = static_cast<unsigned>(params_.slots_per_token);
    const unsigned token = slot / each;
    const int id = params_.ids[token * params_.ids_stride + (slot - token * each)];
    return static_cast<unsigned>(id) < static_cast<unsigned>(params_.experts) ? id : -1;
  }

  const SortParams& params_;
  int* counts_;
  int* own_;
  int thread_, lane_;
  unsigned first_;
  int size_;  // slots of this warp
  int each_;  // of each, rounded up: all warps go round as often
};

template <SlotPlaceConfig kConfig>
class SlotPlaces {
  using Slots = WarpSlots<kConfig.count>;
  static constexpr int kThreads = Slots::kThreads;
  static constexpr int kEach = Slots::kExperts / kThreads;  // experts of a thread

 public:
  struct Shared {
    typename Slots::Shared slots;
    int begins[Slots::kExperts];  // rows of each expert, then the first of them
    int of_warps[Slots::kWarps];
    int rows;
  };

  __device__ SlotPlaces(const SortParams& params, Shared& shared)
      : params_(params),
        shared_(shared),
        slots_(params, shared.slots),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void run() {
    slots_.count();
    for (int expert = thread_; expert < Slots::kExperts; expert += kThreads) count_rows(expert);
    __syncthreads();
    find_begins();
    if (blockIdx.x == 0) {
      for (int i = thread_; i <= params_.experts; i += kThreads) {
        params_.offsets[i] = i < params_.experts ? shared_.begins[i] : shared_.rows;
      }
    }
    slots_.place(shared_.begins, [&](unsigned slot, int row) {
      params_.positions[slot] = row;
      if (row >= 0) params_.sources[row] = static_cast<int>(slot);
    });
    const unsigned threads = gridDim.x * kThreads;
    for (unsigned row = static_cast<unsigned>(shared_.rows) + blockIdx.x * kThreads + threadIdx.x;
         row < static_cast<unsigned>(params_.slots); row += threads) {
      params_.sources[row] = -1;
    }
  }

 private:
  // Counts the rows of an expert, in all blocks, and in those before this one.
  __device__ void count_rows(int expert) {
    int before = 0, rows = 0;
    if constexpr (kConfig.alone) {
      rows = slots_.count_of(expert);
    } else if (expert < params_.experts) {
      const int block = static_cast<int>(blockIdx.x);
      const int* histogram = params_.histogram + expert;
#pragma unroll 16
      for (int span = 0; span < params_.spans; ++span) {
        const int count = histogram[span * params_.experts];
        rows += count;
        before += span < block ? count : 0;
      }
    }
    slots_.add_up(expert, before);
    shared_.begins[expert] = rows;
  }

  // The rows of all experts before each.
  __device__ void find_begins() {
    int* own = shared_.begins + thread_ * kEach;
    int rows = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) rows += own[i];
    int begin = sum_of_threads_before(rows);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int count = own[i];
      own[i] = begin;
      begin += count;
    }
    if (thread_ == kThreads - 1) shared_.rows = begin;
    __syncthreads();
  }

  __device__ int sum_of_threads_before(int value) {
    const int lane = thread_ % 32, warp = thread_ / 32;
    int sum = value;  // of this lane and those before it
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane == 31) shared_.of_warps[warp] = sum;
    __syncthreads();
    int before = sum - value;
#pragma unroll
    for (int i = 0; i < Slots::kWarps; ++i) before += i < warp ? shared_.of_warps[i] : 0;
    return before;
  }

  const SortParams& params_;
  Shared& shared_;
  Slots slots_;
  int thread_;
};

}  // namespace routing

template <config::SlotCountConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    count_slots_kernel(const __grid_constant__ config::SortParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  using Slots = routing::WarpSlots<kConfig>;
  __shared__ typename Slots::Shared shared;
  Slots slots(params, shared);
  slots.count();
  int* histogram = params.histogram + static_cast<long long>(blockIdx.x) * params.experts;
  for (int expert = static_cast<int>(threadIdx.x); expert < params.experts;
       expert += kConfig.threads()) {
    histogram[expert] = slots.count_of(expert);
  }
}

template <config::SlotPlaceConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    place_slots_kernel(const __grid_constant__ config::SortParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename routing::SlotPlaces<kConfig>::Shared shared;
  routing::SlotPlaces<kConfig>(params, shared).run();
}

}  // namespace octofold
