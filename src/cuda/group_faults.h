// The faults that checks of groups' numbers on a device found, and whose numbers those were.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "kernels/routing/config/group_check.h"

namespace octofold::cuda {

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

}  // namespace octofold::cuda
