// Attention of heads beyond 256, whose sums a warp cannot hold: heads of 512, and DeepSeek's latent
// of 576 numbers, the first 512 of which are values. All warps of a block have the same 16 to 64
// rows, and each the sums of its own columns of values. A tile of keys goes through the block in
// three steps, between barriers:
//
//   1. scores, each warp those of some rows and keys over a part of the numbers, to shared memory;
//   2. the softmax, some lanes to a row, which add the parts up: weights, to shared memory;
//   3. sums of weighted values, each warp of its columns.
//
// Keys and values are decoded once for the block (tiles.h). With two buffers that happens beside
// step 2, and step 1 of the next tile is beside step 3. Where values are numbers of the keys
// (shared_latent), step 3 reads them from the tile of keys.
#pragma once

#include "kernels/attention/config/wide_heads.h"
#include "kernels/attention/output.h"
#include "kernels/attention/softmax.h"
#include "kernels/attention/tiles.h"
#include "kernels/numeric/lanes.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/mma.h"

namespace octofold {
namespace attention {

using config::WideHeadsConfig;

template <WideHeadsConfig kConfig>
class WideHeads {
  using KeyTiles = Tiles<kConfig>;
  static constexpr AttentionForm kForm = kConfig.form;
  static constexpr int kKeys = kConfig.keys;
  static constexpr int kParts = kConfig.parts;
  static constexpr int kRowTiles = kConfig.row_tiles;
  static constexpr unsigned kKeyBytes = kConfig.key_row_bytes();
  static constexpr unsigned kValueBytes = kConfig.value_row_bytes();
  static constexpr unsigned kScoreBytes = kConfig.score_row_bytes();
  static constexpr unsigned kWeightBytes = kConfig.weight_row_bytes();
  // A warp's shares in step 1: tiles of 16 rows, tiles of 8 keys, steps of 16 numbers.
  static constexpr int kScoreRowTiles = kConfig.score_rows() / 16;
  static constexpr int kScoreKeyTiles = kConfig.score_keys() / 8;
  static constexpr int kKeySteps = kConfig.key_steps();
  // In step 3: of 16 columns.
  static constexpr int kValueSteps = kConfig.value_steps();
  // Lanes that share a row in step 2, and pairs of keys of a lane.
  static constexpr int kRowLanes = kConfig.row_lanes();
  static constexpr int kPairs = kKeys / (2 * kRowLanes);

 public:
  __device__ explicit WideHeads(const AttentionParams& params)
      : params_(params),
        rows_(rows_of_block<kConfig.rows(), kForm.row_count>(params)),
        warp_(static_cast<int>(threadIdx.x / 32)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() {
    if (rows_.first >= rows_.end) return;
    int first_key;
    const int keys = count_keys<kForm.layout>(params_, rows_.sequence, first_key);
    const Sight sight = sight_of<kConfig.rows()>(params_, rows_, keys);
    const ScoreFactor factor = score_factor<kForm>(params_, rows_.key_head);
    factor_ = factor.magnitude;
    const KeyTiles tiles(params_, rows_, first_key, sight.any);
    const Range all = tiles_of<kForm, kKeys>(params_, rows_, sight.any);
    for_each_part<kForm, kKeys>(rows_, all, [&](Range part) {
      if (kForm.adds_parts() && rows_.parts_before > 0) begin_part();
      walk(tiles, part, sight, factor.flips, keys);
      store();
    });
  }

 private:
  __device__ void begin_part() {
    __syncthreads();  // what the softmax knew of the rows has been read
    maximum_ = -infinity();
    sum_ = 0;
    unit_ = kFirstUnit<kForm>;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) clear(sums_[i]);
  }

