// Store: the epilogue of gated outputs. A thread has gate and up of the same elements, side by side
// in two sub-tiles. What leaves are FP8 codes, through shared memory as any tile of D, and their
// scales, which threads write to global memory as they are worked out.
//
// SwiGLU takes 944 instructions for each thread and tile, about 1000 clocks of a warpgroup, where a
// stage of K takes 1024. Tried and lost: one warpgroup a stage or two ahead of the other, so that
// its epilogue lies under the other's products (2 to 4 % slower), and an ordered hand-over
// (docs/notes/gemm-sm90.md, "A lead in gated products").
#pragma once

#include "kernels/numeric/activation.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/numeric/vector.h"
#include "kernels/sm90/consumer.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

// A thread's part of one row: pairs of neighbours, eight columns from one to the next.
template <Sm90GemmConfig kConfig>
using RowPairs = unsigned[kConfig.tile_columns / 8];

// The activation of gate and up, both rounded to BF16, as pairs of BF16. Row `half` of the thread's
// two. Returns the largest magnitudes.
template <Sm90GemmConfig kConfig>
__device__ unsigned activate_row(const Accumulators<kConfig>& sums, int half,
                                 RowPairs<kConfig>& pairs) {
  constexpr Activation kActivation = kConfig.gated.activation;
  unsigned magnitudes = 0;
#pragma unroll
  for (int j = 0; j < kConfig.tile_columns / 8; ++j) {
    const float* const gate_sums = &sums[0][4 * j + 2 * half];
    const float* const up_sums = &sums[1][4 * j + 2 * half];
    const unsigned gates = ptx::bfloat16_pair(gate_sums[0], gate_sums[1]);
    const unsigned ups = ptx::bfloat16_pair(up_sums[0], up_sums[1]);
    float gate[2], up[2];
    numeric::widen<DType::kBFloat16>(&gates, gate);
    numeric::widen<DType::kBFloat16>(&ups, up);
    pairs[j] = ptx::bfloat16_pair(numeric::activate<kActivation>(gate[0], up[0]),
                                  numeric::activate<kActivation>(gate[1], up[1]));
    magnitudes = numeric::larger<DType::kBFloat16>(magnitudes,
                                                   numeric::magnitude<DType::kBFloat16>(pairs[j]));
  }
  return magnitudes;
}

// The largest magnitudes of a thread's two rows, which four lanes share, from those of each lane:
// both in one word, the upper row's below.
__device__ inline unsigned amax_of_rows(unsigned of_upper, unsigned of_lower) {
  unsigned amax = numeric::larger<DType::kBFloat16>(__byte_perm(of_upper, of_lower, 0x5410),
                                                    __byte_perm(of_upper, of_lower, 0x7632));
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    amax = numeric::larger<DType::kBFloat16>(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
  }
  return amax;
}

// The codes of a row into the box of the tile, under its 128-byte swizzle: `row` is where that row
// begins, plus the thread's first column, plus 16 · (the row's place in the swizzle atom). Lanes of
// a warp that store at one time meet in no bank.
template <Sm90GemmConfig kConfig, bool kUnusual, typename Caster>
__device__ void encode_row(const Caster& caster, const RowPairs<kConfig>& pairs, unsigned row) {
#pragma unroll
  for (int j = 0; j < kConfig.tile_columns / 8; ++j) {
    float values[2];
    numeric::widen<DType::kBFloat16, true>(&pairs[j], values);
    caster.template apply<kUnusual>(values);
    const unsigned codes =
        numeric::encode_pair<kConfig.form.out, kConfig.gated.saturate>(values[0], values[1]);
    ptx::store_shared_half((row ^ j / 2 * 16) + j % 2 * 8, codes);
  }
}

// Writes the codes of the tile to shared memory as the box that TMA stores, and the scales of its
// rows to global memory.
template <Sm90GemmConfig kConfig>
struct WriteGated : WriteRows<kConfig> {
  static __device__ void write(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                               const Tile& tile, int, const Accumulators<kConfig>& sums) {
    constexpr config::GatedOutput kGated = kConfig.gated;
    using Caster = numeric::Caster<kGated.rule.arithmetic, DType::kBFloat16>;
    static_assert(SharedMemory<kConfig>::kLayout.output_box_columns == 128);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_thread = first_row_of_thread<kConfig>();
    const int first_row = tile.row + row_of_thread;
    // Nothing of this warp is stored.
    if (first_row - lane / 4 >= tile.row_end || tile.column >= tile.column_end) return;

    RowPairs<kConfig> upper, lower;
    const unsigned of_upper = activate_row<kConfig>(sums, 0, upper);
    const unsigned of_lower = activate_row<kConfig>(sums, 1, lower);
    const unsigned amax = amax_of_rows(of_upper, of_lower);

    // Four lanes share both rows. Two of them work out each row's scale, and tell the other two.
    const bool has_upper = lane % 4 < 2;
    const numeric::UnitCast unit =
        numeric::unit_cast<kGated.rule, DType::kBFloat16, kConfig.form.out, kGated.power_of_two>(
            __uint_as_float(has_upper ? amax << 16 : amax & 0xFFFF0000u));
    const float other = __shfl_xor_sync(0xFFFFFFFFu, unit.operand, 2);
    const int row_of_unit = first_row + (has_upper ? 0 : 8);
    if (lane % 2 == 0 && row_of_unit < tile.row_end) {
      params.out_scale.data[row_of_unit * params.out_scale.row_stride +
                            tile.column / kScaleBlock * params.out_scale.column_stride] =
          unit.scale;
    }

    const unsigned row =
        smem.output() + row_of_thread * 128 + 16 * (row_of_thread % 8) + 2 * (lane % 4);
    const auto encode = [&](float operand, const RowPairs<kConfig>& pairs, unsigned target) {
      const Caster caster = Caster::make(operand);
      if constexpr (Caster::kMayBeUnusual) {
        if (caster.is_unusual()) return encode_row<kConfig, true>(caster, pairs, target);
      }
      encode_row<kConfig, false>(caster, pairs, target);
    };
    encode(has_upper ? unit.operand : other, upper, row);
    encode(has_upper ? other : unit.operand, lower, row + 8 * 128);
  }
};

}  // namespace octofold::sm90
