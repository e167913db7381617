// Weights and x from shared memory as the operands of a warp's products (kernels/ptx/mma.h), W
// being the first one.
//
// An instruction may multiply any numbers of the depth, in any order, as long as both operands
// agree. Of each half of 128 a lane with t = lane % 4 takes 16 that follow each other, from 64 ·
// half + 16 · t on, four of them in each of four products: a word of codes, which decodes to the
// two registers that a row of the operand has in this lane. So nothing is exchanged between lanes,
// and loads are of 16 bytes.
#pragma once

#include "kernels/numeric/decode_pairs.h"
#include "kernels/ptx/convert.h"
#include "kernels/weight_only/shared_memory.h"

namespace octofold::weight_only {

// Codes of a half, of all columns of a warp.
template <WeightOnlyConfig kConfig>
class Weights {
  using S = Stage<kConfig>;
  static constexpr DType kType = kConfig.factor_type();
  static constexpr int kTiles = kConfig.column_tiles();

 public:
  // The factor that sums are yet to be multiplied by.
  static constexpr float kUnit = kConfig.depth_factors ? 1 : numeric::kPairUnit<kConfig.w>;

  // The column of the block's tile whose number a lane with g = lane / 4 has as row g, or g + 8
  // (`upper`), of an operand. Transposed, a lane has words of four neighbours.
  static __device__ int column(int warp, int tile, int g, int upper) {
    const int first = warp * 16 * kTiles;
    return kConfig.transposed ? first + 4 * g + 2 * tile + upper
                              : first + 16 * tile + g + 8 * upper;
  }

  // The place of this lane's first codes, in the part of a stage that its group of warps has.
  static __device__ unsigned place(int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = column(warp, 0, lane / 4, 0);
    if constexpr (kConfig.transposed) {
      return ptx::opaque(S::w_offset(16 * (lane % 4), first / 16) + first % 16);
    }
    return ptx::opaque(S::w_offset(first, lane % 4));
  }

  __device__ void load(const S& stage, int group, unsigned place, int half) {
    if constexpr (kConfig.transposed) {
      const int unit = static_cast<int>(threadIdx.x) % 4 + 4 * half;
      factors_ = stage.factors() + 4 * (kScaleBlock * group + 16 * unit);
#pragma unroll
      for (int product = 0; product < 4; ++product) {
        unsigned rows[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // Rows that share 128 bytes have changed places; those behind them follow.
          const int other = i % S::kWSharing, further = 64 * half + 4 * product + i - other;
          rows[i] = ptx::load_shared_word(stage.w(group) + (place ^ other * S::kWRowBytes) +
                                          further * S::kWRowBytes);
        }
        // Four codes of each of four rows to four of each of four columns.
        const unsigned low = __byte_perm(rows[0], rows[1], 0x5140);
        const unsigned high = __byte_perm(rows[0], rows[1], 0x7362);
        const unsigned next_low = __byte_perm(rows[2], rows[3], 0x5140);
        const unsigned next_high = __byte_perm(rows[2], rows[3], 0x7362);
        words_[0][0][product] = __byte_perm(low, next_low, 0x5410);
        words_[0][1][product] = __byte_perm(low, next_low, 0x7632);
        words_[1][0][product] = __byte_perm(high, next_high, 0x5410);
        words_[1][1][product] = __byte_perm(high, next_high, 0x7632);
      }
    } else {
      const unsigned first = stage.w(group) + (place ^ 64 * half);  // four units further
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        ptx::load_shared_words(first + 8 * i * S::kWRowBytes, words_[i / 2][i % 2]);
      }
    }
  }

  // Operands of one of the half's four products.
  __device__ void decode(int product, unsigned (&a)[kTiles][4]) const {
    [[maybe_unused]] float4 factors{};
    if constexpr (kConfig.depth_factors) factors = ptx::load_shared_four(factors_ + 16 * product);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int pair = i % 4 / 2;
      const unsigned codes = words_[i / 4][i % 2][product];
      if constexpr (kConfig.depth_factors) {
        a[i / 4][i % 4] = numeric::scaled_pair<kConfig.w, kType>(
            codes, pair, pair == 0 ? factors.x : factors.z, pair == 0 ? factors.y : factors.w);
      } else {
        a[i / 4][i % 4] = numeric::pair_in_units<kConfig.w, kType>(codes, pair);
      }
    }
  }

  // The codes of a row of an operand.
  __device__ unsigned word(int product, int tile, int upper) const {
    return words_[tile][upper][product];
  }

 private:
  unsigned words_[kTiles][2][4];
  unsigned factors_;
};

// Eight rows of x, of which a lane has row g, for the same two products.
template <WeightOnlyConfig kConfig>
struct Rows {
  using S = Stage<kConfig>;
  static constexpr float kUnit = [] {
    if constexpr (is_fp8(kConfig.x)) return numeric::kPairUnit<kConfig.x>;
    return 1.0f;
  }();

  unsigned b[2][2];

  // The place of this lane's first numbers of rows from first_row on, as above. Of fewer than 8
  // rows some come several times; their sums are not used.
  static __device__ unsigned place(int first_row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = first_row + (kConfig.tile_rows < 8 ? lane / 4 % kConfig.tile_rows : lane / 4);
    return ptx::opaque(S::x_offset(row, (is_fp8(kConfig.x) ? 1 : 2) * (lane % 4)));
  }

  // Loads the numbers of tile `tile`, of eight rows each.
  __device__ void load(const S& stage, int group, unsigned place, int tile, int half, int pair) {
    const unsigned first = stage.x(group) + 8 * tile * kConfig.x_row_bytes();
    if constexpr (is_fp8(kConfig.x)) {
      unsigned words[2];
      ptx::load_shared_words(first + (place ^ 64 * half) + 8 * pair, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[i / 2][i % 2] = numeric::float16_pair_in_units<kConfig.x>(words[i / 2], i % 2);
      }
    } else {
      unsigned words[4];
      ptx::load_shared_words(first + (place ^ 16 * pair) + 128 * half, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = words[i];
    }
  }
};

}  // namespace octofold::weight_only
