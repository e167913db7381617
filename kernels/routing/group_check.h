// Looks for the first number of offsets, counts or ids that is none, by one block of threads, and
// leaves it where the host finds it, unless another is there already.
#pragma once

#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/routing/config/routing.h"

namespace octofold {
namespace routing {

using config::GroupCheckConfig;
using config::GroupCheckParams;
using config::GroupFault;

template <GroupCheckConfig kConfig>
class GroupCheck {
  static constexpr int kThreads = kConfig.threads();
  static constexpr unsigned kNone = 0xFFFFFFFFu;

 public:
  struct Shared {
    unsigned firsts[kThreads / 32];
  };

  __device__ GroupCheck(const GroupCheckParams& params, Shared& shared)
      : params_(params), shared_(shared) {}

  __device__ void run() {
    const unsigned count = static_cast<unsigned>(params_.count);
    unsigned first = kNone;
    for (unsigned i = 0; i < count; i += kThreads) {
      const unsigned at = i + threadIdx.x;
      if (first == kNone && at < count && is_wrong(at)) first = at;
    }
    first = numeric::min_of_lanes(first);
    if (threadIdx.x % 32 == 0) shared_.firsts[threadIdx.x / 32] = first;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (const unsigned of_warp : shared_.firsts) first = min(first, of_warp);
    if (first != kNone) report(first);
  }

 private:
  __device__ int number(unsigned at) const {
    const unsigned cols = static_cast<unsigned>(params_.cols), row = at / cols;
    return params_.numbers[row * params_.stride + (at - row * cols)];
  }

  __device__ int low(unsigned at) const {
    if constexpr (kConfig.ascends) return at == 0 ? 0 : number(at - 1);
    return params_.low;
  }

  __device__ bool is_wrong(unsigned at) const {
    const int value = number(at);
    if (kConfig.ascends && at == 0) return value != 0;
    return value < low(at) || value > params_.high || value % params_.unit != 0;
  }

  __device__ void report(unsigned at) const {
    GroupFault& fault = *params_.fault;
    if (atomicCAS(&fault.state, GroupFault::kNone, GroupFault::kBeingWritten) !=
        GroupFault::kNone) {
      return;
    }
    fault.argument = params_.argument;
    fault.ascends = kConfig.ascends;
    fault.index = at;
    fault.value = number(at);
    fault.before = low(at);
    fault.low = params_.low;
    fault.high = params_.high;
    fault.unit = params_.unit;
    __threadfence_system();
    *static_cast<volatile unsigned*>(&fault.state) = GroupFault::kWhole;
  }

  const GroupCheckParams& params_;
  Shared& shared_;
};

}  // namespace routing

template <config::GroupCheckConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    group_check_kernel(const __grid_constant__ config::GroupCheckParams params) {
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  __shared__ typename routing::GroupCheck<kConfig>::Shared shared;
  routing::GroupCheck<kConfig>(params, shared).run();
}

}  // namespace octofold