  __device__ void walk(const KeyTiles& tiles, Range part, const Sight& sight, bool flip, int keys) {
    int first = part.begin * kKeys, buffer = 0;
    const int end = part.end * kKeys;
    const auto decode = [&](int next, int to) {
      if (next >= end) return;
      if constexpr (kConfig.ahead) {
        ptx::copies_wait<0>();
        tiles.decode(to);
        if (next + kKeys < end) tiles.copy(next + kKeys);
      } else {
        tiles.copy_and_decode(next, to);
      }
    };
    if (kConfig.ahead && first < end) tiles.copy(first);
    if (!kForm.adds_parts() || rows_.parts_before == 0) {
      copy_queries<kConfig>(params_, rows_, memory_, flip);
    }
    decode(first, 0);
    __syncthreads();
    if (first < end) multiply_keys(0);
    constexpr bool kBeside = kConfig.buffers == 2;
#pragma unroll 1
    for (; first < end; first += kKeys) {
      const int next = first + kKeys;
      __syncthreads();  // scores are there
      weigh(first, buffer, first < sight.all.begin || next > sight.all.end, keys);
      if constexpr (kBeside) decode(next, buffer ^ 1);
      __syncthreads();  // weights are there
      if constexpr (kBeside) {
        if (next < end) multiply_keys(buffer ^ 1);
        multiply_values(buffer);
        buffer ^= 1;
      } else {
        multiply_values(0);
        if (next >= end) break;
        __syncthreads();  // products of the numbers are done
        decode(next, 0);
        __syncthreads();
        multiply_keys(0);
      }
    }
  }

  // Step 1: products of a warp's rows and keys over its part of the numbers.
  __device__ void multiply_keys(int buffer) const {
    const int part = warp_ % kParts, group = warp_ / kParts;
    const auto first_row =
        static_cast<unsigned>(group % kConfig.row_groups() * kConfig.score_rows());
    const auto first_key =
        static_cast<unsigned>(group / kConfig.row_groups() * kConfig.score_keys());
    const auto first_number = static_cast<unsigned>(32 * part * kKeySteps);
    const unsigned queries = row_first<kKeyBytes>(memory_ + first_row * kKeyBytes) + first_number;
    const unsigned keys =
        number_first<kKeyBytes>(KeyTiles::keys(buffer) + first_key * kKeyBytes) + first_number;
    constexpr bool kEven = kParts * kKeySteps * 16 == kConfig.key_numbers();
    float scores[kScoreRowTiles][kScoreKeyTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if (!kEven && 16 * (part * kKeySteps + step) >= kConfig.key_numbers()) break;
      unsigned a[kScoreRowTiles][4], b[kScoreKeyTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kScoreRowTiles; ++i) {
        ptx::load_matrices(queries + static_cast<unsigned>(16 * i) * kKeyBytes + 32u * step, a[i]);
      }
#pragma unroll
      for (int i = 0; i < kScoreKeyTiles / 2; ++i) {
        ptx::load_matrices(keys + static_cast<unsigned>(16 * i) * kKeyBytes + 32u * step, b[i]);
      }
#pragma unroll
      for (int i = 0; i < kScoreKeyTiles * kScoreRowTiles; ++i) {
        const int tile = i / kScoreRowTiles, row = i % kScoreRowTiles;
        const unsigned pair[2] = {b[tile / 2][tile % 2 * 2], b[tile / 2][tile % 2 * 2 + 1]};
        ptx::multiply_add<kForm.q>(scores[row][tile], a[row], pair);
      }
    }
    const auto row = static_cast<unsigned>(part * kConfig.rows() + lane_ / 4) + first_row;
    const auto key = static_cast<unsigned>(lane_ % 4 * 2) + first_key;
#pragma unroll
    for (int i = 0; i < 2 * kScoreRowTiles; ++i) {
#pragma unroll
      for (int tile = 0; tile < kScoreKeyTiles; ++tile) {
        const float (&own)[4] = scores[i / 2][tile];
        ptx::store_shared(score_address(row + 8u * i, key + 8u * tile),
                          {own[i % 2 * 2], own[i % 2 * 2 + 1]});
      }
    }
  }
  __device__ unsigned score_address(unsigned row, unsigned key) const {
    return memory_ + kConfig.scores_offset() + row * kScoreBytes + 4 * key;
  }

