// Codes of a stage as the first operand of a warpgroup's products (kernels/ptx/wgmma_half.h),
// decoded on their way to its registers.
//
// wgmma wants of each 16 of the depth two neighbours in a lane, and other two 8 further. x lies in
// shared memory as it came, so that a lane has to read just these codes: two at a time, which a
// conversion takes as they are. Which columns of out are which rows of the instruction is free: a
// lane with g = lane / 4 has two neighbours, columns 2 g and 2 g + 1 of its warp's 16.
#pragma once

#include "kernels/numeric/decode_pairs.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/weight_only_sm90/config/config.h"

namespace octofold::weight_only_sm90 {

using config::Sm90WeightOnlyConfig;

// The thread's warp of its warpgroup, and its lane, for which all that follows holds.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;  // of the instruction's rows g and g + 8
  int c = static_cast<int>(threadIdx.x) % 4;       // of each 8 numbers 2 c and 2 c + 1
};

// The column, of a sub-tile's 64, that is row g (`upper` 0) or g + 8 (1) of the instruction.
// Straight, lanes with g of 4 and more have their two the other way round: so eight lanes that read
// at a time find rows of eight different swizzles.
template <Sm90WeightOnlyConfig kConfig>
__device__ int column_of(const Lane& lane, int upper) {
  return 16 * lane.warp + 2 * lane.g + (kConfig.transposed ? upper : upper ^ lane.g >> 2);
}

// Rows 2 i and 2 i + 1 of 128 bytes are neighbours, and so are the places of 16 bytes that the
// swizzle gives them: from an address in one to the same place in the other.
inline constexpr unsigned kOtherRow = 128 ^ 16;

// The operands of some products, each 16 of the depth.
template <Sm90WeightOnlyConfig kConfig>
struct Operands {
  unsigned a[kConfig.products_at_once()][4];
};

// The same before it is decoded: two codes to a register.
template <Sm90WeightOnlyConfig kConfig>
struct Codes {
  unsigned pairs[kConfig.products_at_once()][4];
};

// The factors of weights before these are rounded to x's type: none, or one for each of the lane's
// two columns, or one for each number of the depth.
struct NoFactors {};
struct ColumnFactors {
  bool exist;  // in the warp; all are 1 nearly always
  float of_columns[2];
};
struct DepthFactors {
  unsigned memory;  // the lane's first two
};

// Rows of codes are columns of out.
template <Sm90WeightOnlyConfig kConfig>
class Weights {
 public:
  __device__ Weights() {
    const Lane lane;
    const int row = column_of<kConfig>(lane, 0);
    place_ = ptx::opaque(128u * row + row % 8 * 16 + 2 * lane.c);
  }

  // Codes of a stage, of 64 columns, from product `first` on.
  __device__ void load(unsigned w, int column, int first, Codes<kConfig>& codes) const {
#pragma unroll
    for (int i = 0; i < kConfig.products_at_once(); ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const unsigned place = place_ ^ r % 2 * kOtherRow ^ (first + i) * 16;
        codes.pairs[i][r] = ptx::load_shared_half(w + place + column * 128 + r / 2 * 8);
      }
    }
  }

  // The two codes that become register r of product i.
  static __device__ unsigned word(const Codes<kConfig>& codes, int i, int r) {
    return codes.pairs[i][r];
  }
  static constexpr int half(int) { return 0; }  // of the word

 private:
  unsigned place_;  // of the lane's first codes in the row that is first
};

// Rows of codes are the depth: of two rows a lane has two columns each.
template <Sm90WeightOnlyConfig kConfig>
  requires(kConfig.transposed)
class Weights<kConfig> {
 public:
  __device__ Weights() {
    const Lane lane;
    const int row = 2 * lane.c;
    place_ = ptx::opaque(128u * row + (lane.warp ^ row) * 16 + 2 * lane.g);
  }

  __device__ void load(unsigned w, int column, int first, Codes<kConfig>& codes) const {
    const unsigned of_columns = w + column / 128 * kScaleBlock * 128;
#pragma unroll
    for (int i = 0; i < 4 * kConfig.products_at_once(); ++i) {
      const unsigned eight = of_columns + (16 * first + i / 2 * 8) * 128;  // rows
      codes.pairs[i / 4][i % 4] =
          ptx::load_shared_half(eight + (place_ ^ i % 2 * kOtherRow ^ column % 128));
    }
  }

  // The two rows of each column: the lower column's in the lower half.
  static __device__ unsigned word(const Codes<kConfig>& codes, int i, int r) {
    return __byte_perm(codes.pairs[i][r / 2 * 2], codes.pairs[i][r / 2 * 2 + 1], 0x5140);
  }
  static constexpr int half(int r) { return r % 2; }

 private:
  unsigned place_;
};

// Codes as operands.
template <Sm90WeightOnlyConfig kConfig>
__device__ void decode(const Codes<kConfig>& codes, NoFactors, Operands<kConfig>& to) {
  using W = Weights<kConfig>;
#pragma unroll
  for (int i = 0; i < 4 * kConfig.products_at_once(); ++i) {
    to.a[i / 4][i % 4] =
        numeric::pair_in_units<kConfig.w, kConfig.x>(W::word(codes, i / 4, i % 4), W::half(i % 4));
  }
}

// With a factor for each of the lane's columns.
template <Sm90WeightOnlyConfig kConfig>
__device__ void decode(const Codes<kConfig>& codes, const ColumnFactors& factors,
                       Operands<kConfig>& to) {
  using W = Weights<kConfig>;
  if (!factors.exist) return decode(codes, NoFactors(), to);
#pragma unroll
  for (int i = 0; i < 4 * kConfig.products_at_once(); ++i) {
    const float factor = factors.of_columns[i % 2];
    to.a[i / 4][i % 4] = numeric::scaled_pair<kConfig.w, kConfig.x>(W::word(codes, i / 4, i % 4),
                                                                    W::half(i % 4), factor, factor);
  }
}

// With a factor for each number of the depth.
template <Sm90WeightOnlyConfig kConfig>
__device__ void decode(const Codes<kConfig>& codes, const DepthFactors& factors,
                       Operands<kConfig>& to) {
  using W = Weights<kConfig>;
#pragma unroll
  for (int i = 0; i < 2 * kConfig.products_at_once(); ++i) {
    const float2 factor = ptx::load_shared_pair(factors.memory + 32 * i);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int r = i % 2 * 2 + upper;
      to.a[i / 2][r] = numeric::scaled_pair<kConfig.w, kConfig.x>(W::word(codes, i / 2, r),
                                                                  W::half(r), factor.x, factor.y);
    }
  }
}

}  // namespace octofold::weight_only_sm90
