// The properties of a GPU that a plan needs to know.
#pragma once

#include <string>

namespace octofold::plan {

struct Gpu {
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  ///< bytes, at most
  /// The GPU itself is a later one: the driver translates kernels for it.
  bool is_translated = false;

  /// 90 for 9.0.
  int compute_capability() const { return 10 * compute_major + compute_minor; }
};

/// The H200 and H100 (SXM): for plans made without a GPU.
inline constexpr Gpu kHopper{.compute_major = 9,
                             .compute_minor = 0,
                             .multiprocessors = 132,
                             .shared_memory_per_block = 227 * 1024};

/// One of this compute capability with the shared memory that those have: for plans made without a
/// GPU.
Gpu gpu_of(int compute_capability, int multiprocessors);

/// The GPU as one of a compute capability that it is beyond, 80 for 8.0: what is planned and
/// compiled for that one, and within the shared memory that those have, runs on it. 0: the GPU as
/// it is. Throws Error(kInvalidArgument) for a capability that is later than the GPU's.
Gpu as_target(const Gpu& gpu, int compute_capability);

/// The target that kernels for this GPU are compiled for: "sm_90a", or "compute_80", which stands
/// for PTX, where the driver translates them.
std::string architecture(const Gpu& gpu);

}  // namespace octofold::plan
