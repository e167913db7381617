// A block without a cluster: shared_memory.h beside this.
#pragma once

namespace octofold::ptx {

inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}
inline unsigned cluster_rank() { return 0; }
inline void cluster_wait() {}

// Of what multiplies, and is not run.
void barrier_sync(unsigned barrier, unsigned threads);
void barrier_arrive(unsigned barrier, unsigned threads);

}  // namespace octofold::ptx
