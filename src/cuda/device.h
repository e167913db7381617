// A GPU as the backend uses it: what the planner wants to know, and its kernels.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/driver.h"
#include "cuda/kernel.h"
#include "plan/gpu.h"

namespace octofold::cuda {

using Compile = std::function<jit::Binary(const jit::Program&)>;

/// Safe to use from several threads.
class Device {
 public:
  /// Retains the device's primary context, for good: it is the one that torch and the CUDA runtime
  /// use too.
  Device(const Driver& driver, int index, Compile compile);

  int index() const { return index_; }
  const plan::Gpu& gpu() const { return gpu_; }
  const Driver& driver() const { return driver_; }
  ContextHandle context() const { return context_; }

  /// The kernel of this source, told from others by source.program.kernel: compiled and loaded at
  /// the first call, by one of the threads that ask while the others wait. The reference stays
  /// valid. Throws Error that names source.program.description.
  const Kernel& kernel(const KernelSource& source);

 private:
  struct Slot {
    std::mutex mutex;
    std::optional<Kernel> kernel;
  };

  void require_resources(const KernelSource& source) const;

  const Driver& driver_;
  int index_;
  Compile compile_;
  plan::Gpu gpu_;
  ContextHandle context_ = nullptr;

  std::mutex mutex_;  // of the map, not of its slots
  std::map<std::string, Slot, std::less<>> kernels_;
};

}  // namespace octofold::cuda
