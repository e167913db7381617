// Barriers of a block and of its cluster that are waited for: all lanes of a warp together, as the
// aligned instructions have it.
#pragma once

#include <array>
#include <atomic>

#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/shared_memory.h"
#include "support/fibers.h"

namespace octofold::ptx {

inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}
template <int kRegisters>
void shrink_registers() {}
template <int kRegisters>
void grow_registers() {}

class NamedBarrier {
 public:
  void arrive(unsigned threads) {
    meeting_.change([&] {
      arrived_ += 32;
      if (arrived_ < threads) return;
      arrived_ = 0;
      ++rounds_;
    });
  }
  void arrive_and_wait(unsigned barrier, unsigned threads) {
    const unsigned long round = rounds_;  // it cannot end without this warp
    arrive(threads);
    meeting_.await([&] { return rounds_ != round; }, "named barrier", barrier);
  }
  void reset() { arrived_ = 0; }

 private:
  test::Meeting meeting_;
  unsigned arrived_ = 0;
  std::atomic<unsigned long> rounds_ = 0;
};
inline std::array<std::array<NamedBarrier, 16>, kMostBlocks> named_barriers;

inline void barrier_sync(unsigned barrier, unsigned threads) {
  self().warp->arrive_and_wait();
  if (threadIdx.x % 32 == 0) named_barriers[self().rank][barrier].arrive_and_wait(barrier, threads);
  self().warp->arrive_and_wait();
}
inline void barrier_arrive(unsigned barrier, unsigned threads) {
  self().warp->arrive_and_wait();
  if (threadIdx.x % 32 == 0) named_barriers[self().rank][barrier].arrive(threads);
}

inline void end_blocks() {
  for (auto& of_block : named_barriers) {
    for (NamedBarrier& barrier : of_block) barrier.reset();
  }
  mbarriers.clear();
}

inline bool elect_one() { return threadIdx.x % 32 == 0; }

inline unsigned cluster_rank() { return static_cast<unsigned>(self().rank); }
inline void cluster_arrive() { self().cluster_meeting = self().cluster->arrive(); }
inline void cluster_wait() { self().cluster->wait(self().cluster_meeting); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

}  // namespace octofold::ptx
