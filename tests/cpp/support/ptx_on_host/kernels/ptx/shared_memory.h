// kernels/ptx run on the host by a fiber for each thread: shared memory is an array, and
// asynchronous copies arrive when they are waited for and no sooner.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/ptx/architecture.h"
#include "support/fibers.h"

using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

namespace octofold::ptx {

inline constexpr std::size_t kMostBlocks = 4;  // of a cluster

struct Copy {
  unsigned destination;
  const void* source;
  unsigned bytes;
  unsigned written = 16;  // zeros behind those that are read
};

// The state that a thread has for itself.
struct Thread {
  struct Dimensions {
    unsigned x;
  };
  Dimensions index{}, block_index{}, grid{};
  std::size_t rank = 0;  // of its block in the cluster
  test::Barrier *warp = nullptr, *block = nullptr, *cluster = nullptr;
  unsigned cluster_meeting = 0;               // at which it has arrived
  std::vector<Copy> begun{};                  // copies,
  std::deque<std::vector<Copy>> committed{};  // by groups
  std::deque<std::size_t> products{0};        // that were issued, by groups
};

// Outside of a launch, a test is a thread.
inline Thread& self() {
  if (test::fiber_local != nullptr) return *static_cast<Thread*>(test::fiber_local);
  static thread_local Thread outside;
  return outside;
}

}  // namespace octofold::ptx

#define threadIdx (::octofold::ptx::self().index)
#define blockIdx (::octofold::ptx::self().block_index)
#define gridDim (::octofold::ptx::self().grid)

namespace octofold::ptx {

// The memory of each block of a cluster. Addresses are in the own block, or by address_at_rank().
class SharedMemory {
 public:
  static constexpr std::size_t kBytes = 256 * 1024;
  unsigned char& operator[](std::size_t address) { return memory_[place(address)]; }
  // The same number for an address and whatever another block calls it.
  static std::size_t place(std::size_t address) {
    const std::size_t named = address / kBytes;
    return (named == 0 ? self().rank : named - 1) * kBytes + address % kBytes;
  }
  static unsigned address_at_rank(unsigned address, unsigned of_block) {
    return static_cast<unsigned>((of_block + 1) * kBytes + address % kBytes);
  }
  void fill(unsigned char byte) { memory_.fill(byte); }
  // True if blocks have left what is behind their `bytes` as fill() did.
  bool is_filled_behind(int bytes, unsigned char byte) const {
    for (std::size_t block = 0; block < kMostBlocks; ++block) {
      const auto begin = memory_.begin() + block * kBytes;
      if (!std::all_of(begin + bytes, begin + kBytes, [&](auto b) { return b == byte; }))
        return false;
    }
    return true;
  }
  static constexpr std::size_t size() { return kBytes; }
  auto begin() const { return memory_.begin(); }
  auto end() const { return memory_.begin() + kBytes; }

 private:
  std::array<unsigned char, kMostBlocks * kBytes> memory_{};
};
inline SharedMemory shared;

// The thread's place among those of a cluster.
inline std::size_t place_of_thread() { return self().rank * 1024 + threadIdx.x; }

inline void copy_unit_async(unsigned destination, const void* source, unsigned bytes) {
  self().begun.push_back({destination, source, bytes});
}

inline void copies_commit() { self().committed.push_back(std::exchange(self().begun, {})); }

template <int kPending>
inline void copies_wait() {
  auto& committed = self().committed;
  for (; committed.size() > kPending; committed.pop_front()) {
    for (const Copy& copy : committed.front()) {
      std::memset(&shared[copy.destination], 0, copy.written);
      std::memcpy(&shared[copy.destination], copy.source, copy.bytes);
    }
  }
}

// Before Ampere at once.
template <int kBytes, bool kThroughL1>
void copy_async(unsigned destination, const void* source, bool exists) {
  self().begun.push_back({destination, source, exists ? kBytes : 0u, kBytes});
  if constexpr (kHasAmpere) return;
  copies_commit();
  copies_wait<0>();
}

template <int kBytes, bool kThroughL1>
void copy_async(unsigned destination, const void* source) {
  copy_async<kBytes, kThroughL1>(destination, source, true);
}

inline unsigned opaque(unsigned value) { return value; }
inline float opaque(float value) { return value; }

unsigned shared_address(const void* pointer);  // of what is not run
inline unsigned dynamic_shared_memory() { return 0; }
inline unsigned swizzled_shared_memory() { return 0; }

inline unsigned address_at_rank(unsigned address, unsigned of_block) {
  return SharedMemory::address_at_rank(address, of_block);
}

inline unsigned load_shared_word(unsigned address) {
  unsigned value;
  std::memcpy(&value, &shared[address], sizeof(value));
  return value;
}

inline void store_shared_word(unsigned address, unsigned value) {
  std::memcpy(&shared[address], &value, sizeof(value));
}

inline void store_at_rank(unsigned address, unsigned of_block, unsigned value) {
  store_shared_word(address_at_rank(address, of_block), value);
}

template <int kWords>
void store_shared_words(unsigned address, const unsigned (&words)[kWords]) {
  std::memcpy(&shared[address], words, sizeof(words));
}

template <int kWords>
void load_shared_words(unsigned address, unsigned (&words)[kWords]) {
  std::memcpy(words, &shared[address], sizeof(words));
}
inline float load_shared(unsigned address) {
  return std::bit_cast<float>(load_shared_word(address));
}
inline float2 load_shared_pair(unsigned address) {
  return {load_shared(address), load_shared(address + 4)};
}
inline void store_shared(unsigned address, float2 pair) {
  std::memcpy(&shared[address], &pair, sizeof(pair));
}
inline float4 load_shared_four(unsigned address) {
  float4 four;
  std::memcpy(&four, &shared[address], sizeof(four));
  return four;
}

inline unsigned load_shared_half(unsigned address) {
  unsigned short value;
  std::memcpy(&value, &shared[address], sizeof(value));
  return value;
}

inline void store_shared_half(unsigned address, unsigned value) {
  std::memcpy(&shared[address], &value, 2);
}

inline void copy_word_async(unsigned destination, const void* source, unsigned bytes) {
  self().begun.push_back({destination, source, bytes, 4});
}
inline void copy_word_async(unsigned destination, const void* source) {
  copy_word_async(destination, source, 4);
}

}  // namespace octofold::ptx

