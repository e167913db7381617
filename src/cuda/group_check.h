// OCTOFOLD_CHECK_GROUPS=1: offsets, counts and ids are looked through on the GPU before they are
// used, and the next call says what was wrong.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/product.h"
#include "cuda/driver.h"
#include "kernels/routing/config/routing.h"

namespace octofold::cuda {

class Device;

/// The faults that checks on a device found, and whose numbers those were.
///
/// Safe to use from several threads. Its memory stays for the life of the process, as kernels of
/// graphs may write it at any time.
class GroupFaults {
 public:
  /// Allocates memory of the host that the device writes; the context need not be current.
  GroupFaults(const Driver& driver, ContextHandle context, int device);

  /// Throws Error(kInvalidArgument) that tells what a check has found since the last call, if it
  /// has. Does not wait for the device.
  void raise();

  /// Tells arguments of operations apart, and has a place for their faults.
  int number_of(std::string_view operation, std::string_view argument);
  config::GroupFault* on_device() const { return on_device_; }

 private:
  int device_;
  config::GroupFault* fault_ = nullptr;
  config::GroupFault* on_device_ = nullptr;  ///< the same memory, by the device's address

  std::mutex mutex_;
  std::vector<std::pair<std::string, std::string>> arguments_;
};

/// Does what look_through_offsets() does if the option is set; else nothing. `numbers` are `count`
/// offsets, which have to begin at 0, never to decrease, to end at `most` at most, and to be
/// multiples of `unit`.
void check_offsets(Device& device, std::string_view operation, std::string_view argument,
                   const std::int32_t* numbers, std::int64_t count, std::int64_t most, int unit,
                   Stream stream);
/// Throws Error(kInvalidArgument) that names the first bad entry that an earlier check on this
/// device has found, if one has, and else queues a kernel that looks for one here. Does not wait.
void look_through_offsets(Device& device, std::string_view operation, std::string_view argument,
                          const std::int32_t* numbers, std::int64_t count, std::int64_t most,
                          int unit, Stream stream);

/// The offsets or counts of a product, if it has groups.
void check_groups(Device& device, std::string_view operation, const core::Groups& groups,
                  Stream stream);

/// The same of a vector or matrix of counts, ids or positions, which have to be from `low` to
/// `high`.
void check_range(Device& device, std::string_view operation, std::string_view argument,
                 const TensorView& numbers, std::int64_t low, std::int64_t high, Stream stream);
void look_through_range(Device& device, std::string_view operation, std::string_view argument,
                        const TensorView& numbers, std::int64_t low, std::int64_t high,
                        Stream stream);

}  // namespace octofold::cuda
