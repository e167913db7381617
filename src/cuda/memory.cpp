#include "core/format.h"
#include "cuda/backend.h"
#include "cuda/context.h"

namespace octofold::cuda {
namespace {

DeviceAddress address_of(const void* memory) { return reinterpret_cast<DeviceAddress>(memory); }

// Waits for the legacy default stream, where the calls below put their work.
void synchronize(const Driver& driver) {
  driver.check(driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace

void* allocate(const Device& device, std::size_t bytes) {
  const Driver& driver = device.driver();
  const ContextGuard current(driver, device.context());
  DeviceAddress memory = 0;
  driver.check(driver.mem_alloc(&memory, bytes),
               core::format("cuda:{}: {} bytes: cuMemAlloc", device.index(), bytes));
  void* const result = reinterpret_cast<void*>(memory);
  try {
    driver.check(driver.memset_d8(memory, 0, bytes), "cuMemsetD8");
    synchronize(driver);
  } catch (...) {
    release(device, result);
    throw;
  }
  return result;
}

void release(const Device& device, void* memory) noexcept try {
  const ContextGuard current(device.driver(), device.context());
  device.driver().mem_free(address_of(memory));
} catch (...) {  // the driver has shut down, and the memory is gone with it
}

void copy(const Device& device, void* to, const void* from, std::size_t bytes) {
  const Driver& driver = device.driver();
  const ContextGuard current(driver, device.context());
  driver.check(driver.memcpy(address_of(to), address_of(from), bytes), "cuMemcpy");
  synchronize(driver);
}

}  // namespace octofold::cuda
