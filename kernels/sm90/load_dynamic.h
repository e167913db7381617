// Load: an A in high precision that is cast on its way, beside a B that comes by TMA. A second
// producer warpgroup reads A's rows, finds the scale of each 1x128 and leaves codes and scales in
// the stages, just where a cast before the product would have had them copied to.
//
// Its warps take turns, each with some rows of a stage, and each has the rows of its next turns on
// their way while it casts, as loads take longer than a stage does. Every tile casts its rows anew:
// it pays up to 8 rows of A and loses from 16 on, earlier than a count of instructions says
// (docs/kernels/gemm-variants.md, "Products that cast their A").
#pragma once

#include "kernels/numeric/caster.h"
#include "kernels/numeric/elements.h"
#include "kernels/numeric/lanes.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/control.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90/load_tma.h"
#include "kernels/sm90/stage_walk.h"

namespace octofold::sm90 {

template <Sm90GemmConfig kConfig>
class DynamicCast {
 public:
  // `warp`: of those that cast.
  __device__ DynamicCast(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem, int warp)
      : params_(params),
        smem_(smem),
        stages_(params),
        turn_(static_cast<unsigned>(warp)),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void run() {
    if (!stages_.has_stage() || stages_.k() >= stages_.tile().k_end) return;  // nothing to sum
    find_turn();
    Turn turns[kAhead];
    Vectors words[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) begin(turns[i], words[i]);
    while (true) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (!turns[i].exists) return;
        finish(turns[i], words[i]);
        begin(turns[i], words[i]);
      }
    }
  }

 private:
  static constexpr config::DynamicInput kInput = kConfig.dynamic;
  static constexpr int kRows = kConfig.cast_rows();  // of a turn
  static constexpr int kLanes = kInput.lanes();
  static constexpr int kRowsAtOnce = kInput.rows_at_once();
  static constexpr int kVector = kInput.vector();
  static constexpr int kVectors = kRows / kRowsAtOnce;  // of a lane, each of another row
  static constexpr int kLanesOfScale = kLanes / kVectors;
  static constexpr int kAhead = kConfig.casts_ahead();
  using Element = numeric::Storage<kInput.type>;
  using Caster = numeric::Caster<kInput.rule.arithmetic, kInput.type>;
  using Vectors = unsigned[kVectors][4];

  // Some rows of a stage.
  struct Turn {
    bool exists;
    RingPosition<kConfig.stages> position;
    int first_row;  // in the tile
    int rows;       // that exist from this one on
    int exist;      // elements of this lane's vectors (fewer than none too)
  };

  // Keeps the codes of a vector's elements within K. Those beyond are 0, whatever the cast makes of
  // zeros (with an infinite factor it makes NaN).
  struct CodeMask {
    unsigned words[kVector / 4];

    __device__ explicit CodeMask(int exist) {
#pragma unroll
      for (int i = 0; i < kVector / 4; ++i) {
        const int left = kInput.vectors ? exist : exist - 4 * i;  // all of a vector, or nothing
        words[i] = left >= 4 ? ~0u : left <= 0 ? 0 : (1u << 8 * left) - 1;
      }
    }
  };

  // Goes on to the stage that `turn_` belongs to.
  __device__ void find_turn() {
    const int stages = turn_ / kConfig.cast_turns();
    turn_ %= kConfig.cast_turns();
    stages_.advance_by(stages);
    advance_by(position_, stages);
  }

  // Starts the loads of the next turn, where there is one.
  __device__ void begin(Turn& turn, Vectors& words) {
    turn.exists = stages_.has_stage();
    if (!turn.exists) return;
    const Tile& tile = stages_.tile();
    const RowRange range = columns_of(tile);
    const int k = stages_.k() + lane_ % kLanes * kVector;
    turn.position = position_;
    turn.first_row = static_cast<int>(turn_) * kRows;
    turn.rows = range.end - range.first - turn.first_row;
    turn.exist = min(tile.k_end - k, kVector);
    const int row = range.first + turn.first_row + lane_ / kLanes;
    const long long stride = params_.columns.stride;
    const Element* const data =
        reinterpret_cast<const Element*>(params_.columns.data) + row * stride + k;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool is_row = i * kRowsAtOnce + lane_ / kLanes < turn.rows;
      numeric::load<Element, kInput.vectors, kVector>(data + i * kRowsAtOnce * stride,
                                                      is_row ? turn.exist : 0, words[i]);
    }
    turn_ += config::kCastWarps;
    find_turn();
  }

  // Casts a turn into its stage, when that is empty.
  __device__ void finish(const Turn& turn, const Vectors& words) const {
    const numeric::UnitCast unit = unit_cast(words);
    const int stage = turn.position.stage;
    ptx::mbarrier_wait(smem_.empty(stage), turn.position.parity ^ 1);
    if (turn.rows > 0) {
      encode(smem_.columns(stage), turn, unit.operand, words);
      store_scale(smem_.column_scales(stage), turn.first_row, unit.scale);
    }
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive_for_warp(smem_.full(stage));
  }

  // The scale of the row that vector `lane_ % kLanes / kLanesOfScale` belongs to.
  __device__ numeric::UnitCast unit_cast(const Vectors& words) const {
    unsigned magnitudes[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      magnitudes[i] = numeric::largest_of_vector<kInput.type>(words[i]);
    }
    const unsigned of_row = numeric::largest_of_one<kInput.type, kLanes>(magnitudes, lane_);
    return numeric::unit_cast<kInput.rule, kInput.type, kConfig.columns().type,
                              kInput.power_of_two>(numeric::largest<kInput.type>(of_row));
  }

  // Writes the codes under the 128-byte swizzle. Lanes that store at one time meet in no bank.
  __device__ void encode(unsigned rows, const Turn& turn, float operand,
                         const Vectors& words) const {
    const CodeMask mask(turn.exist);
    const auto column = static_cast<unsigned>(lane_ % kLanes * kVector);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Caster caster =
          Caster::make(__shfl_sync(0xFFFFFFFFu, operand, i * kLanesOfScale, kLanes));
      float values[kVector];
      numeric::widen<kInput.type>(words[i], values);
      caster.template apply<Caster::kMayBeUnusual>(values);
      unsigned codes[kVector / 4];
      numeric::narrow<kConfig.columns().type, kInput.saturate>(values, codes);
#pragma unroll
      for (int word = 0; word < kVector / 4; ++word) codes[word] &= mask.words[word];
      const auto row = static_cast<unsigned>(turn.first_row + i * kRowsAtOnce + lane_ / kLanes);
      ptx::store_shared_words(rows + row * kStageDepth + 16 * (column / 16 ^ row % 8) + column % 16,
                              codes);
    }
  }

  __device__ void store_scale(unsigned scales, int first_row, float scale) const {
    constexpr config::ColumnScaleOrder kOrder(kConfig.tile_columns);
    if (lane_ % kLanesOfScale != 0) return;
    const int vector = lane_ % kLanes / kLanesOfScale;
    const int row = first_row + vector * kRowsAtOnce + lane_ / kLanes;
    ptx::store_shared_word(scales + 4 * kOrder.place(row), __float_as_uint(scale));
  }

  const Sm90GemmParams& params_;
  const SharedMemory<kConfig>& smem_;
  // The place of the next turn.
  StageWalk<kConfig> stages_;
  RingPosition<kConfig.stages> position_;
  unsigned turn_;  // of the stage
  int lane_;
};

