// Copies of x and W into a stage of shared memory: all threads of the block, a unit of 16 bytes
// each at a time. What does not exist becomes 0.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/weight_only/gathered.h"
#include "kernels/weight_only/shared_memory.h"
#include "kernels/weight_only/sum_units.h"
#include "kernels/weight_only/walk.h"

namespace octofold::weight_only {

// A thread's copies of a matrix: in each step the same units of kRows rows of kUnits. From step to
// step it goes on along the rows, or down the columns.
template <WeightOnlyConfig kConfig, int kRows, int kUnits, bool kDown, bool kIsReadAgain>
class Units {
  static constexpr int kThreads = kConfig.threads();
  static_assert(kThreads % kUnits == 0, "a thread has the same unit of all of its rows");
  static constexpr int kApart = kThreads / kUnits;  // rows of a thread

 public:
  static constexpr int kCount = (kRows + kApart - 1) / kApart;

  __device__ Units(const Source& source, int first_step) {
    const bool is_whole = kDown ? source.bytes >= 16 * kUnits : source.rows >= kRows;
    const long long steps = kDown ? source.rows / kRows : source.bytes / (16 * kUnits);
    whole_steps_ = kConfig.vectors && is_whole ? static_cast<int>(steps) : 0;
    from_ = source.data + row() * source.stride + 16 * unit() + first_step * advance(source);
  }

  // Starts those of a step, the one behind that of the last call; address_of(row, unit): where they
  // go. What is only needed where some do not exist is not kept in registers.
  template <typename AddressOf>
  __device__ void begin(const Source& source, int step, AddressOf&& address_of) {
    if (step >= whole_steps_) {
      begin_some(source, step, address_of);
      return;
    }
    const unsigned char* from = from_;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int of_row = row() + i * kApart;
      if (kRows % kApart != 0 && of_row >= kRows) break;
      ptx::copy_async<16, kIsReadAgain>(address_of(of_row, unit()), from);
      from += kApart * source.stride;
    }
    from_ += advance(source);
  }

  // The same of a whole step one by one, for i from 0 to kCount - 1.
  __device__ bool is_whole(int step) const { return step < whole_steps_; }
  template <typename AddressOf>
  __device__ void begin_one(const Source& source, int i, AddressOf&& address_of) {
    static_assert(kRows % kApart == 0);
    ptx::copy_async<16, kIsReadAgain>(address_of(row() + i * kApart, unit()),
                                      from_ + i * kApart * source.stride);
    if (i == kCount - 1) from_ += advance(source);
  }

 private:
  static __device__ int unit() { return static_cast<int>(threadIdx.x) % kUnits; }
  static __device__ int row() { return static_cast<int>(threadIdx.x) / kUnits; }
  static __device__ long long advance(const Source& source) {
    return kDown ? kRows * source.stride : 16 * kUnits;
  }

  // Starts the copies of a step some of whose units may not exist; those become zeros.
  template <typename AddressOf>
  static __device__ void begin_some(const Source& source, int step, AddressOf&& address_of) {
    const long long first_row = kDown ? static_cast<long long>(step) * kRows : 0;
    const long long at = 16 * unit() + (kDown ? 0 : static_cast<long long>(step) * 16 * kUnits);
    const long long bytes = min(source.bytes - at, 16ll);
    const long long left = bytes > 0 ? source.rows - first_row : 0;
    const unsigned char* const from = source.data + first_row * source.stride + at;
#pragma unroll 1
    for (int of_row = row(); of_row < kRows; of_row += kApart) {
      const bool exists = of_row < left;
      const unsigned char* const own = exists ? from + of_row * source.stride : source.data;
      if constexpr (kConfig.vectors) {
        ptx::copy_async<16, kIsReadAgain>(address_of(of_row, unit()), own, exists);
      } else {
        unsigned words[4];
        numeric::load<unsigned char, false, 16>(own, exists ? static_cast<int>(bytes) : 0, words);
        ptx::store_shared_words(address_of(of_row, unit()), words);
      }
    }
  }

