#include "cuda/driver.h"

#include <atomic>
#include <pthread.h>

#include "core/check.h"

namespace octofold::cuda {
namespace {

constexpr int kOldestVersion = 12000;

std::string version_text(int version) {
  return core::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

// Looks functions up until one is missing.
class Lookup {
 public:
  explicit Lookup(const core::SharedObject& library) : library_(library) {}

  template <typename Function>
  void operator()(Function*& function, const char* symbol) {
    function = library_.find<Function>(symbol);
    if (function == nullptr && missing_ == nullptr) missing_ = symbol;
  }

  const char* missing() const { return missing_; }

 private:
  const core::SharedObject& library_;
  const char* missing_ = nullptr;
};

std::atomic<bool> forked_after_use = false;

// From now on, children of this process are told.
void watch_for_fork() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forked_after_use.store(true); });
  static_cast<void>(registered);
}

// The error code that a failed call has for its caller.
ErrorCode code_of(Result result) {
  switch (result) {
    case kInvalidValue: return ErrorCode::kInternal;
    case kLaunchOutOfResources: return ErrorCode::kUnsupported;
    default: return ErrorCode::kUnavailable;
  }
}

}  // namespace

Driver::Driver(const std::string& name) {
  require_usable_here();
  const core::SharedObject library(name);
  if (!library.is_open()) {
    core::fail(ErrorCode::kUnavailable, "no NVIDIA driver: {}", library.error());
  }
  Lookup find(library);
  find(init, "cuInit");
  find(driver_get_version, "cuDriverGetVersion");
  if (find.missing() != nullptr) {
    core::fail(ErrorCode::kUnavailable, "{} is not a CUDA driver: it lacks {}", name,
               find.missing());
  }
  find(get_error_name, "cuGetErrorName");
  find(get_error_string, "cuGetErrorString");
  check(driver_get_version(&version_), "cuDriverGetVersion");

  find(device_get_count, "cuDeviceGetCount");
  find(device_get, "cuDeviceGet");
  find(device_get_name, "cuDeviceGetName");
  find(device_total_mem, "cuDeviceTotalMem_v2");
  find(device_get_attribute, "cuDeviceGetAttribute");
  find(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  find(ctx_get_current, "cuCtxGetCurrent");
  find(ctx_push_current, "cuCtxPushCurrent_v2");
  find(ctx_pop_current, "cuCtxPopCurrent_v2");
  find(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(mem_alloc, "cuMemAlloc_v2");
  find(mem_free, "cuMemFree_v2");
  find(memset_d8, "cuMemsetD8_v2");
  find(memcpy, "cuMemcpy");
  find(mem_host_alloc, "cuMemHostAlloc");
  find(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2");
  find(stream_synchronize, "cuStreamSynchronize");
  find(stream_is_capturing, "cuStreamIsCapturing");
  find(event_create, "cuEventCreate");
  find(event_destroy, "cuEventDestroy_v2");
  find(event_record, "cuEventRecord");
  find(event_query, "cuEventQuery");
  find(event_elapsed_time, "cuEventElapsedTime");
  find(module_load_data, "cuModuleLoadData");
  find(module_get_function, "cuModuleGetFunction");
  find(func_set_attribute, "cuFuncSetAttribute");
  find(occupancy_max_active_clusters, "cuOccupancyMaxActiveClusters");
  find(launch_kernel_ex, "cuLaunchKernelEx");
  find(tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
  if (version_ < kOldestVersion || find.missing() != nullptr) {
    core::fail(ErrorCode::kUnavailable,
               "the NVIDIA driver is too old: expected one for {} or later, got {}{}{}",
               version_text(kOldestVersion), version(),
               find.missing() != nullptr ? ", which lacks " : "",
               find.missing() != nullptr ? find.missing() : "");
  }
  check(init(0), core::format("{} driver: cuInit", version()));
  watch_for_fork();
}

void Driver::require_usable_here() {
  if (!forked_after_use.load(std::memory_order_relaxed)) [[likely]]
    return;
  core::fail(ErrorCode::kUnavailable,
             "this process was forked from one that had used CUDA (octofold.info() counts as use), "
             "and CUDA's state does not survive a fork: fork first, or start processes by spawn");
}

std::string Driver::version() const { return version_text(version_); }

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name == nullptr || get_error_name(result, &name) != kSuccess || name == nullptr) {
    return core::format("CUDA error {}", result);
  }
  if (get_error_string == nullptr || get_error_string(result, &text) != kSuccess) return name;
  return core::format("{} ({})", name, text);
}

void Driver::fail(Result result, std::string_view what) const {
  core::fail(code_of(result), "{}: {}", what, describe(result));
}

}  // namespace octofold::cuda
