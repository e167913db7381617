#include "cuda/runtime.h"

#include <utility>

#include "core/check.h"
#include "cuda/kernel_headers.h"
#include "cuda/precompiled_kernels.h"
#include "jit/kernel_cache.h"
#include "jit/nvrtc.h"

namespace octofold::cuda {
namespace {

int count_devices(const Driver& driver) {
  int count = 0;
  driver.check(driver.device_get_count(&count), "cuDeviceGetCount");
  return count;
}

}  // namespace

Runtime::Runtime(const std::string& driver, KernelSource source)
    : driver_(driver),
      source_(std::move(source)),
      slots_(static_cast<std::size_t>(count_devices(driver_))) {
  jit::set_newest_cuda(driver_.cuda());
}

Device& Runtime::device(int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= slots_.size()) {
    core::fail(ErrorCode::kInvalidArgument, "cuda:{} does not exist: this machine shows {} GPU{}",
               index, slots_.size(), slots_.size() == 1 ? "" : "s");
  }
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  std::call_once(slot.once, [&] { slot.device.emplace(driver_, index, source_); });
  return *slot.device;
}

Device& device(int index) {
  Driver::require_usable_here();
  static Runtime& runtime =
      *new Runtime("libcuda.so.1", {.compile =
                                        [](const jit::Program& program) {
                                          return jit::compile_cached(program, kernel_headers());
                                        },
                                    .precompiled = precompiled_kernel});
  return runtime.device(index);
}

}  // namespace octofold::cuda