  const unsigned char* from_;  // in the next whole step
  int whole_steps_;
};

// A thread's copies of the scales of blocks: of kCount columns, or rows, in each step for each
// block of it.
template <WeightOnlyConfig kConfig, int kCount>
class BlockScales {
  static constexpr int kThreads = kConfig.threads();
  static constexpr int kAll = kCount * kConfig.warps_depth;
  static constexpr int kOwn = (kAll + kThreads - 1) / kThreads;

 public:
  // From `first` on, of `count`: those behind the last have its scales, which nobody uses. `blocks`
  // there are along the depth.
  __device__ BlockScales(const config::WeightOnlyScale& scale, long long first, long long count,
                         int blocks, int first_step)
      : advance_(kConfig.warps_depth * scale.depth_stride), blocks_(blocks) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const long long index = min(first + at(i) % kCount, count - 1);
      from_[i] = scale.data + (index >> scale.shift) * scale.stride +
                 at(i) / kCount * scale.depth_stride + first_step * advance_;
    }
  }

  // Starts the copies of a step, the one behind that of the last call.
  __device__ void begin(int step, unsigned address) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (kAll % kThreads != 0 && at(i) >= kAll) break;
      const bool exists = step * kConfig.warps_depth + at(i) / kCount < blocks_;
      ptx::copy_async<4, true>(address + 4 * at(i), from_[i], exists);
      from_[i] += advance_;
    }
  }

 private:
  static __device__ int at(int i) { return i * kThreads + static_cast<int>(threadIdx.x); }

  const float* from_[kOwn];
  long long advance_;
  int blocks_;
};

template <WeightOnlyConfig kConfig, bool kAhead = kConfig.ahead>
struct ColumnScalesOf {
  using Type = BlockScales<kConfig, kConfig.tile_columns>;
};
template <WeightOnlyConfig kConfig>
struct ColumnScalesOf<kConfig, true> {
  using Type = SumUnits<kConfig>;
};

template <WeightOnlyConfig kConfig, int kRows, int kUnits, bool kGathered = kConfig.gathered>
struct XUnitsOf {
  using Type = Units<kConfig, kRows, kUnits, false, true>;
};
template <WeightOnlyConfig kConfig, int kRows, int kUnits>
struct XUnitsOf<kConfig, kRows, kUnits, true> {
  using Type = GatheredUnits<kConfig, kRows, kUnits>;
};

// All that a step needs.
template <WeightOnlyConfig kConfig>
class Copies {
  using S = Stage<kConfig>;
  static constexpr bool kTransposed = kConfig.transposed;
  using ColumnScales = typename ColumnScalesOf<kConfig>::Type;
  static constexpr int kWRows = kTransposed ? kConfig.step_depth() : S::kWRows;
  static constexpr int kWUnits = kTransposed ? S::kWUnits : kConfig.warps_depth * S::kWUnits;
  using WUnits = Units<kConfig, kWRows, kWUnits, kTransposed, false>;
  using XUnits =
      typename XUnitsOf<kConfig, kConfig.tile_rows, kConfig.warps_depth * S::kXUnits>::Type;

 public:
  // begin() is called for first_step and those behind it, one after the other.
  __device__ Copies(const WeightOnlyParams& params, config::WeightOnlyTile tile, int first_step)
      : params_(params),
        tile_(tile),
        w_(w(), first_step),
        x_(x(), first_step),
        w_scales_(scale_of(params, tile.group), tile.column, params.columns, blocks(params),
                  first_step),
        x_scales_(params.x_scale, tile.row, tile.row_end, blocks(params), first_step) {}

  __device__ void begin(const S& stage, int step) {
    w_.begin(w(), step, w_address(stage));
    x_.begin(x(), step, x_address(stage));
    if constexpr (kConfig.depth_factors) copy_factors(stage, step);
    if constexpr (kConfig.w_blocks) w_scales_.begin(step, stage.column_scales());
    if constexpr (kConfig.x_blocks) x_scales_.begin(step, stage.row_scales());
  }

