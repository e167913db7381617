// Memory on GPU 0, through the driver, which is opened at run time: benchmarks need no CUDA
// toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

namespace octofold::bench {

/// The few functions of libcuda that a benchmark needs, with GPU 0's primary context current.
class GpuDriver {
 public:
  /// Null where there is no GPU.
  static const GpuDriver* get() {
    static const GpuDriver driver;
    return driver.ready_ ? &driver : nullptr;
  }

  /// Bytes that are all 0, and stay until the process ends.
  void* zeros(std::size_t bytes) const {
    std::uint64_t address = 0;
    check(allocate_(&address, bytes), "cuMemAlloc");
    check(fill_(address, 0, bytes), "cuMemsetD8");
    return reinterpret_cast<void*>(address);
  }
  void synchronize() const { check(synchronize_(), "cuCtxSynchronize"); }

 private:
  GpuDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return;
    int (*init)(unsigned) = nullptr;
    int (*retain)(void** context, int device) = nullptr;
    int (*set_current)(void* context) = nullptr;
    find(library, "cuInit", init);
    find(library, "cuDevicePrimaryCtxRetain", retain);
    find(library, "cuCtxSetCurrent", set_current);
    find(library, "cuMemAlloc_v2", allocate_);
    find(library, "cuMemsetD8_v2", fill_);
    find(library, "cuCtxSynchronize", synchronize_);
    void* context = nullptr;
    // A CUdevice is the device's number.
    ready_ = init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0;
  }

  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libcuda has no ") + name);
  }

  static void check(int result, const char* what) {
    if (result != 0) throw std::runtime_error(what + (": CUDA error " + std::to_string(result)));
  }

  int (*allocate_)(std::uint64_t* address, std::size_t bytes) = nullptr;
  int (*fill_)(std::uint64_t address, unsigned char value, std::size_t bytes) = nullptr;
  int (*synchronize_)() = nullptr;
  bool ready_ = false;
};

}  // namespace octofold::bench
