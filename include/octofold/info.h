// The capabilities of this machine, and the reasons why it has no more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octofold/export.h"

namespace octofold {

/// A part that may be missing. `detail` is its version or description if it is available, else the
/// reason why it is not.
struct Component {
  bool available = false;
  std::string detail;
};

/// Operations of one kind on a GPU: "casts", "norms", "rotary embeddings", "routing", "dot
/// products", "products with FP8 weights", "attention", "products", "grouped products", "gated
/// products", "products that cast A".
/// `support.detail` says why there are no kernels for them, and is empty if there are.
struct OperationInfo {
  std::string name;
  Component support;
};

struct GpuInfo {
  std::int32_t index = 0;
  std::string name;
  std::int32_t compute_major = 0;
  std::int32_t compute_minor = 0;
  std::int32_t multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  /// The backend that Octofold has for this GPU, or why it has none.
  Component backend;
  /// The operations, and whether there are kernels for them on this GPU.
  std::vector<OperationInfo> operations;
};

struct Info {
  std::string version;
  std::int32_t cpu_threads = 0;  ///< threads that one CPU operation may use
  Component cpu;     ///< the reference backend, and the vectors that its products are made with
  Component driver;  ///< libcuda
  Component nvrtc;   ///< the run-time compiler
  std::vector<GpuInfo> gpus;
};

/// Probes anew at each call. Never throws for a part that is missing: the result says so. Asking
/// the driver counts as using CUDA: processes forked later cannot use a GPU.
OCTOFOLD_API Info info();

}  // namespace octofold