  // Step 2: the row of this lane and its neighbours; pair i of its keys begins with key 2 · (own
  // lane + i · kRowLanes).
  __device__ int own_row() const { return static_cast<int>(threadIdx.x) / kRowLanes; }
  static __device__ unsigned own_key(int pair) {
    return 2 * (threadIdx.x % kRowLanes) + static_cast<unsigned>(2 * kRowLanes * pair);
  }
  template <typename Choose>
  static __device__ float of_row(float value, Choose&& choose) {
#pragma unroll
    for (int step = 1; step < kRowLanes; step *= 2) {
      value = choose(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    }
    return value;
  }
  static __device__ float max_of_row(float value) {
    return of_row(value, [](float left, float right) { return fmaxf(left, right); });
  }

  __device__ void weigh(int first_key, int buffer, bool is_masked, int keys) {
    float scores[kPairs][2];
    load_scores(scores, buffer);
    Range seen{0, keys};
    if (is_masked) {
      seen = seen_by_row(params_, rows_, rows_.first + own_row(), keys);
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        if (!is_seen(first_key, i, seen)) scores[i / 2][i % 2] = -infinity();
      }
    }
    float maximum = maximum_;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      maximum = fmaxf(maximum, fmaxf(scores[i][0], scores[i][1]));
    }
    maximum = max_of_row(maximum);
    // If nothing was seen so far, all weights are 2^-infinity.
    const float shift = maximum == -infinity() ? 0 : __fmul_rn(maximum, factor_);
    float rescale = rescale_of(maximum_, factor_, shift);
    maximum_ = maximum;
    sum_ = __fmul_rn(sum_, rescale);
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      float& score = scores[i / 2][i % 2];
      score = ptx::exp2(__fmaf_rn(score, factor_, -shift));
      sum_ = __fadd_rn(sum_, score);
    }
    if constexpr (kForm.v_scales) {
      multiply_by_value_scales(scores, buffer, rescale, first_key, seen);
    }
    const unsigned weights = weight_address(static_cast<unsigned>(own_row()));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      unsigned word;
      numeric::narrow<kForm.q, false>(scores[i], &word);
      ptx::store_shared_word(weights + 2 * own_key(i), word);
    }
    if (threadIdx.x % kRowLanes == 0) {
      ptx::store_shared_word(factor_address(static_cast<unsigned>(own_row())),
                             __float_as_uint(rescale));
    }
  }

  // True if the row sees the lane's key i of a tile.
  static __device__ bool is_seen(int first_key, int i, const Range& seen) {
    const int key = first_key + static_cast<int>(own_key(i / 2)) + i % 2;
    return key >= seen.begin && key < seen.end;
  }

  __device__ void load_scores(float (&scores)[kPairs][2], int buffer) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float2 pair =
          ptx::load_shared_pair(score_address(static_cast<unsigned>(own_row()), own_key(i)));
#pragma unroll
      for (int part = 1; part < kParts; ++part) {
        const float2 more = ptx::load_shared_pair(
            score_address(static_cast<unsigned>(part * kConfig.rows() + own_row()), own_key(i)));
        pair.x = __fadd_rn(pair.x, more.x);
        pair.y = __fadd_rn(pair.y, more.y);
      }
      if constexpr (kForm.k_scales) {
        const float2 scales = ptx::load_shared_pair(KeyTiles::key_scales(buffer) + 4 * own_key(i));
        pair.x = __fmul_rn(pair.x, scales.x);
        pair.y = __fmul_rn(pair.y, scales.y);
      }
      scores[i][0] = pair.x;
      scores[i][1] = pair.y;
    }
  }

  // Their unit is that of all keys of the tile, with parts of those that the row sees.
  __device__ void multiply_by_value_scales(float (&weights)[kPairs][2], int buffer, float& rescale,
                                           int first_key, const Range& seen) {
    float2 scales[kPairs];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      scales[i] = ptx::load_shared_pair(KeyTiles::value_scales(buffer) + 4 * own_key(i));
      if constexpr (kForm.part_keys > 0) {
        if (!is_seen(first_key, 2 * i, seen)) scales[i].x = 0;
        if (!is_seen(first_key, 2 * i + 1, seen)) scales[i].y = 0;
      }
      largest = fmaxf(largest, fmaxf(fabsf(scales[i].x), fabsf(scales[i].y)));
    }
    const Unit unit(unit_, max_of_row(largest));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      weights[i][0] = __fmul_rn(weights[i][0], __fmul_rn(scales[i].x, unit.inverse));
      weights[i][1] = __fmul_rn(weights[i][1], __fmul_rn(scales[i].y, unit.inverse));
    }
    if (kForm.part_keys > 0 && (seen.begin >= first_key + kKeys || seen.end <= first_key)) return;
    rescale = __fmul_rn(rescale, unit.change);
    unit_ = unit.value;
  }
  __device__ unsigned weight_address(unsigned row) const {
    return memory_ + kConfig.weights_offset() + row * kWeightBytes;
  }
  __device__ unsigned factor_address(unsigned row) const {
    return memory_ + kConfig.factors_offset() + 4 * row;
  }

  // Step 3: sums of the warp's columns.
  __device__ void multiply_values(int buffer) {
    rescale();
    const unsigned weights = row_first<kWeightBytes>(weight_address(0));
    const unsigned values =
        row_first<kValueBytes>(KeyTiles::values(buffer)) + static_cast<unsigned>(32 * first_step());
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      unsigned a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        ptx::load_matrices(weights + static_cast<unsigned>(16 * i) * kWeightBytes + 32u * step,
                           a[i]);
      }
