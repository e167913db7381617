// A CUDA driver for tests without a GPU: a shared object with libcuda's symbols that computes
// nothing, writes down what it is asked and fails where a test wants it to.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/sm90/config/checks.h"

namespace octofold::cuda::fake {

struct Launch {
  unsigned blocks = 0, threads = 0;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  unsigned cluster = 1;
  bool may_overlap = false;  // the programmatic-stream-serialization attribute
  int device = -1;           // whose context was current
  int device_of_function = -1;
  std::vector<std::byte> params;

  template <typename Params>
  Params params_as() const {
    Params result;
    std::memcpy(&result, params.data(), sizeof(Params));
    return result;
  }
};

struct TensorMapCall {
  int data_type, rank, swizzle;
  void* address;
  std::uint64_t cols, rows, row_bytes;
  unsigned box_cols, box_rows;
  // The third dimension's size, and how far apart its elements are; 1 and 0 where there is none.
  std::uint64_t outer, outer_bytes;
};

/// "Device" memory: the host's, so that copies are seen.
struct Allocation {
  std::vector<std::byte> bytes;
  int device;  // whose context was current
};

struct State {
  // The properties of the machine.
  int version = 13000;
  int device_count = 2;
  const char* device_name = "NVIDIA Fake";
  int compute_major = 9, compute_minor = 0, multiprocessors = 132;
  int shared_memory_per_block = 227 * 1024;

  // Calls that fail, with these errors; 0: none does.
  int init_error = 0, load_error = 0, launch_error = 0, encode_error = 0, occupancy_error = 0;

  // Bytes of a kernel's parameters: the driver is not told. The first launches may have others.
  std::size_t params_bytes = sizeof(config::Sm90GemmParams);
  std::vector<std::size_t> first_params_bytes{};

  std::size_t memory_bytes = std::size_t{1} << 30;  // of each device

  // A clock that launches move on, each by its number's microseconds, again and again; events that
  // have not come yet while it stands; a capture of every stream.
  std::vector<float> launch_microseconds{1};
  bool events_have_come = true, is_capturing = false;

  // The record of what happened.
  std::mutex mutex;  // of the vectors
  std::atomic<int> loads = 0, pushes = 0, pops = 0, capture_mode_changes = 0;
  int dynamic_shared_size = -1;
  std::vector<Launch> launches;
  std::vector<TensorMapCall> tensor_maps;
  float microseconds = 0;                           // by the clock
  int events = 0;                                   // that there are
  std::map<std::uint64_t, Allocation> memory;       // by address
  std::vector<std::vector<std::byte>> host_memory;  // that devices see, at the same addresses
  std::atomic<int> synchronizations = 0;
};

}  // namespace octofold::cuda::fake

extern "C" octofold::cuda::fake::State* octofold_fake_driver_state();
