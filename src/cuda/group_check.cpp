#include "cuda/group_check.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>

#include "core/check.h"
#include "core/options.h"
#include "cuda/context.h"
#include "cuda/device.h"
#include "kernels/shared/group_bounds.h"
#include "plan/routing.h"

namespace octofold::cuda {
namespace {

using config::GroupFault;

std::string expected_of(const GroupFault& fault) {
  if (!fault.ascends) return core::format("numbers from {} to {}", fault.low, fault.high);
  return core::format("offsets that begin at 0, never decrease and end at {} at most{}", fault.high,
                      fault.unit == 1 ? "" : core::format(", multiples of {}", fault.unit));
}

int at_most_int(std::int64_t number) {
  return static_cast<int>(std::min<std::int64_t>(number, std::numeric_limits<std::int32_t>::max()));
}

void launch(Device& device, const config::GroupCheckConfig& config,
            const config::GroupCheckParams& params, Stream stream) {
  if (params.count == 0) return;
  device.prepared(config, [&] { return plan::plan_group_check(config, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace

GroupFaults::GroupFaults(const Driver& driver, ContextHandle context, int device)
    : device_(device) {
  const ContextGuard current(driver, context);
  const RelaxedCapture relaxed(driver);
  void* memory = nullptr;
  driver.check(driver.mem_host_alloc(&memory, sizeof(GroupFault), kHostMemoryForDevices),
               "cuMemHostAlloc");
  fault_ = new (memory) GroupFault{};
  DeviceAddress address = 0;
  driver.check(driver.mem_host_get_device_pointer(&address, memory, 0),
               "cuMemHostGetDevicePointer");
  on_device_ = reinterpret_cast<GroupFault*>(address);
}

void GroupFaults::raise() {
  const std::lock_guard lock(mutex_);
  const std::atomic_ref state(fault_->state);
  if (state.load(std::memory_order_acquire) != GroupFault::kWhole) return;
  const GroupFault fault = *fault_;
  state.store(GroupFault::kNone, std::memory_order_release);
  const auto& [operation, argument] = arguments_.at(static_cast<std::size_t>(fault.argument));
  const std::string after =
      fault.ascends && fault.index > 0 ? core::format(" after {}", fault.before) : "";
  core::fail(ErrorCode::kInvalidArgument,
             "{}: argument '{}': expected {}, got {} at flat index {}{} (in an earlier call on "
             "cuda:{}, found by OCTOFOLD_CHECK_GROUPS)",
             operation, argument, expected_of(fault), fault.value, fault.index, after, device_);
}

int GroupFaults::number_of(std::string_view operation, std::string_view argument) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(arguments_, [&](const auto& names) {
    return names.first == operation && names.second == argument;
  });
  if (found != arguments_.end()) return static_cast<int>(found - arguments_.begin());
  arguments_.emplace_back(operation, argument);
  return static_cast<int>(std::ssize(arguments_)) - 1;
}

void check_offsets(Device& device, std::string_view operation, std::string_view argument,
                   const std::int32_t* numbers, std::int64_t count, std::int64_t most, int unit,
                   Stream stream) {
  if (!core::options().check_groups) return;
  look_through_offsets(device, operation, argument, numbers, count, most, unit, stream);
}

void look_through_offsets(Device& device, std::string_view operation, std::string_view argument,
                          const std::int32_t* numbers, std::int64_t count, std::int64_t most,
                          int unit, Stream stream) {
  GroupFaults& faults = device.group_faults();
  faults.raise();
  launch(device, {.ascends = true},
         {.numbers = numbers,
          .stride = 0,
          .cols = at_most_int(std::max<std::int64_t>(count, 1)),
          .count = at_most_int(count),
          .low = 0,
          .high = at_most_int(most),
          .unit = unit,
          .argument = faults.number_of(operation, argument),
          .fault = faults.on_device()},
         stream);
}

void check_range(Device& device, std::string_view operation, std::string_view argument,
                 const TensorView& numbers, std::int64_t low, std::int64_t high, Stream stream) {
  if (!core::options().check_groups) return;
  look_through_range(device, operation, argument, numbers, low, high, stream);
}

void look_through_range(Device& device, std::string_view operation, std::string_view argument,
                        const TensorView& numbers, std::int64_t low, std::int64_t high,
                        Stream stream) {
  GroupFaults& faults = device.group_faults();
  faults.raise();
  const std::int64_t cols = numbers.shape[numbers.rank - 1];
  launch(device, {},
         {.numbers = static_cast<const int*>(numbers.data),
          .stride = numbers.rank == 2 ? numbers.strides[0] : 0,
          .cols = at_most_int(std::max<std::int64_t>(cols, 1)),
          .count = at_most_int(numbers.element_count()),
          .low = static_cast<int>(low),
          .high = at_most_int(high),
          .argument = faults.number_of(operation, argument),
          .fault = faults.on_device()},
         stream);
}

void check_groups(Device& device, std::string_view operation, const core::Groups& groups,
                  Stream stream) {
  if (!config::has_groups(groups.work)) return;
  if (groups.work == config::Work::kMaskedRows) {
    const TensorView counts = vector(groups.numbers, DType::kInt32, groups.count);
    return check_range(device, operation, "counts", counts, 0, groups.max_rows, stream);
  }
  check_offsets(device, operation, "offsets", groups.numbers, groups.count + 1, groups.max_rows,
                config::offset_unit(groups.layout), stream);
}

}  // namespace octofold::cuda