#pragma unroll
      for (int two = 0; two < kValueSteps; ++two) {
        if (!has_columns(two)) break;
        unsigned b[4];
        ptx::load_matrices_transposed(
            values + static_cast<unsigned>(16 * step) * kValueBytes + 32u * two, b);
        const unsigned tiles[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          ptx::multiply_add<kForm.q>(sums_[i / 2][2 * two + i % 2], a[i / 2], tiles[i % 2]);
        }
      }
    }
  }
  __device__ int first_step() const { return warp_ * kValueSteps; }
  __device__ bool has_columns(int step) const {
    constexpr bool kEven = 16 * kConfig.warps * kValueSteps == kConfig.value_numbers();
    return kEven || 16 * (first_step() + step) < kConfig.value_numbers();
  }

  // Maxima soon stay as they are.
  __device__ void rescale() {
    float factors[kRowTiles][2];
    bool changes = false;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const float factor = ptx::load_shared(factor_address(static_cast<unsigned>(row_of(i))));
      factors[i / 2][i % 2] = factor;
      changes = changes || factor != 1;
    }
    if (numeric::max_of_lanes(changes ? 1u : 0u) == 0) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) rescale_sums(sums_[i], factors[i]);
  }
  // The lane's row i of its 2 · kRowTiles in sums, of the block's.
  __device__ int row_of(int i) const { return 8 * i + lane_ / 4; }

  // Tells all that have a row's sums what the softmax knows of it, through the memory of scores.
  __device__ void store() {
    __syncthreads();
    const float sum = of_row(sum_, [](float left, float right) { return __fadd_rn(left, right); });
    if (threadIdx.x % kRowLanes == 0) {
      const int row = rows_.first + own_row();
      share_end<kForm>(params_, rows_, row, state_of_row(maximum_, factor_, sum), unit_,
                       score_address(static_cast<unsigned>(own_row()), 0));
    }
    __syncthreads();
    const float v_factor = factor_of<kForm.v, kForm.v_scales>(params_.v, rows_.key_head);
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const int row = rows_.first + row_of(i);
      if (row >= rows_.end) continue;
      const unsigned known = score_address(static_cast<unsigned>(row_of(i)), 0);
      const float in_units = __fmul_rn(load_unit(known), v_factor);
      const RowEnd<kForm> row_end = load_end<kForm>(params_, rows_, row, known);
#pragma unroll
      for (int tile = 0; tile < 2 * kValueSteps; ++tile) {
        const int column = 16 * first_step() + 8 * tile;
        if (column >= kForm.value_size) continue;
        const float (&sums)[4] = sums_[i / 2][tile];
        store_pair<kForm>(params_, rows_, row, column + lane_ % 4 * 2,
                          __fmul_rn(sums[i % 2 * 2], in_units),
                          __fmul_rn(sums[i % 2 * 2 + 1], in_units), row_end);
      }
    }
  }

  const AttentionParams& params_;
  Rows rows_;
  const int warp_, lane_;
  const unsigned memory_ = ptx::dynamic_shared_memory();
  float factor_ = 1;
  float sums_[kRowTiles][2 * kValueSteps][4] = {};
  // The state of the row in step 2: the maximum of scores before `factor`, this lane's sum of
  // weights, and the unit of sums of values where scales of values differ.
  float maximum_ = -infinity(), sum_ = 0, unit_ = kFirstUnit<kForm>;
};

}  // namespace attention

template <config::WideHeadsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
    wide_heads_kernel(const __grid_constant__ config::AttentionParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  attention::WideHeads<kConfig>(params).run();
}

}  // namespace octofold