inline void __syncwarp() { octofold::ptx::self().warp->arrive_and_wait(); }

// Each thread's word, for the others of its warp to read.
inline std::array<unsigned, 1024 * octofold::ptx::kMostBlocks> exchanged;

// read(words) of the words of all lanes.
template <typename T, typename Read>
auto exchange(T value, Read&& read) {
  unsigned* const words = &exchanged[octofold::ptx::place_of_thread() / 32 * 32];
  words[threadIdx.x % 32] = std::bit_cast<unsigned>(value);
  __syncwarp();
  const auto result = read(words);
  __syncwarp();
  return result;
}

template <typename T>
T of_lane(T value, unsigned lane) {
  return exchange(value, [&](const unsigned* words) { return std::bit_cast<T>(words[lane]); });
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return of_lane(value, threadIdx.x % 32 ^ static_cast<unsigned>(distance));
}

// From the lane so far before; the first ones keep theirs.
template <typename T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const unsigned lane = threadIdx.x % 32, by = static_cast<unsigned>(distance);
  return of_lane(value, lane < by ? lane : lane - by);
}

// From `lane` of the `width` neighbours.
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const unsigned own = threadIdx.x % 32, neighbours = static_cast<unsigned>(width);
  return of_lane(value, own / neighbours * neighbours + static_cast<unsigned>(lane));
}

template <typename T>
unsigned __match_any_sync(unsigned, T value) {
  return exchange(value, [&](const unsigned* words) {
    unsigned alike = 0;
    for (unsigned i = 0; i < 32; ++i) {
      alike |= unsigned{words[i] == std::bit_cast<unsigned>(value)} << i;
    }
    return alike;
  });
}

inline int __any_sync(unsigned, bool value) {
  return exchange(unsigned{value},
                  [](const unsigned* words) { return *std::max_element(words, words + 32) != 0; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return exchange(value,
                  [](const unsigned* words) { return *std::max_element(words, words + 32); });
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return exchange(value,
                  [](const unsigned* words) { return *std::min_element(words, words + 32); });
}

inline int atomicAdd(int* address, int value) { return std::atomic_ref(*address) += value; }
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value) {
  std::atomic_ref(*address).compare_exchange_strong(expected, value);
  return expected;
}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline int __popc(unsigned value) { return std::popcount(value); }

namespace octofold::ptx {

// The lane's two elements of a row of a matrix, whose rows begin where lanes from `first` on say.
inline void store_row_of(unsigned row_address, unsigned first, unsigned pair) {
  const unsigned lane = threadIdx.x % 32;
  store_shared_word(of_lane(row_address, first + lane / 4) + lane % 4 * 4, pair);
}
inline void store_matrices(unsigned row_address, unsigned one, unsigned two, unsigned three,
                           unsigned four) {
  store_row_of(row_address, 0, one);
  store_row_of(row_address, 8, two);
  store_row_of(row_address, 16, three);
  store_row_of(row_address, 24, four);
}
// The lane's two elements are of two neighbouring rows, and of one column.
inline void store_matrices_transposed(unsigned row_address, unsigned one, unsigned two) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = of_lane(row_address, i / 2 * 8 + lane % 4 * 2 + i % 2);
    store_shared_half(row + lane / 4 * 2, (i < 2 ? one : two) >> 16 * (i % 2));
  }
}

}  // namespace octofold::ptx