// The instruction's columns are A's rows: TMA loads nothing, and no warp copies their scales.
template <Sm90GemmConfig kConfig>
struct CastColumns {
  static constexpr unsigned kBytes = 0;
  static constexpr unsigned kScaleArrivals =
      ptx::kArrivalsOfWarp * kConfig.cast_turns();  // codes and scales together

  static __device__ void prefetch(const Sm90GemmParams&) {}
  static __device__ void load(const Sm90GemmParams&, const Tile&, unsigned, unsigned, int, int) {}
  static __device__ void load_scales(const Sm90GemmParams&, const SharedMemory<kConfig>&) {}
};

template <Sm90GemmConfig kConfig, typename Rows>
struct LoadAndCast : LoadByTma<kConfig, Rows, CastColumns<kConfig>> {
  static constexpr bool kCasts = true;

  static __device__ void cast(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem) {
    constexpr int kRegisters = kConfig.second_producer_registers();
    if constexpr (kRegisters > kConfig.registers_at_start()) {
      ptx::grow_registers<kRegisters>();
    } else {
      ptx::shrink_registers<kRegisters>();
    }
    const int warp = (static_cast<int>(threadIdx.x) - kConfig.consumer_threads()) / 32 - 4;
    DynamicCast<kConfig>(params, smem, warp).run();
  }
};

}  // namespace octofold::sm90
