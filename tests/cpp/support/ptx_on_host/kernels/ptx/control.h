// A block without a cluster: shared_memory.h beside this.
#pragma once

namespace octofold::ptx {

inline unsigned cluster_rank() { return 0; }

}  // namespace octofold::ptx
