// A kernel that is loaded and can be launched.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "octofold/stream.h"

#include "cuda/driver.h"
#include "jit/program.h"
#include "plan/gpu.h"
#include "plan/kernel_plan.h"

namespace octofold::cuda {

/// A kernel in a device's context. Loaded kernels stay for the life of the process.
class Kernel {
 public:
  /// Loads `binary`, the compiled kernel of the plan, into the context, which is to be current.
  /// `gpu`: as which it was planned and compiled.
  Kernel(const Driver& driver, ContextHandle context, const plan::Gpu& gpu,
         const plan::KernelPlan& plan, const jit::Binary& binary);

  /// Queues `blocks` blocks on a stream of the kernel's device. `params` is the struct that the
  /// kernel takes; it is copied. From compute capability 9.0 on it may begin before the kernel
  /// ahead of it in the stream has ended: kernels wait themselves before they first access global
  /// memory (griddepcontrol.wait).
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
  bool may_overlap_;  // with the kernel ahead of it
};

}  // namespace octofold::cuda
