// No tensor core: what multiplies is declared, and not run.
#pragma once

namespace octofold::ptx {

void wgmma_fence();
void wgmma_commit();
template <int kPending>
void wgmma_wait();
unsigned long long descriptor_of(unsigned low);
unsigned long long k_major_descriptor(unsigned address, int k);

}  // namespace octofold::ptx
