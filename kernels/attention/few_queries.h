// Attention of few queries, up to 32 rows to a sequence and key head: bound by memory. A block has
// 16 rows of a sequence and key head. The keys are split among its warps, and among blocks where
// these would not fill the GPU. A warp walks by itself: it copies the codes of 32 keys and values
// to its part of shared memory, several such stages ahead, and decodes them in registers. The block
// has no barrier until its warps add up at the end, in their order.
//
// The order in which a product takes its k is free as long as both operands agree. So a lane takes
// 16 bytes of a key at once, which are pairs for four products, and queries are loaded accordingly.
// Of values it takes 8 bytes of four keys, which make columns of eight products.
//
// H200, 64 sequences of 8192 keys: predicted 300 µs, came 270, and 250 without splits, which many
// sequences no longer have. Copies written out in full kept an address for each, took 255 registers
// and spilled at a head size of 256; unrolled by two they take 157. BF16 queries take 17 % longer
// as 8.0, where they decode by way of FP32 (docs/notes/attention.md).
#pragma once

#include "kernels/attention/config/attention.h"
#include "kernels/attention/keys.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/numeric/decode_pairs.h"
#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mma.h"

namespace octofold {
namespace attention {

using config::FewQueriesConfig;

template <FewQueriesConfig kConfig>
class FewQueries {
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kKeyBytes = kConfig.key_row_bytes();
  static constexpr int kValueBytes = kConfig.value_row_bytes();
  // Values that are numbers of the keys are in rows of keys.
  static constexpr int kValueRowBytes = kForm.shared_latent ? kKeyBytes : kValueBytes;
  static constexpr int kKeySections = kKeyBytes / 64;  // of 64 numbers of a row
  static constexpr int kValueSections = kValueBytes / 64;
  static constexpr int kTiles = kKeys / 8;
  static constexpr int kSums = kValueBytes / 8;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kWarps = kConfig.warps;
  static constexpr bool kScales = kForm.k_scales || kForm.v_scales;

