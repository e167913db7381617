// The part of the CUDA driver API that Octofold uses, opened at run time: no toolkit is needed to
// build or to run. Types and values as in the "CUDA Driver API" reference manual (CUDA 12); only
// what is passed on without a look inside is opaque here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/shared_object.h"

namespace octofold::cuda {

// CUresult. Those that somebody reacts to.
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kLaunchOutOfResources = 701;

using ContextHandle = struct OpaqueContext*;    // CUcontext
using ModuleHandle = struct OpaqueModule*;      // CUmodule
using FunctionHandle = struct OpaqueFunction*;  // CUfunction
using EventHandle = struct OpaqueEvent*;        // CUevent
using DeviceAddress = std::uint64_t;            // CUdeviceptr
using StreamHandle = void*;                     // CUstream, as octofold::Stream has it

// CUdevice_attribute
inline constexpr int kMultiprocessorCount = 16;
inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kSharedMemoryPerBlock = 97;

// CUfunction_attribute
inline constexpr int kMaxDynamicSharedSize = 8;

// CUstreamCaptureMode
inline constexpr int kCaptureModeRelaxed = 2;

// CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned kHostMemoryForDevices = 3;

// CUlaunchAttribute
struct LaunchAttribute {
  static constexpr int kClusterDimension = 4;
  static constexpr int kProgrammaticStreamSerialization = 6;

  struct Cluster {
    unsigned x, y, z;
  };

  alignas(8) int id;
  union alignas(8) {
    Cluster cluster;
    int programmatic_stream_serialization_allowed;
    char size[64];
  };
};

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, cluster) == 8);
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

class Driver {
 public:
  /// Opens the driver and initializes it. Throws Error(kUnavailable) that says what is missing: the
  /// library, a version that has thread block clusters and tensor maps (CUDA 12), a device.
  explicit Driver(const std::string& library = "libcuda.so.1");

  /// Throws Error(kUnavailable) in a process that was forked from one that had opened a driver:
  /// CUDA's state does not survive fork().
  static void require_usable_here();

  /// "CUDA 13.0"
  std::string version() const;

  /// The major version of its CUDA: 12, 13.
  int cuda() const { return version_ / 1000; }

  /// Throws Error, with `what` in the message, unless `result` is kSuccess.
  void check(Result result, std::string_view what) const {
    if (result != kSuccess) [[unlikely]]
      fail(result, what);
  }
  [[noreturn]] void fail(Result result, std::string_view what) const;
  /// "CUDA_ERROR_INVALID_VALUE (invalid argument)"
  std::string describe(Result result) const;

  // cuDeviceGetCount for device_get_count and so on: in their newest version that CUDA 12.0 has.
  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_get_version)(int* version) = nullptr;
  Result (*get_error_name)(Result error, const char** text) = nullptr;
  Result (*get_error_string)(Result error, const char** text) = nullptr;
  Result (*device_get_count)(int* count) = nullptr;
  Result (*device_get)(int* device, int ordinal) = nullptr;
  Result (*device_get_name)(char* name, int size, int device) = nullptr;
  Result (*device_total_mem)(std::size_t* bytes, int device) = nullptr;
  Result (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  Result (*device_primary_ctx_retain)(ContextHandle* context, int device) = nullptr;
  Result (*ctx_get_current)(ContextHandle* context) = nullptr;
  Result (*ctx_push_current)(ContextHandle context) = nullptr;
  Result (*ctx_pop_current)(ContextHandle* context) = nullptr;
  Result (*thread_exchange_stream_capture_mode)(int* mode) = nullptr;
  Result (*mem_alloc)(DeviceAddress* memory, std::size_t bytes) = nullptr;
  Result (*mem_free)(DeviceAddress memory) = nullptr;
  Result (*memset_d8)(DeviceAddress memory, unsigned char value, std::size_t count) = nullptr;
  Result (*memcpy)(DeviceAddress to, DeviceAddress from, std::size_t bytes) = nullptr;
  Result (*mem_host_alloc)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
  Result (*mem_host_get_device_pointer)(DeviceAddress* address, void* memory,
                                        unsigned flags) = nullptr;
  Result (*stream_synchronize)(StreamHandle stream) = nullptr;
  Result (*stream_is_capturing)(StreamHandle stream, int* status) = nullptr;
  Result (*event_create)(EventHandle* event, unsigned flags) = nullptr;
  Result (*event_destroy)(EventHandle event) = nullptr;
  Result (*event_record)(EventHandle event, StreamHandle stream) = nullptr;
  Result (*event_query)(EventHandle event) = nullptr;
  Result (*event_elapsed_time)(float* milliseconds, EventHandle begin, EventHandle end) = nullptr;
  Result (*module_load_data)(ModuleHandle* module, const void* image) = nullptr;
  Result (*module_get_function)(FunctionHandle* function, ModuleHandle module,
                                const char* name) = nullptr;
  Result (*func_set_attribute)(FunctionHandle function, int attribute, int value) = nullptr;
  Result (*occupancy_max_active_clusters)(int* clusters, FunctionHandle function,
                                          const LaunchConfig* config) = nullptr;
  Result (*launch_kernel_ex)(const LaunchConfig* config, FunctionHandle function, void** parameters,
                             void** extra) = nullptr;
  Result (*tensor_map_encode_tiled)(void* tensor_map, int data_type, unsigned rank, void* address,
                                    const std::uint64_t* sizes, const std::uint64_t* strides,
                                    const unsigned* box, const unsigned* element_strides,
                                    int interleave, int swizzle, int l2_promotion,
                                    int out_of_bounds_fill) = nullptr;

 private:
  int version_ = 0;
};

}  // namespace octofold::cuda
