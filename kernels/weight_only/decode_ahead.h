// The sums of a warp by tensor cores, of many rows: while products of 32 numbers of the depth go
// on, weights of the next 32 are loaded and decoded, a part of them beside the products of each
// eight rows.
//
// An instruction may multiply any numbers of the depth, in any order, as long as both operands
// agree. Of 32 a lane with t = lane % 4 takes the eight from 8 · t on, four for each of two
// products: a word of codes, which decodes to the two registers that a row of the operand has in
// this lane.
#pragma once

#include "kernels/numeric/decode_pairs.h"
#include "kernels/ptx/mma.h"
#include "kernels/weight_only/products.h"

namespace octofold::weight_only {

// Operands of two products, of all columns of a warp.
template <WeightOnlyConfig kConfig>
using Operands = unsigned[2][kConfig.column_tiles()][4];

// Codes become operands in kSlices parts, of one row in eight of the operand or, transposed, of a
// word's four columns.
template <WeightOnlyConfig kConfig>
class Slices {
  using S = Stage<kConfig>;
  static constexpr int kTiles = kConfig.column_tiles();

 public:
  static constexpr int kCount = kConfig.transposed ? kTiles : 2 * kTiles;
  using Codes = unsigned[kConfig.transposed ? 4 : 2];

  // The column of the warp's whose number a lane with g = lane / 4 has as row g, or g + 8
  // (`upper`), of a tile's operand.
  static __device__ int column(int tile, int g, int upper) {
    return kConfig.transposed ? 32 * (tile / 2) + 4 * g + 2 * (tile % 2) + upper
                              : 16 * tile + g + 8 * upper;
  }

  // The place of this lane's first codes.
  static __device__ unsigned place(int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int first = warp * 16 * kTiles;
    const unsigned of_lane = kConfig.transposed
                                 ? S::w_offset(8 * t, (first + 4 * g) / 16) + 4 * g % 16
                                 : S::w_offset(first + g, t / 2) + 8 * (t % 2);
    return ptx::opaque(of_lane);
  }

  // `first`: place() in a stage; which 32 of the stage's depth.
  static __device__ void load(unsigned first, int half, int slice, Codes& codes) {
    if constexpr (kConfig.transposed) {
      const unsigned from = (first ^ 32 * (slice / 2));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 32 * half + 4 * (slice % 2) + i;
        codes[i] = ptx::load_shared_word(from + row * S::kWRowBytes);
      }
    } else {
      ptx::load_shared_words((first ^ 32 * half) + 8 * slice * S::kWRowBytes, codes);
    }
  }

  static __device__ void decode(const Codes& codes, int slice, Operands<kConfig>& operands,
                                unsigned& marks) {
#pragma unroll
    for (const unsigned word : codes) numeric::mark_nan<kConfig.w, kConfig.x>(word, marks);
    if constexpr (kConfig.transposed) {
      // Four codes of each of four rows to four of each of four columns.
      const unsigned low = __byte_perm(codes[0], codes[1], 0x5140);
      const unsigned high = __byte_perm(codes[0], codes[1], 0x7362);
      const unsigned next_low = __byte_perm(codes[2], codes[3], 0x5140);
      const unsigned next_high = __byte_perm(codes[2], codes[3], 0x7362);
      const int product = slice % 2, tile = slice / 2 * 2;
      decode_word(__byte_perm(low, next_low, 0x5410), 0, operands[product][tile]);
      decode_word(__byte_perm(low, next_low, 0x7632), 1, operands[product][tile]);
      decode_word(__byte_perm(high, next_high, 0x5410), 0, operands[product][tile + 1]);
      decode_word(__byte_perm(high, next_high, 0x7632), 1, operands[product][tile + 1]);
    } else {
      decode_word(codes[0], slice % 2, operands[0][slice / 2]);
      decode_word(codes[1], slice % 2, operands[1][slice / 2]);
    }
  }

 private:
  static __device__ void decode_word(unsigned word, int upper, unsigned (&operand)[4]) {
    operand[upper] = ptx::opaque(numeric::finite_pair<kConfig.w, kConfig.x>(word, 0));
    operand[upper + 2] = ptx::opaque(numeric::finite_pair<kConfig.w, kConfig.x>(word, 1));
  }
};

template <WeightOnlyConfig kConfig>
class AheadProduct {
  using S = Stage<kConfig>;
  using W = Slices<kConfig>;
  static constexpr int kColumnTiles = kConfig.column_tiles();
  static constexpr int kRowTiles = kConfig.row_tiles();

