// A block without a cluster: shared_memory.h beside this.
#pragma once

namespace octofold::ptx {

inline unsigned cluster_rank() { return 0; }
inline void cluster_wait() {}

// Of what multiplies, and is not run.
void barrier_sync(unsigned barrier, unsigned threads);
void barrier_arrive(unsigned barrier, unsigned threads);

}  // namespace octofold::ptx