  // The same of a step all of whose units are whole, in kCount parts.
  static constexpr int kCount = WUnits::kCount + XUnits::kCount;

  __device__ bool is_whole(int step) const { return w_.is_whole(step) && x_.is_whole(step); }
  __device__ void begin_part(const S& stage, int step, int part) {
    if (part < WUnits::kCount) {
      w_.begin_one(w(), part, w_address(stage));
    } else {
      x_.begin_one(x(), part - WUnits::kCount, x_address(stage));
    }
    if constexpr (kConfig.w_blocks) {
      if (part == kCount - 1) w_scales_.begin(step, stage.column_scales());
    }
  }

  // Stores the unit of each column's sums: its scale, or that of its last block.
  __device__ void store_units(unsigned address) const {
    if constexpr (kConfig.w_blocks) {
      w_scales_.store(address);
    } else {
      const config::WeightOnlyScale scale = scale_of(params_, tile_.group);
      const int first = static_cast<int>(threadIdx.x);
      for (int i = first; i < kConfig.tile_columns; i += kConfig.threads()) {
        const long long column = min(tile_.column + i, params_.columns - 1);
        const bool exists = scale.data != nullptr && params_.depth > 0;
        const float unit = exists ? scale.data[(column >> scale.shift) * scale.stride] : 1;
        ptx::store_shared_word(address + 4 * i, __float_as_uint(unit));
      }
    }
  }

 private:
  static __device__ auto w_address(const S& stage) {
    return [stage](int row, int unit) {
      if constexpr (kTransposed) {
        return stage.w(row / S::kDepth) + S::w_offset(row % S::kDepth, unit);
      }
      return stage.w(unit / S::kWUnits) + S::w_offset(row, unit % S::kWUnits);
    };
  }
  static __device__ auto x_address(const S& stage) {
    return [stage](int row, int unit) {
      return stage.x(unit / S::kXUnits) + S::x_offset(row, unit % S::kXUnits);
    };
  }
  static __device__ int blocks(const WeightOnlyParams& params) {
    return static_cast<int>(config::ceil_divide(params.depth, kScaleBlock));
  }
  __device__ Source x() const {
    const auto* const first = static_cast<const unsigned char*>(params_.x);
    const long long row = kConfig.gathered ? 0 : tile_.row, stride = params_.x_stride;
    return {first + row * stride, stride, row_end<kConfig>(params_, tile_) - row,
            params_.depth * size_of(kConfig.x)};
  }
  __device__ Source w() const {
    const unsigned char* const first = weights_of(params_, tile_.group);
    const long long stride = params_.w_stride, columns = params_.columns - tile_.column;
    if constexpr (kTransposed) return {first + tile_.column, stride, params_.depth, columns};
    return {first + tile_.column * stride, stride, columns, params_.depth};
  }

  __device__ void copy_factors(const S& stage, int step) const {
    const config::WeightOnlyScale scale = scale_of(params_, tile_.group);
    const float* const factors = scale.data + (tile_.column >> scale.shift) * scale.stride;
    const long long first = static_cast<long long>(step) * kConfig.step_depth();
    for (int i = static_cast<int>(threadIdx.x); i < kConfig.factors(); i += kConfig.threads()) {
      const bool exists = first + i < params_.depth;
      const float* const from = exists ? factors + (first + i) * scale.depth_stride : factors;
      ptx::copy_async<4, true>(stage.factors() + 4 * i, from, exists);
    }
  }

  const WeightOnlyParams& params_;
  config::WeightOnlyTile tile_;
  WUnits w_;
  XUnits x_;
  ColumnScales w_scales_;
  BlockScales<kConfig, kConfig.tile_rows> x_scales_;
};

}  // namespace octofold::weight_only