 public:
  __device__ explicit FewQueries(const AttentionParams& params)
      : params_(params),
        rows_(rows_of_block<kConfig.rows(), kForm.row_count>(params)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  __device__ void run() {
    if (rows_.first >= rows_.end) return;
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
    const SideRows<kForm.layout> key_rows(params_, params_.k, rows_.sequence, first_key,
                                          rows_.key_head);
    const SideRows<kForm.layout> value_rows(params_, params_.v, rows_.sequence, first_key,
                                            rows_.key_head);
    sight_ = sight_of<kConfig.rows()>(params_, rows_, keys);
    const ScoreFactor factor = score_factor<kForm>(params_, rows_.key_head);
    factor_ = factor.magnitude;
    load_queries(factor.flips);
    // Steps of 32 keys: those of the block that none of its rows sees are left out, and of the rest
    // it has a part.
    const Range steps = tiles_of<kForm, kKeys>(params_, rows_, sight_.any);
    for_each_part<kForm, kKeys>(rows_, steps, [&](Range part) {
      if constexpr (kForm.adds_parts()) {
        __syncthreads();  // shared memory is used anew
        state_ = {};
        clear(sums_);
      }
      walk(key_rows, value_rows, keys, part);
      merge();
    });
  }

 private:
  // Warps take steps in turn: which one is a matter of the step's keys, not of the first that any
  // row sees.
  __device__ void walk(const SideRows<kForm.layout>& key_rows,
                       const SideRows<kForm.layout>& value_rows, int keys, Range steps) {
    const int end = steps.end;
    int step = (steps.begin + kWarps - 1 - warp_) / kWarps * kWarps + warp_;
    int copied = step;
    page_ = page_of_step(copied);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage, copied += kWarps) {
      copy(key_rows, value_rows, copied, end, stage);
    }
    const Range seen[2] = {seen_by_row(params_, rows_, rows_.first + g_, keys),
                           seen_by_row(params_, rows_, rows_.first + g_ + 8, keys)};
    int stage = 0;
#pragma unroll 1
    for (; step < end; step += kWarps, copied += kWarps) {
      ptx::copies_wait<kStages - 1>();
      __syncwarp();
      add(step * kKeys, stage, seen);
      __syncwarp();
      copy(key_rows, value_rows, copied, end, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    // Shared memory is used anew.
    ptx::copies_wait<0>();
  }

  // The page of the key of a step that is this lane's.
  __device__ int page_of_step(int step) const {
    const int key = step * kKeys + lane_;
    if (key < sight_.any.begin || key >= sight_.any.end) return 0;
    return page_of<kForm.layout>(params_, rows_.sequence, key);
  }

  __device__ unsigned stage_address(int stage) const {
    return memory_ + static_cast<unsigned>((warp_ * kStages + stage) * kConfig.stage_bytes());
  }
  // 16 bytes of a row. Neighbouring rows have them in other banks: lanes read 64 bytes of rows
  // 2i and 2i + 1 at one time, or 32 bytes of rows 2i, 2i + 2, 2i + 4 and 2i + 6. Two rows that end
  // between lines of 128 bytes are one.
  template <int kRowBytes>
  static __device__ unsigned place(int row, int chunk) {
    if constexpr (kRowBytes % 128 == 0) {
      const int turned = chunk ^ (row & 6) ^ (row & 1) << 2;
      return static_cast<unsigned>(row * kRowBytes + turned * 16);
    }
    const int of_two = (row & 1) * (kRowBytes / 16) + chunk;
    return static_cast<unsigned>((row & ~1) * kRowBytes + (of_two ^ (row & 6)) * 16);
  }

  // Starts the copies of a step; of zeros beyond the end.
  __device__ void copy(const SideRows<kForm.layout>& key_rows,
                       const SideRows<kForm.layout>& value_rows, int step, int end, int stage) {
    const int first = step * kKeys, page = page_;
    const unsigned address = stage_address(stage);
    const Range exist = step < end ? sight_.any : Range{0, 0};
    constexpr int kUnit = kForm.unit();
    constexpr int kUnits = (kKeyBytes > kValueBytes ? kKeyBytes : kValueBytes) / kUnit;
// All of them at once would keep their addresses in registers.
#pragma unroll kForm.copy_bytes >= 8 ? 2 : 1
    for (int i = 0; i < kUnits * kKeys / 32; ++i) {
      const int index = lane_ + 32 * i;
      const int row = index / kUnits, at = index % kUnits * kUnit, key = first + row;
      int page_of_row = 0;
      if constexpr (kForm.layout == KeyLayout::kPaged) {
        page_of_row = __shfl_sync(0xFFFFFFFFu, page, row);
      }
      const bool exists = key >= exist.begin && key < exist.end;
      if (at < kKeyBytes) {
        const unsigned to = address + place<kKeyBytes>(row, at / 16);
        copy_codes<kForm.copy_bytes>(to + static_cast<unsigned>(at % 16),
                                     key_rows.row(key, page_of_row) + at,
                                     exists && at < kForm.head_size);
      }
      if (!kForm.shared_latent && at < kValueBytes) {
        const unsigned to = address + kConfig.values_offset() + place<kValueBytes>(row, at / 16);
        copy_codes<kForm.copy_bytes>(to + static_cast<unsigned>(at % 16),
                                     value_rows.row(key, page_of_row) + at,
                                     exists && at < kForm.value_size);
      }
    }
    if (kScales && lane_ < kKeys) {
      const int key = first + lane_;
      const bool exists = key >= exist.begin && key < exist.end;
      const unsigned to = address + kConfig.scales_offset() + static_cast<unsigned>(4 * lane_);
      if constexpr (kForm.k_scales) {
        ptx::copy_async<4, true>(to, key_rows.scale(key, page), exists);
      }
      if constexpr (kForm.v_scales) {
        ptx::copy_async<4, true>(to + 4 * kKeys, value_rows.scale(key, page), exists);
      }
    }
    page_ = page_of_step(step + kWarps);
    ptx::copies_commit();
  }

  // Stores queries as the A of products over 16 numbers of each row: a lane has a part of rows g
  // and g + 8. All warps have the same; each takes its share of making it.
  __device__ void load_queries(bool flip) const {
    for (int eighth = warp_; eighth < 2 * kKeySections; eighth += kWarps) {
      unsigned words[2][4];
      const int first = eighth / 2 * 64 + 16 * t_ + eighth % 2 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_query<kForm.head_size>(params_, rows_, rows_.first + g_ + 8 * i, first, flip,
                                    words[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        ptx::store_shared_words(query_address(2 * eighth + i / 2),
                                {words[0][i], words[1][i], words[0][i + 1], words[1][i + 1]});
      }
    }
    __syncthreads();
  }
  __device__ unsigned query_address(int product) const {
    return memory_ + static_cast<unsigned>(kConfig.queries_offset() + (product * 32 + lane_) * 16);
  }

  __device__ void add(int first_key, int stage, const Range (&seen)[2]) {
    const unsigned address = stage_address(stage);
    float scores[kTiles][4] = {};
#pragma unroll
    for (int section = 0; section < kKeySections; ++section) {
      unsigned queries[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::load_shared_words(query_address(4 * section + i), queries[i]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned words[4];
        ptx::load_shared_words(address + place<kKeyBytes>(8 * tile + g_, 4 * section + t_), words);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned pairs[2] = {numeric::pair_in_units<kForm.k, kForm.q>(words[i], 0),
                                     numeric::pair_in_units<kForm.k, kForm.q>(words[i], 1)};
          ptx::multiply_add<kForm.q>(scores[tile], queries[i], pairs);
        }
      }
    }
    const unsigned scales = address + kConfig.scales_offset();
    if constexpr (kForm.k_scales) {
      float key_scales[kTiles][2];
      load_scales(scales, key_scales);
      multiply_by_scales(scores, key_scales);
    }
    if (first_key < sight_.all.begin || first_key + kKeys > sight_.all.end ||
        rows_.first + kConfig.rows() > rows_.end) {
      mask(scores, 0, first_key, seen[0]);
      mask(scores, 1, first_key, seen[1]);
    }
    float rescale[2];
    weigh(scores, factor_, state_, rescale);
    if constexpr (kForm.v_scales) {
      multiply_by_value_scales(scores, scales + 4 * kKeys, state_, rescale, first_key, seen);
    }
    // Maxima soon stay as they are.
    if (numeric::max_of_lanes(rescale[0] != 1 || rescale[1] != 1 ? 1u : 0u) != 0) {
      rescale_sums(sums_, rescale);
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      unsigned weights[4];
      weights_of<kForm.q>(scores, step, weights);
#pragma unroll
      for (int section = 0; section < kValueSections; ++section) {
        add_values(address + kConfig.values_offset(), 16 * step + 2 * t_, section, weights);
      }
    }
  }

  // Adds values of keys `key`, key + 1, key + 8 and key + 9, and of those of other lanes.
  __device__ void add_values(unsigned address, int key, int section, const unsigned (&weights)[4]) {
    unsigned words[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = key + i % 2 + i / 2 * 8;
      ptx::load_shared_words(address + place<kValueRowBytes>(row, 4 * section + g_ / 2) +
                                 static_cast<unsigned>(g_ % 2 * 8),
                             words[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int two = 0; two < 2; ++two) {
        const unsigned selection = two == 0 ? 0x5140u : 0x7362u;
        const unsigned low = __byte_perm(words[0][half], words[1][half], selection);
        const unsigned high = __byte_perm(words[2][half], words[3][half], selection);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const unsigned pairs[2] = {numeric::pair_in_units<kForm.v, kForm.q>(low, pair),
                                     numeric::pair_in_units<kForm.v, kForm.q>(high, pair)};
          ptx::multiply_add<kForm.q>(sums_[8 * section + 4 * half + 2 * two + pair], weights,
                                     pairs);
        }
      }
    }
  }

  // The place of 16 bytes of a row of sums, four numbers, likewise in banks of their own.
  static __device__ unsigned sums_place(int row, int chunk) {
    const int turned = chunk ^ (chunk >> 3 & 1) ^ (row & 1) << 1;
    return static_cast<unsigned>(row * 4 * kValueBytes + turned * 16);
  }

  // Adds up what the warps have, and stores it.
  __device__ void merge() {
    __syncthreads();
    const unsigned own = memory_ + static_cast<unsigned>(warp_ * kConfig.rows() * 4 * kValueBytes);
    const unsigned states = memory_ + static_cast<unsigned>(kConfig.sums_bytes());
    const float weights[2] = {sum_of_quad(state_.sum[0]), sum_of_quad(state_.sum[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = g_ + 8 * i;
      if (rows_.first + row >= rows_.end) continue;
      if (t_ == 0) {
        const unsigned to = states + static_cast<unsigned>((warp_ * kConfig.rows() + row) * 12);
        ptx::store_shared_word(to, __float_as_uint(state_.maximum[i]));
        ptx::store_shared_word(to + 4, __float_as_uint(weights[i]));
        ptx::store_shared_word(to + 8, __float_as_uint(state_.unit(i)));
      }
#pragma unroll
      for (int chunk = 0; chunk < kSums / 2; ++chunk) {
        // Numbers 16 t + 4 (chunk % 4) to + 3 of a section: columns 2t of tiles, then 2t + 1.
        const int quarter = chunk % 4, tile = chunk / 4 * 8 + quarter % 2 * 4;
        unsigned words[4];
#pragma unroll
        for (int number = 0; number < 4; ++number) {
          words[number] = __float_as_uint(sums_[tile + number][2 * i + quarter / 2]);
        }
        ptx::store_shared_words(own + sums_place(row, chunk / 4 * 16 + 4 * t_ + quarter), words);
      }
    }
    __syncthreads();
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
    const int count = min(kConfig.rows(), rows_.end - rows_.first);
    constexpr int kPairs = kForm.value_size / 2;
    for (int pair = static_cast<int>(threadIdx.x); pair < count * kPairs;
         pair += kConfig.threads()) {
      merge_pair(states, pair / kPairs, pair % kPairs * 2, v_factor);
    }
  }

  __device__ void merge_pair(unsigned states, int row, int dim, float v_factor) {
    const auto state_of = [&](int warp, int field) {
      return ptx::load_shared(
          states + static_cast<unsigned>((warp * kConfig.rows() + row) * 12 + 4 * field));
    };
    float maximum = -infinity();
    for (int warp = 0; warp < kWarps; ++warp) maximum = fmaxf(maximum, state_of(warp, 0));
    const float shift = maximum == -infinity() ? 0 : __fmul_rn(maximum, factor_);
    float sum = 0, first = 0, second = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const float share = rescale_of(state_of(warp, 0), factor_, shift);
      // A warp that has seen nothing may have met NaN in values. One whose scores are all NaN has
      // no maximum either, but has NaN for its sum.
      const float weight = state_of(warp, 1);
      if (share == 0 && weight == weight) continue;
      const float in_units = __fmul_rn(share, __fmul_rn(state_of(warp, 2), v_factor));
      const unsigned sums =
          memory_ + static_cast<unsigned>(warp * kConfig.rows() * 4 * kValueBytes);
      const float2 pair = ptx::load_shared_pair(sums + sums_place(row, dim / 4) +
                                                static_cast<unsigned>(dim % 4 * 4));
      sum = __fmaf_rn(weight, share, sum);
      first = __fmaf_rn(pair.x, in_units, first);
      second = __fmaf_rn(pair.y, in_units, second);
    }
    const RowEnd<kForm> row_end(params_, rows_, rows_.first + row,
                                state_of_row(maximum, factor_, sum));
    store_pair<kForm>(params_, rows_, rows_.first + row, dim, first, second, row_end);
    if (dim == 0) store_state<kForm>(params_, rows_, rows_.first + row, row_end);
  }

  const AttentionParams& params_;
  Rows rows_;
  const int warp_, lane_, g_, t_;
  const unsigned memory_ = ptx::dynamic_shared_memory();
  Sight sight_{};
  float factor_ = 1;
  int page_ = 0;
  float sums_[kSums][4] = {};
  RowState<kForm> state_;
};

}  // namespace attention

template <config::FewQueriesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    few_queries_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  attention::FewQueries<kConfig>(params).run();
}

}  // namespace octofold
