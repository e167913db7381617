#include "cuda/fake_driver.h"

#include <cstring>

#include "cuda/driver.h"
#include "support/tensor_map_on_host.h"

namespace {

using octofold::cuda::fake::State;

State state;
// Contexts and functions are pointers into these: what they point at tells the device.
int devices[16];
thread_local std::vector<int*> context_stack;
thread_local int capture_mode = 0;
constexpr int kOnlyRelaxed = 906;                // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
bool is_relaxed() { return capture_mode == 2; }  // CU_STREAM_CAPTURE_MODE_RELAXED

int device_of(const void* handle) {
  return handle == nullptr ? -1 : static_cast<int>(static_cast<const int*>(handle) - devices);
}

// Writes the tensor map in the form that kernels on the host read.
void write_for_host(void* map, int data_type, void* address, const std::uint64_t* sizes,
                    const std::uint64_t* strides, unsigned rank, const unsigned* box) {
  const unsigned element_bytes = data_type == 0 ? 1 : data_type == 4 || data_type == 7 ? 4 : 2;
  const auto tensor = octofold::test::tensor_map(
      {.data = static_cast<unsigned char*>(address),
       .element_bytes = element_bytes,
       .columns = static_cast<std::int64_t>(sizes[0]),
       .rows = static_cast<std::int64_t>(sizes[1]),
       .matrices = rank > 2 ? static_cast<std::int64_t>(sizes[2]) : 1,
       .row_bytes = static_cast<std::int64_t>(strides[0]),
       .matrix_bytes = rank > 2 ? static_cast<std::int64_t>(strides[1]) : 0,
       .box_columns = box[0],
       .box_rows = box[1]});
  std::memcpy(map, &tensor, sizeof(tensor));
}

}  // namespace

extern "C" {

State* octofold_fake_driver_state() { return &state; }

int cuInit(unsigned) { return state.init_error; }

int cuDriverGetVersion(int* version) {
  *version = state.version;
  return 0;
}

int cuGetErrorName(int error, const char** text) {
  *text = error == 1     ? "CUDA_ERROR_INVALID_VALUE"
          : error == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == 100 ? "CUDA_ERROR_NO_DEVICE"
          : error == 400 ? "CUDA_ERROR_INVALID_HANDLE"
          : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
                         : nullptr;
  return *text != nullptr ? 0 : 1;
}

int cuGetErrorString(int, const char** text) {
  *text = "what the driver says";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = state.device_count;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < state.device_count ? 0 : 101;
}

int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, state.device_name, static_cast<std::size_t>(size));
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{1} << 30;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case octofold::cuda::kMultiprocessorCount: *value = state.multiprocessors; return 0;
    case octofold::cuda::kComputeCapabilityMajor: *value = state.compute_major; return 0;
    case octofold::cuda::kComputeCapabilityMinor: *value = state.compute_minor; return 0;
    case octofold::cuda::kSharedMemoryPerBlock: *value = state.shared_memory_per_block; return 0;
  }
  return 1;
}

int cuDevicePrimaryCtxRetain(int** context, int device) {
  *context = &devices[device];
  return 0;
}

int cuCtxGetCurrent(int** context) {
  *context = context_stack.empty() ? nullptr : context_stack.back();
  return 0;
}

int cuCtxPushCurrent_v2(int* context) {
  context_stack.push_back(context);
  ++state.pushes;
  return 0;
}

int cuCtxPopCurrent_v2(int** context) {
  *context = context_stack.back();
  context_stack.pop_back();
  ++state.pops;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  ++state.capture_mode_changes;
  return 0;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  if (context_stack.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  if (bytes == 0) return 1;
  if (bytes > state.memory_bytes) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  octofold::cuda::fake::Allocation allocation{std::vector(bytes, std::byte{0xEE}),
                                              device_of(context_stack.back())};
  *address = reinterpret_cast<std::uint64_t>(allocation.bytes.data());
  const std::lock_guard lock(state.mutex);
  state.memory.emplace(*address, std::move(allocation));
  return 0;
}

int cuMemFree_v2(std::uint64_t address) {
  const std::lock_guard lock(state.mutex);
  return state.memory.erase(address) == 1 ? 0 : 1;
}

int cuMemsetD8_v2(std::uint64_t address, unsigned char value, std::size_t count) {
  std::memset(reinterpret_cast<void*>(address), value, count);
  return 0;
}

int cuMemcpy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  if (context_stack.empty()) return 201;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return 0;
}

int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  if (context_stack.empty()) return 201;
  if (!is_relaxed()) return kOnlyRelaxed;
  const std::lock_guard lock(state.mutex);
  *memory = state.host_memory.emplace_back(bytes, std::byte{0xEE}).data();
  return 0;
}

int cuMemHostGetDevicePointer_v2(std::uint64_t* address, void* memory, unsigned) {
  *address = reinterpret_cast<std::uint64_t>(memory);
  return 0;
}

