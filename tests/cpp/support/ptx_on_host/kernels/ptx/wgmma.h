// Products of warpgroups. They are made when they are waited for and no sooner, from what registers
// and shared memory hold then: so a wait that is missing shows, and a stage given back too early.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "octofold/vocabulary.h"

#include "cpu/number_formats.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/ptx/tma.h"

namespace octofold::ptx {

// d[64, width] = a · bᵀ (+ d), 32 bytes of K.
struct WarpgroupProduct {
  float* sums;
  int width;
  const unsigned* a_registers;  // null: a is in shared memory
  std::uint64_t a, b;
  bool b_is_n_major, accumulate;
  DType a_type, b_type;
};

// The products of each thread in the order of their issue; Thread has how many each group has.
inline std::array<std::deque<WarpgroupProduct>, 1024 * kMostBlocks> issued;

inline void issue(const WarpgroupProduct& product) {
  issued[place_of_thread()].push_back(product);
  ++self().products.back();
}

// "Matrix Descriptor Format", as kernels/ptx/wgmma.h makes them.
struct Descriptor {
  explicit Descriptor(std::uint64_t bits)
      : start(static_cast<unsigned>(bits & 0x3FFF) * 16),
        leading(static_cast<unsigned>(bits >> 16 & 0x3FFF) * 16),
        stride(static_cast<unsigned>(bits >> 32 & 0x3FFF) * 16) {
    if (bits >> 62 != 1) test::fail("descriptor", start, "has another swizzle");
  }
  const unsigned char* k_major(unsigned row, unsigned byte) const {
    return &shared[swizzled_place(start + row / 8 * stride + row % 8 * 128 + byte, 128)];
  }
  const unsigned char* n_major(unsigned column, unsigned k) const {
    const unsigned at = column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 * 2;
    return &shared[swizzled_place(start + at, 128)];
  }
  unsigned start, leading, stride;
};

inline float number_at(const void* place, DType type) {
  const auto decode = [&]<typename Format>(Format) {
    typename Format::Storage bits;
    std::memcpy(&bits, place, sizeof(bits));
    return Format::decode(bits);
  };
  switch (type) {
    case DType::kE4M3: return decode(cpu::E4M3());
    case DType::kE5M2: return decode(cpu::E5M2());
    case DType::kFloat16: return decode(cpu::Float16());
    default: return decode(cpu::BFloat16());
  }
}

using OfDepth = std::array<float, 32>;

// Numbers of row l / 4 of the lane's sixteen, or of the one 8 below, of product `index`.
inline OfDepth row_of_a(const WarpgroupProduct& product, std::size_t index, unsigned half) {
  OfDepth row{};
  const unsigned bytes = size_of(product.a_type), warp_row = threadIdx.x % 128 / 32 * 16;
  for (unsigned k = 0; k < 32 / bytes; ++k) {
    const unsigned byte = k * bytes;
    if (product.a_registers == nullptr) {
      const Descriptor a(product.a);
      row[k] =
          number_at(a.k_major(warp_row + 8 * half + threadIdx.x % 32 / 4, byte), product.a_type);
      continue;
    }
    const std::size_t lane = place_of_thread() / 4 * 4 + byte % 16 / 4;
    const unsigned word = issued[lane][index].a_registers[half + byte / 16 * 2];
    row[k] = number_at(reinterpret_cast<const char*>(&word) + byte % 4, product.a_type);
  }
  return row;
}

inline OfDepth column_of_b(const WarpgroupProduct& product, unsigned column) {
  OfDepth numbers{};
  const Descriptor b(product.b);
  const unsigned bytes = size_of(product.b_type);
  for (unsigned k = 0; k < 32 / bytes; ++k) {
    const auto* const place =
        product.b_is_n_major ? b.n_major(column, k) : b.k_major(column, k * bytes);
    numbers[k] = number_at(place, product.b_type);
  }
  return numbers;
}

inline void multiply(const WarpgroupProduct& product, std::size_t index) {
  const OfDepth rows[2] = {row_of_a(product, index, 0), row_of_a(product, index, 1)};
  for (int i = 0; i < product.width / 4; ++i) {
    const unsigned column = static_cast<unsigned>(i / 2 * 8 + i % 2) + threadIdx.x % 4 * 2;
    const OfDepth of_column = column_of_b(product, column);
    for (int half = 0; half < 2; ++half) {
      float& sum = product.sums[i / 2 * 4 + half * 2 + i % 2];
      double all = product.accumulate ? sum : 0;
      for (std::size_t k = 0; k < of_column.size(); ++k) {
        all += double{rows[half][k]} * of_column[k];
      }
      sum = static_cast<float>(all);
    }
  }
}

inline void wgmma_fence() {}
inline void wgmma_commit() { self().products.push_back(0); }

// All lanes of the warp: they read each other's registers.
template <int kPending>
void wgmma_wait() {
  self().warp->arrive_and_wait();
  std::size_t count = 0;
  auto& groups = self().products;
  for (; groups.size() > kPending + 1; groups.pop_front()) count += groups.front();
  std::deque<WarpgroupProduct>& products = issued[place_of_thread()];
  for (std::size_t i = 0; i < count; ++i) multiply(products[i], i);
  self().warp->arrive_and_wait();
  products.erase(products.begin(), products.begin() + static_cast<std::ptrdiff_t>(count));
}

template <int kCount>
void wgmma_pin(float (&)[kCount]) {}

inline std::uint64_t descriptor_of(unsigned low) {
  constexpr std::uint64_t kSwizzle128 = 1u << 30, kAtomDistance = 1024 >> 4;
  return (kSwizzle128 | kAtomDistance) << 32 | low;
}
inline unsigned long long k_major_descriptor(unsigned address, int k) {
  return descriptor_of(address / 16 + static_cast<unsigned>(k) / 16);
}
inline unsigned long long n_major_descriptor(unsigned address, int distance) {
  return descriptor_of(address / 16 | static_cast<unsigned>(distance) / 16 << 16);
}

}  // namespace octofold::ptx
