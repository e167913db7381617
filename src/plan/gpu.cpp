#include "plan/gpu.h"

#include <algorithm>

#include "core/check.h"
#include "core/format.h"

namespace octofold::plan {
namespace {

// KiB that a block of threads may have. Source: CUDA programming guide, "Technical Specifications
// per Compute Capability".
int shared_kilobytes(int compute_capability) {
  switch (compute_capability) {
    case 75: return 64;
    case 80:
    case 87: return 163;
    case 86:
    case 89:
    case 120:
    case 121: return 99;
    default: return 227;
  }
}

}  // namespace

Gpu gpu_of(int compute_capability, int multiprocessors) {
  return {.compute_major = compute_capability / 10,
          .compute_minor = compute_capability % 10,
          .multiprocessors = multiprocessors,
          .shared_memory_per_block = 1024 * shared_kilobytes(compute_capability)};
}

Gpu as_target(const Gpu& gpu, int compute_capability) {
  if (compute_capability == 0 || compute_capability == gpu.compute_capability()) return gpu;
  if (compute_capability > gpu.compute_capability()) {
    core::fail(ErrorCode::kInvalidArgument,
               "environment variable OCTOFOLD_TARGET: expected no later architecture than this "
               "GPU's, sm_{}, got sm_{}",
               gpu.compute_capability(), compute_capability);
  }
  Gpu target = gpu_of(compute_capability, gpu.multiprocessors);
  target.shared_memory_per_block =
      std::min(target.shared_memory_per_block, gpu.shared_memory_per_block);
  target.is_translated = true;
  return target;
}

std::string architecture(const Gpu& gpu) {
  if (gpu.is_translated) return core::format("compute_{}", gpu.compute_capability());
  return core::format("sm_{}{}", gpu.compute_capability(), gpu.compute_major == 9 ? "a" : "");
}

}  // namespace octofold::plan
