// Kernels: what one is made from, and one that is loaded and can be launched.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "octofold/stream.h"

#include "cuda/driver.h"
#include "jit/program.h"

namespace octofold::cuda {

/// A kernel to be compiled and loaded, and the shape in which it is always launched.
struct KernelSource {
  jit::Program program;
  unsigned threads = 0;       ///< of a block
  unsigned cluster_size = 1;  ///< blocks, along x
  unsigned shared_bytes = 0;  ///< of dynamic shared memory
};

/// A kernel in a device's context. Loaded kernels stay for the life of the process.
class Kernel {
 public:
  /// Loads `binary`, the compiled source.program, into the context, which is to be current.
  Kernel(const Driver& driver, ContextHandle context, const KernelSource& source,
         const jit::Binary& binary);

  /// Queues `blocks` blocks on a stream of the kernel's device. `params` is the struct that the
  /// kernel takes; it is copied. May begin before the kernel ahead of it in the stream has ended:
  /// kernels wait themselves before they first access global memory (griddepcontrol.wait).
  void launch(Stream stream, std::int64_t blocks, const void* params) const;

  /// Blocks that the device runs at one time, in whole clusters; of a kernel that has clusters.
  std::int64_t resident_blocks() const;

 private:
  LaunchConfig launch_config(std::int64_t blocks, Stream stream,
                             std::array<LaunchAttribute, 2>& attributes) const;
  [[noreturn]] void fail_launch(Result result, std::int64_t blocks) const;

  const Driver* driver_;
  ContextHandle context_;
  FunctionHandle function_ = nullptr;
  std::string description_;
  unsigned threads_, cluster_size_, shared_bytes_;
};

}  // namespace octofold::cuda