 public:
  // The factor that sums are yet to be multiplied by once they are stored, as other kernels' are.
  static constexpr float kUnit = numeric::kPairUnit<kConfig.w>;

  // Operands of a stage's first 32.
  __device__ void load_first(const S& stage) {
#pragma unroll
    for (int slice = 0; slice < W::kCount; ++slice) {
      typename W::Codes codes;
      W::load(stage.address + w_place_, 0, slice, codes);
      W::decode(codes, slice, operands_[0], marks_);
    }
    load_rows(stage, 0, 0, rows_[0]);
  }

  // Adds the products of one half of a stage, whose operands have been loaded; loads those of the
  // other half, which `next` has. Between them: beside.template operator()<row>() for each eight
  // rows.
  template <int kHalf, int kRow = 0, typename Beside>
  __device__ void multiply(const S& stage, const S& next, Beside&& beside) {
    constexpr int kOther = 1 - kHalf, kNow = (kHalf * kRowTiles + kRow) % 2;
    constexpr int kFirst = kRow * W::kCount / kRowTiles;
    constexpr int kSlices = (kRow + 1) * W::kCount / kRowTiles - kFirst;
    typename W::Codes codes[kSlices == 0 ? 1 : kSlices];
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      W::load(next.address + w_place_, kOther, kFirst + i, codes[i]);
    }
    if constexpr (kRow + 1 < kRowTiles) {
      load_rows(stage, kHalf, kRow + 1, rows_[1 - kNow]);
    } else {
      load_rows(next, kOther, 0, rows_[1 - kNow]);
    }
#pragma unroll
    for (int i = 0; i < 2 * kColumnTiles; ++i) {
      const int product = i / kColumnTiles, column = i % kColumnTiles;
      const unsigned b[2] = {rows_[kNow][2 * product], rows_[kNow][2 * product + 1]};
      ptx::multiply_add<kConfig.x>(sums_[column][kRow], operands_[kHalf][product][column], b);
    }
    beside.template operator()<kRow>();
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      W::decode(codes[i], kFirst + i, operands_[kOther], marks_);
    }
    if constexpr (kRow + 1 < kRowTiles) multiply<kHalf, kRow + 1>(stage, next, beside);
  }

  // True if there were codes that are NaN, and counted as numbers.
  __device__ bool met_nan() const { return numeric::has_nan(marks_); }

  // Before a step whose scales are others.
  __device__ void change_units(const S& stage) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kColumnTiles; ++i) {
      const int column = first_column() + W::column(i / 2, g, i % 2);
      const float factor = ptx::load_shared(stage.column_scales() + 4 * column);
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row) {
        float& sum = sums_[i / 2][row / 2][2 * (i % 2) + row % 2];
        sum = __fmul_rn(sum, factor);
      }
    }
  }

  // `units`: those of the columns' sums, in shared memory.
  __device__ void store(unsigned memory, unsigned units) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int column = first_column() + W::column(tile, lane / 4, upper);
        const float unit = ptx::load_shared(units + 4 * column) * kInUnits;
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          const int row = 8 * (part_.rows * kRowTiles + i / 2) + lane % 4 * 2 + i % 2;
          const float sum = __fmul_rn(sums_[tile][i / 2][2 * upper + i % 2], unit);
          ptx::store_shared_word(sum_address<kConfig>(memory, 0, row, column),
                                 __float_as_uint(sum));
        }
      }
    }
  }

 private:
  static constexpr float kInUnits = numeric::kFinitePairUnit<kConfig.w, kConfig.x> / kUnit;
  using Rows = unsigned[4];  // of x: of 32 numbers along the depth eight in a lane, for row g

  __device__ int first_column() const { return part_.columns * 16 * kColumnTiles; }

  __device__ unsigned x_place() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = 8 * part_.rows * kRowTiles + lane / 4;
    return ptx::opaque(kConfig.w_bytes() + S::x_offset(row, lane % 4));
  }

  __device__ void load_rows(const S& stage, int half, int tile, Rows& rows) const {
    ptx::load_shared_words(
        stage.address + (x_place_ ^ 64 * half) + 8 * tile * kConfig.x_row_bytes(), rows);
  }

  const Part<kConfig> part_ = Part<kConfig>::of_warp();
  const unsigned w_place_ = W::place(part_.columns), x_place_ = x_place();
  Operands<kConfig> operands_[2];  // of each half
  Rows rows_[2];
  unsigned marks_ = 0;
  float sums_[kColumnTiles][kRowTiles][4] = {};
};

}  // namespace octofold::weight_only
