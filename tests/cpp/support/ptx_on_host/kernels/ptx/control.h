// A block without a cluster: shared_memory.h beside this.
#pragma once

namespace octofold::ptx {

inline void end_blocks() {}  // the next ones begin with barriers of their own
inline void let_next_kernel_start() {}
inline void wait_for_earlier_kernels() {}
inline unsigned cluster_rank() { return 0; }
inline void cluster_arrive() {}
inline void cluster_wait() {}
inline void cluster_sync() {}

// These are called by what multiplies and by a whole kernel, which is not run here.
template <int kRegisters>
void shrink_registers();
template <int kRegisters>
void grow_registers();
void barrier_sync(unsigned barrier, unsigned threads);
void barrier_arrive(unsigned barrier, unsigned threads);
bool elect_one();

}  // namespace octofold::ptx
