// kernels/ptx for code that loads, run on the host by a thread for each lane: shared memory is an
// array, asynchronous copies arrive when they are waited for and no sooner, and barriers are open.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

using std::max;
using std::min;

struct Dimensions {
  unsigned x;
};
inline thread_local Dimensions threadIdx{}, blockIdx{}, gridDim{};

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

namespace octofold::ptx {

inline std::array<unsigned char, 256 * 1024> shared;
inline std::barrier<>* warp = nullptr;  // of the lanes that run

struct Copy {
  unsigned destination;
  const void* source;
  unsigned bytes;
};
inline thread_local std::vector<Copy> begun;
inline thread_local std::deque<std::vector<Copy>> committed;

inline void copy_unit_async(unsigned destination, const void* source, unsigned bytes) {
  begun.push_back({destination, source, bytes});
}

inline void copies_commit() {
  committed.push_back(std::move(begun));
  begun.clear();
}

template <int kPending>
inline void copies_wait() {
  for (; committed.size() > kPending; committed.pop_front()) {
    for (const Copy& copy : committed.front()) {
      std::memset(&shared[copy.destination], 0, 16);
      std::memcpy(&shared[copy.destination], copy.source, copy.bytes);
    }
  }
}

inline unsigned load_shared_word(unsigned address) {
  unsigned value;
  std::memcpy(&value, &shared[address], sizeof(value));
  return value;
}

inline void store_shared_word(unsigned address, unsigned value) {
  std::memcpy(&shared[address], &value, sizeof(value));
}

template <int kWords>
void store_shared_words(unsigned address, const unsigned (&words)[kWords]) {
  std::memcpy(&shared[address], words, sizeof(words));
}

inline void store_shared_half(unsigned address, unsigned value) {
  std::memcpy(&shared[address], &value, 2);
}

// Of what is not run.
unsigned shared_address(const void* pointer);
template <int kBytes, bool kThroughL1>
void copy_async(unsigned destination, const void* source);
void load_shared_words(unsigned address, unsigned (&words)[4]);
unsigned opaque(unsigned value);
float opaque(float value);
float load_shared(unsigned address);
float2 load_shared_pair(unsigned address);
float4 load_shared_four(unsigned address);
void store_shared(unsigned address, float2 pair);
void store_matrices(unsigned, unsigned, unsigned, unsigned, unsigned);
void store_matrices_transposed(unsigned, unsigned, unsigned);

inline void copy_word_async(unsigned, const void*) {}
inline void copy_word_async(unsigned destination, const void* source, unsigned bytes) {
  std::memset(&shared[destination], 0, 4);
  std::memcpy(&shared[destination], source, bytes);
}

}  // namespace octofold::ptx

inline void __syncwarp() { octofold::ptx::warp->arrive_and_wait(); }

// Each lane's word, for the others to read.
inline std::array<unsigned, 32> exchanged;

template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  const unsigned lane = threadIdx.x % 32;
  exchanged[lane] = std::bit_cast<unsigned>(value);
  __syncwarp();
  const T other = std::bit_cast<T>(exchanged[lane ^ static_cast<unsigned>(distance)]);
  __syncwarp();
  return other;
}

// From `lane` of the `width` neighbours.
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const unsigned own = threadIdx.x % 32, neighbours = static_cast<unsigned>(width);
  exchanged[own] = std::bit_cast<unsigned>(value);
  __syncwarp();
  const T other =
      std::bit_cast<T>(exchanged[own / neighbours * neighbours + static_cast<unsigned>(lane)]);
  __syncwarp();
  return other;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return shift % 32 == 0 ? low : low >> shift % 32 | high << (32 - shift % 32);
}
