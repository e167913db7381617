// A that comes in high precision: a warpgroup reads its rows, finds the scale of each 1x128 and
// leaves codes and scales in the stages, where others find what a cast before the product would
// have left in memory.
//
// Its warps take turns, each with some rows of a stage, and each has the rows of its next turn on
// their way while it casts: loads take longer than a stage does.
#pragma once

#include "kernels/numeric/caster.h"
#include "kernels/numeric/elements.h"
#include "kernels/numeric/magnitudes.h"
#include "kernels/numeric/unit_cast.h"
#include "kernels/numeric/vector.h"
#include "kernels/sm90/load.h"
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
    unsigned words[kVectors][4];
    if (stages_.has_stage()) load(Source(*this), words);
    while (stages_.has_stage()) {
      const RingPosition<kConfig.stages> position = position_;
      const int first_row = static_cast<int>(turn_) * kRows;  // in the tile
      const bool any_rows = first_row < rows_left();
      const CodeMask mask(exist());
      const numeric::UnitCast unit = unit_cast(words);

      turn_ += kWarps;
      find_turn();
      ptx::mbarrier_wait(smem_.empty(position.stage), position.parity ^ 1);
      if (any_rows) {
        encode(smem_.columns(position.stage), first_row, unit.operand, mask, words);
        store_scale(smem_.column_scales(position.stage), first_row, unit.scale);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane_ == 0) ptx::mbarrier_arrive(smem_.full(position.stage));
      if (stages_.has_stage()) load(Source(*this), words);
    }
  }

 private:
  static constexpr config::DynamicInput kInput = kConfig.dynamic;
  static constexpr int kWarps = config::kCastWarps;
  static constexpr int kRows = kConfig.cast_rows();  // of a turn
  static constexpr int kLanes = kInput.lanes();
  static constexpr int kRowsAtOnce = kInput.rows_at_once();
  static constexpr int kVector = kInput.vector();
  static constexpr int kVectors = kRows / kRowsAtOnce;  // of a lane, each of another row
  static constexpr int kLanesOfScale = kLanes / kVectors;
  using Element = numeric::Storage<kInput.type>;
  using Caster = numeric::Caster<kInput.rule.form, kInput.type>;

  // What of a vector's codes is kept: those of elements beyond K are 0, whatever the cast makes of
  // zeros (of an infinite factor NaN).
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

  // A turn's first vector of this lane in memory.
  struct Source {
    const Element* data;
    int exist;  // elements
    int rows;   // from this one on

    __device__ explicit Source(const DynamicCast& cast) {
      const Tile& tile = cast.stages_.tile();
      const int row = static_cast<int>(cast.turn_) * kRows + cast.lane_ / kLanes;
      data = reinterpret_cast<const Element*>(cast.params_.columns.data) +
             (tile.operand_column + row) * cast.params_.columns.stride + cast.stages_.k() +
             cast.lane_ % kLanes * kVector;
      exist = cast.exist();
      rows = cast.rows_left() - row;
    }
  };

  // Of the turn that `stages_` and `turn_` stand at: rows from the tile's first on, and elements of
  // this lane's vectors (fewer than none too).
  __device__ int rows_left() const {
    const RowRange range = columns_of(stages_.tile());
    return range.end - range.first;
  }
  __device__ int exist() const {
    return min(stages_.tile().k_end - stages_.k() - lane_ % kLanes * kVector, kVector);
  }

  // To the stage that `turn_` belongs to.
  __device__ void find_turn() {
    const int stages = turn_ / kConfig.cast_turns();
    turn_ %= kConfig.cast_turns();
    stages_.advance_by(stages);
    position_.advance_by(stages);
  }

  __device__ void load(const Source& source, unsigned (&words)[kVectors][4]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int exist = i * kRowsAtOnce < source.rows ? source.exist : 0;
      numeric::load<Element, kInput.vectors, kVector>(
          source.data + i * kRowsAtOnce * params_.columns.stride, exist, words[i]);
    }
  }

  // Of the row that vector `lane_ % kLanes / kLanesOfScale` belongs to.
  __device__ numeric::UnitCast unit_cast(const unsigned (&words)[kVectors][4]) const {
    unsigned magnitudes[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      magnitudes[i] = numeric::largest_of_vector<kInput.type>(words[i]);
    }
    const unsigned of_row = numeric::largest_of_one<kInput.type, kLanes>(magnitudes, lane_);
    return numeric::unit_cast<kInput.rule, kInput.type, kConfig.columns().type,
                              kInput.power_of_two>(numeric::largest<kInput.type>(of_row));
  }

  // Under the 128-byte swizzle; the lanes that store at one time meet in no bank.
  __device__ void encode(unsigned rows, int first_row, float operand, const CodeMask& mask,
                         const unsigned (&words)[kVectors][4]) const {
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
      const auto row = static_cast<unsigned>(first_row + i * kRowsAtOnce + lane_ / kLanes);
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
  // Of the next turn.
  StageWalk<kConfig> stages_;
  RingPosition<kConfig.stages> position_;
  unsigned turn_;  // of the stage
  int lane_;
};

}  // namespace octofold::sm90
