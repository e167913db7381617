// From the sums of gates and ups to the codes of their activation and its scales, a unit of 128
// columns of a row to each. What leaves has the bits of a product to BF16 and a cast of that: gate
// and up are rounded to BF16, so is the activation, which is computed in FP32.
#pragma once

#include "kernels/numeric/activation.h"
#include "kernels/numeric/caster.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/shared_memory.h"
#include "kernels/shared/gemm_params.h"
#include "kernels/shared/product_form.h"
#include "kernels/shared/work.h"

namespace octofold {

// Stores the scale of a row of D, in the tile that begins with a unit.
__device__ inline void store_output_scale(const config::OutputScaleParams& scale,
                                          const config::Tile& tile, int row, float value) {
  scale.data[row * scale.row_stride + tile.column / kScaleBlock * scale.column_stride] = value;
}

// A thread's part of two rows: pairs of neighbours in kEights times eight columns. The four lanes
// that have the others of these eights share the rows.
template <config::GemmConfiguration auto kConfig, int kEights>
class GatedRows {
 public:
  // sum(part, half, eight, i): of the gates (part 0) or the ups, in the upper row or (half 1) the
  // lower one, of the pair's first or second.
  template <typename Sum>
  __device__ void activate(Sum&& sum) {
    of_upper_ = activate_row(0, sum, upper_);
    of_lower_ = activate_row(1, sum, lower_);
  }

  // The largest magnitudes that the four lanes have of both rows, as BF16 in one word, the upper
  // row's below.
  __device__ unsigned amax() const {
    unsigned amax = larger(__byte_perm(of_upper_, of_lower_, 0x5410),
                           __byte_perm(of_upper_, of_lower_, 0x7632));
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      amax = larger(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
    }
    return amax;
  }
  static __device__ unsigned larger(unsigned left, unsigned right) {
    return numeric::larger<DType::kBFloat16>(left, right);
  }

  // The codes into rows of 128 bytes in shared memory under the 128-byte swizzle. `amax`: of the
  // whole units. `row`: where the upper row begins, plus twice the lane's place among the four,
  // plus 16 · (the row's place in the swizzle atom); where the thread's eights begin at a multiple
  // of 16 columns, xor that. Lanes of a warp that store at one time meet in no bank.
  // store_scale(half, scale) is called by one lane for each row.
  template <typename StoreScale>
  __device__ void encode(unsigned amax, unsigned row, StoreScale&& store_scale) const {
    // Two lanes work out each row's scale, and tell the other two.
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const bool has_upper = lane < 2;
    const numeric::UnitCast unit =
        numeric::unit_cast<kGated.rule, DType::kBFloat16, kConfig.form.out, kGated.power_of_two>(
            __uint_as_float(has_upper ? amax << 16 : amax & 0xFFFF0000u));
    const float other = __shfl_xor_sync(0xFFFFFFFFu, unit.operand, 2);
    if (lane % 2 == 0) store_scale(has_upper ? 0 : 1, unit.scale);
    encode_row(has_upper ? unit.operand : other, upper_, row);
    encode_row(has_upper ? other : unit.operand, lower_, row + 8 * 128);
  }

 private:
  static constexpr config::GatedOutput kGated = kConfig.gated;
  using Caster = numeric::Caster<kGated.rule.arithmetic, DType::kBFloat16>;
  using Pairs = unsigned[kEights];

  // Makes the activations of one row, as pairs of BF16. Returns the largest magnitudes.
  template <typename Sum>
  static __device__ unsigned activate_row(int half, Sum&& sum, Pairs& pairs) {
    unsigned magnitudes = 0;
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const unsigned gates = ptx::bfloat16_pair(sum(0, half, j, 0), sum(0, half, j, 1));
      const unsigned ups = ptx::bfloat16_pair(sum(1, half, j, 0), sum(1, half, j, 1));
      float gate[2], up[2];
      numeric::widen<DType::kBFloat16>(&gates, gate);
      numeric::widen<DType::kBFloat16>(&ups, up);
      pairs[j] = ptx::bfloat16_pair(numeric::activate<kGated.activation>(gate[0], up[0]),
                                    numeric::activate<kGated.activation>(gate[1], up[1]));
      magnitudes = larger(magnitudes, numeric::magnitude<DType::kBFloat16>(pairs[j]));
    }
    return magnitudes;
  }

  static __device__ void encode_row(float operand, const Pairs& pairs, unsigned row) {
    const Caster caster = Caster::make(operand);
    if constexpr (Caster::kMayBeUnusual) {
      if (caster.is_unusual()) return encode_pairs<true>(caster, pairs, row);
    }
    encode_pairs<false>(caster, pairs, row);
  }

  template <bool kUnusual>
  static __device__ void encode_pairs(const Caster& caster, const Pairs& pairs, unsigned row) {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      float values[2];
      numeric::widen<DType::kBFloat16, true>(&pairs[j], values);
      caster.template apply<kUnusual>(values);
      const unsigned codes =
          numeric::encode_pair<kConfig.form.out, kGated.saturate>(values[0], values[1]);
      ptx::store_shared_half((row ^ j / 2 * 16) + j % 2 * 8, codes);
    }
  }

  Pairs upper_, lower_;
  unsigned of_upper_, of_lower_;  // largest magnitudes
};

}  // namespace octofold
