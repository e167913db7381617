// Matrix products of a warp on the host, by a fiber for each lane: the numbers that a lane needs
// are those that others hold. Sums are made in FP64 and rounded once.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "octofold/vocabulary.h"

#include "cpu/number_formats.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/shared_memory.h"

namespace octofold::ptx {

// The operands of each thread, in registers of 32 bits: a, then b.
inline std::array<std::array<unsigned, 6>, 1024 * kMostBlocks> operands;

// Number `index` of 32 bytes of a row of A, or of a column of B, given the registers that hold
// bytes 0 … 15 and 16 … 31 of the lanes from `first_lane` on.
template <typename Format>
float number_of(std::size_t first_lane, int low_register, int high_register, int index) {
  using Storage = typename Format::Storage;
  const int byte = index * static_cast<int>(sizeof(Storage));
  const auto& registers = operands[first_lane + static_cast<std::size_t>(byte % 16 / 4)];
  const unsigned word =
      registers[static_cast<std::size_t>(byte < 16 ? low_register : high_register)];
  return Format::decode(static_cast<Storage>(word >> 8 * (byte % 4)));
}

template <typename FormatA, typename FormatB>
void multiply_add_of(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  constexpr int kNumbers = 32 / static_cast<int>(sizeof(typename FormatA::Storage));
  const std::size_t thread = place_of_thread(), warp_begin = thread / 32 * 32, lane = thread % 32;
  operands[thread] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  self().warp->arrive_and_wait();
  for (std::size_t i = 0; i < 4; ++i) {
    const int half = static_cast<int>(i / 2);
    const std::size_t column = lane % 4 * 2 + i % 2;
    double sum = 0;
    for (int k = 0; k < kNumbers; ++k) {
      sum += double{number_of<FormatA>(warp_begin + lane / 4 * 4, half, 2 + half, k)} *
             number_of<FormatB>(warp_begin + column * 4, 4, 5, k);
    }
    sums[i] = static_cast<float>(sums[i] + sum);
  }
  self().warp->arrive_and_wait();
}

template <DType kType>
void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  static_assert(kType == DType::kFloat16 || (kType == DType::kBFloat16 && kHasAmpere));
  using Format = std::conditional_t<kType == DType::kFloat16, cpu::Float16, cpu::BFloat16>;
  multiply_add_of<Format, Format>(sums, a, b);
}

template <DType kType>
void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  for (float& sum : sums) sum = 0;
  multiply_add<kType>(sums, a, b);
}

template <DType kA, DType kB>
void multiply_add_fp8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  static_assert(is_fp8(kA) && is_fp8(kB) && kHasFp8Products);
  multiply_add_of<std::conditional_t<kA == DType::kE4M3, cpu::E4M3, cpu::E5M2>,
                  std::conditional_t<kB == DType::kE4M3, cpu::E4M3, cpu::E5M2>>(sums, a, b);
}

// Addresses of the rows of matrix i from lane 8 · i on, as all lanes gave them.
inline void share_address(unsigned row_address) {
  operands[place_of_thread()][0] = row_address;
  self().warp->arrive_and_wait();
}
inline const unsigned char* row_of(int matrix, std::size_t row) {
  const std::size_t warp_begin = place_of_thread() / 32 * 32;
  return &shared[operands[warp_begin + static_cast<std::size_t>(8 * matrix) + row][0]];
}

inline void load_matrices(unsigned row_address, unsigned (&matrices)[4]) {
  share_address(row_address);
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&matrices[i], row_of(i, threadIdx.x % 32 / 4) + threadIdx.x % 4 * 4, 4);
  }
  self().warp->arrive_and_wait();
}

inline void load_matrices_transposed(unsigned row_address, unsigned (&matrices)[4]) {
  share_address(row_address);
  for (int i = 0; i < 4; ++i) {
    matrices[i] = 0;
    for (unsigned pair = 0; pair < 2; ++pair) {
      unsigned short element;
      std::memcpy(&element, row_of(i, threadIdx.x % 4 * 2 + pair) + threadIdx.x % 32 / 4 * 2, 2);
      matrices[i] |= static_cast<unsigned>(element) << 16 * pair;
    }
  }
  self().warp->arrive_and_wait();
}

}  // namespace octofold::ptx