int cuStreamSynchronize(void*) {
  ++state.synchronizations;
  return 0;
}

int cuStreamIsCapturing(void*, int* status) {
  *status = state.is_capturing ? 1 : 0;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
  return 0;
}

int cuEventCreate(float** event, unsigned) {
  if (context_stack.empty()) return 201;
  *event = new float(-1);
  ++state.events;
  return 0;
}

int cuEventDestroy_v2(float* event) {
  delete event;
  --state.events;
  return 0;
}

int cuEventRecord(float* event, void*) {
  if (context_stack.empty()) return 201;
  *event = state.microseconds;
  return 0;
}

int cuEventQuery(float*) {
  if (!is_relaxed()) return kOnlyRelaxed;
  return state.events_have_come ? 0 : 600;  // CUDA_ERROR_NOT_READY
}

int cuEventElapsedTime(float* milliseconds, const float* begin, const float* end) {
  *milliseconds = (*end - *begin) / 1000;
  return *begin < 0 || *end < 0 ? 400 : 0;  // CUDA_ERROR_INVALID_HANDLE
}

int cuModuleLoadData(int** module, const void* image) {
  if (state.load_error != 0) return state.load_error;
  if (*static_cast<const char*>(image) == '?') return 200;  // CUDA_ERROR_INVALID_IMAGE
  if (context_stack.empty()) return 201;                    // CUDA_ERROR_INVALID_CONTEXT
  if (!is_relaxed()) return kOnlyRelaxed;
  ++state.loads;
  *module = context_stack.back();
  return 0;
}

int cuModuleGetFunction(int** function, int* module, const char*) {
  *function = module;
  return 0;
}

int cuFuncSetAttribute(int*, int attribute, int value) {
  if (attribute != octofold::cuda::kMaxDynamicSharedSize) return 1;
  state.dynamic_shared_size = value;
  return 0;
}

int cuOccupancyMaxActiveClusters(int* clusters, int*, const octofold::cuda::LaunchConfig* config) {
  using octofold::cuda::LaunchAttribute;
  if (state.occupancy_error != 0) return state.occupancy_error;
  *clusters = state.multiprocessors;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == LaunchAttribute::kClusterDimension) {
      *clusters = state.multiprocessors / static_cast<int>(attribute.cluster.x);
    }
  }
  return 0;
}

int cuLaunchKernelEx(const octofold::cuda::LaunchConfig* config, int* function, void** parameters,
                     void**) {
  using octofold::cuda::LaunchAttribute;
  if (state.launch_error != 0) return state.launch_error;
  octofold::cuda::fake::Launch launch;
  if (config->grid_y * config->grid_z * config->block_y * config->block_z != 1) return 1;
  launch.blocks = config->grid_x;
  launch.threads = config->block_x;
  launch.shared_bytes = config->shared_bytes;
  launch.stream = config->stream;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == LaunchAttribute::kClusterDimension) launch.cluster = attribute.cluster.x;
    if (attribute.id == LaunchAttribute::kProgrammaticStreamSerialization) {
      launch.may_overlap = attribute.programmatic_stream_serialization_allowed != 0;
    }
  }
  launch.device = context_stack.empty() ? -1 : device_of(context_stack.back());
  launch.device_of_function = device_of(function);
  const auto* params = static_cast<const std::byte*>(parameters[0]);
  const std::lock_guard lock(state.mutex);
  const std::size_t number = state.launches.size();
  state.microseconds += state.launch_microseconds[number % state.launch_microseconds.size()];
  const bool is_among_first = number < state.first_params_bytes.size();
  launch.params.assign(
      params, params + (is_among_first ? state.first_params_bytes[number] : state.params_bytes));
  state.launches.push_back(std::move(launch));
  return 0;
}

int cuTensorMapEncodeTiled(void* map, int data_type, unsigned rank, void* address,
                           const std::uint64_t* sizes, const std::uint64_t* strides,
                           const unsigned* box, const unsigned*, int, int swizzle, int, int) {
  if (context_stack.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  if (state.encode_error != 0) return state.encode_error;
  const bool aligned = reinterpret_cast<std::uintptr_t>(address) % 16 == 0 &&
                       strides[0] % 16 == 0 && (rank < 3 || strides[1] % 16 == 0);
  if (!aligned || sizes[0] == 0 || sizes[1] == 0 || box[0] > 256 || box[1] > 256) return 1;
  write_for_host(map, data_type, address, sizes, strides, rank, box);
  const std::lock_guard lock(state.mutex);
  state.tensor_maps.push_back({data_type, static_cast<int>(rank), swizzle, address, sizes[0],
                               sizes[1], strides[0], box[0], box[1], rank > 2 ? sizes[2] : 1,
                               rank > 2 ? strides[1] : 0});
  return 0;
}

}  // extern "C"
