// The cast of a tile by a block of threads: amax, scales, codes, of the tile, of its transpose or
// of both, from one read into registers. Where a scale belongs to more than a tile, the cast takes
// four kernels, each of which does the part of that which its phase says.
//
// A tile is 128 columns wide. All that its values are worked out from is on its way to shared
// memory at once, in slots of each thread's own: with registers instead, the compiler had a third
// of the loads under way (SwiGLU both ways 83 → 93 % of the rate of a copy). Two tiles below each
// other come before the next column: 84 → 87 % at 2048 × 65536 transposed; four do about as much,
// 16 and 64 lose up to 4 %. Divisions take two operations in place of five for 16-bit x, with the
// bits of the division: 79 → 86 % both ways (docs/notes/casts.md).
#pragma once

#include "kernels/cast/access.h"
#include "kernels/cast/column_reductions.h"
#include "kernels/cast/config/cast.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/line_scales.h"
#include "kernels/cast/mixed_scales.h"
#include "kernels/cast/tile.h"
#include "kernels/cast/tile_scales.h"
#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/control.h"

namespace octofold {
namespace cast {

template <TileCastConfig kConfig, bool kScalesLines = kConfig.format.scales_lines(),
          bool kMixed = kConfig.transposed_squares>
struct ScalesOf {
  using Type = TileScales<kConfig>;
};
template <TileCastConfig kConfig>
struct ScalesOf<kConfig, true, false> {
  using Type = LineScales<kConfig>;
};
template <TileCastConfig kConfig>
struct ScalesOf<kConfig, true, true> {
  using Type = MixedScales<kConfig>;
};

template <TileCastConfig kConfig>
class TileCast {
  using Scales = typename ScalesOf<kConfig>::Type;

 public:
  struct Shared {
    union {
      typename Scales::Scratch scratch;
      // The transposed codes, 8 rows of the tile at a time, permuted (see encode_columns).
      unsigned long long transposed[kConfig.to_transposed ? kScaleBlock : 1][kConfig.tile_rows / 8];
    };
    typename Scales::Kept kept;
  };

  __device__ TileCast(const CastParams& params, Shared& shared, const Tile<kConfig>& tile)
      : params_(params), shared_(shared), tile_(tile) {}

  __device__ void run() {
    if constexpr (kConfig.columns.any()) {
      __shared__ ColumnsOfGroups<kConfig> columns;
      reduce_columns<kConfig>(params_, tile_, columns);
    }
    Scales scales(params_, tile_, shared_.scratch, shared_.kept);
    if constexpr (kConfig.phase == CastPhase::kAmax) {
      scales.gather();
    } else if (scales.prepare()) {
      store<true>(scales);
    } else {
      store<false>(scales);
    }
  }

 private:
  static constexpr int kVector = Tile<kConfig>::kVector;
  static constexpr int kRows = Tile<kConfig>::kRows;
  static constexpr DType kIn = kConfig.format.in;

  template <bool kUnusual>
  __device__ void store(const Scales& scales) {
    if constexpr (kConfig.to_rows) store_rows<kUnusual>(scales);
    if constexpr (kConfig.to_transposed) {
      if constexpr (Scales::kScratchIsRead) __syncthreads();
      encode_columns<kUnusual>(scales);
      __syncthreads();
      store_columns();
    }
  }

  template <bool kUnusual>
  __device__ void store_rows(const Scales& scales) const {
    const config::CastTarget& target = params_.row_target;
    unsigned char* codes = target.codes +
                           (tile_.first_row() + tile_.group * kRows) * target.codes_stride +
                           tile_.first_col() + tile_.lane * kVector;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float values[kVector];
      numeric::widen<kIn>(tile_.words[i], values);
      scales.of_row(i).template apply<kUnusual>(values);
      unsigned words[kVector / 4];
      numeric::narrow<kConfig.format.out, kConfig.format.saturate>(values, words);
      cast::store<unsigned char, kConfig.vector_stores, kVector>(
          codes + i * target.codes_stride,
          tile_.template written<kConfig.vector_stores>(params_, i), words);
    }
  }

  // Codes of 8 rows in one column are 8 bytes of a row of the transpose. They are exchanged through
  // shared memory, so that 16 threads store the 128 bytes of such a row. Where they lie in it is
  // permuted from column to column: neither the threads that write (neighbouring lanes, the same
  // group) nor those that read (the same column) meet in a bank.
  template <bool kUnusual>
  __device__ void encode_columns(const Scales& scales) {
    constexpr int kPerWord = numeric::kPerWord<kIn>;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      float values[kRows][kPerWord];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        numeric::widen<kIn, true>(&tile_.words[row][word], values[row]);
      }
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const int column = tile_.lane * kVector + word * kPerWord + i;
        float column_values[8];
#pragma unroll
        for (int row = 0; row < 8; ++row) column_values[row] = values[row][i];
        scales.of_column(column).template apply<kUnusual>(column_values);
        unsigned words[2];
        numeric::narrow<kConfig.format.out, kConfig.format.saturate>(column_values, words);
        shared_.transposed[column][tile_.group ^ (tile_.lane % 16)] =
            words[0] | static_cast<unsigned long long>(words[1]) << 32;
      }
    }
  }

  __device__ void store_columns() const {
    const int chunk = static_cast<int>(threadIdx.x % 16);
    const int rows_exist = at_most(tile_.rows_left(params_) - chunk * 8, 8);
    if constexpr (kConfig.ragged) {
      if (rows_exist < 8) return store_columns<false>(chunk, rows_exist);
    }
    store_columns<kConfig.vector_stores>(chunk, rows_exist);
  }
  template <bool kVectors>
  __device__ void store_columns(int chunk, int rows_exist) const {
    const config::CastTarget& target = params_.transposed_target;
    constexpr int kColumns = kScaleBlock * 16 / kConfig.threads();
#pragma unroll(kVectors == kConfig.vector_stores ? kColumns : 1)
    for (int i = 0; i < kColumns; ++i) {
      const int column = i * (kConfig.threads() / 16) + static_cast<int>(threadIdx.x / 16);
      unsigned long long codes = shared_.transposed[column][chunk ^ (column / kVector % 16)];
      if constexpr (kConfig.grouped) codes = first_codes(codes, rows_exist);
      const unsigned words[2] = {static_cast<unsigned>(codes), static_cast<unsigned>(codes >> 32)};
      const bool exists = tile_.first_col() + column < params_.cols;
      cast::store<unsigned char, kVectors, 8>(
          target.codes + (tile_.transposed_row(params_) + column) * target.codes_stride +
              tile_.transposed_col() + chunk * 8,
          !exists           ? 0
          : kConfig.grouped ? 8
                            : rows_exist,
          words);
    }
  }

  // So many of 8 codes, and zeros behind them: what a group leaves of its last slot.
  static __device__ unsigned long long first_codes(unsigned long long codes, int count) {
    if (count <= 0) return 0;
    return count < 8 ? codes & ((1ull << 8 * count) - 1) : codes;
  }

  const CastParams& params_;
  Shared& shared_;
  const Tile<kConfig>& tile_;
};

// The shared memory of a cast. If pieces are staged there, they have been read when it is used.
template <TileCastConfig kConfig, typename Shared>
__device__ Shared& shared_memory() {
  if constexpr (kConfig.is_staged()) {
    static_assert(sizeof(Shared) <= kConfig.shared_bytes());
    return *reinterpret_cast<Shared*>(staged_memory());
  } else {
    __shared__ Shared shared;
    return shared;
  }
}

// Returns the configuration of one of the two ways of a cast both ways.
constexpr TileCastConfig one_way(TileCastConfig config, bool rows) {
  config.to_rows = rows;
  config.to_transposed = !rows;
  config.source.factors = !rows;
  config.source.transposed_factors = false;
  return config;
}

// Rows first, then the transpose of what is left of them times the factors: by one read, as if by
// two kernels.
template <TileCastConfig kConfig>
class OneByOneCast {
  static constexpr TileCastConfig kOfRows = one_way(kConfig, true);
  static constexpr TileCastConfig kOfTranspose = one_way(kConfig, false);
  static constexpr bool kVectors = kConfig.vector_loads;

 public:
  union Shared {
    typename TileCast<kOfRows>::Shared rows;
    typename TileCast<kOfTranspose>::Shared transpose;
  };

  static __device__ void run(const CastParams& params, Shared& shared) {
    Tiles<kOfRows> tiles{{params, 0}};
    Tile<kOfRows>& tile = tiles[0];
    if (!tile.any(params)) return;
    load<kOfRows>(params, tiles);
    TileCast<kOfRows>(params, shared.rows, tile).run();
    Tile<kOfTranspose> multiplied(params, 0);
    // Factors are loaded when they are needed: there are no registers for them before.
    const Source<kOfTranspose.source, kConfig.format.in, kVectors> source(
        params, tile.first_row() + tile.group * tile.kRows, 0);
#pragma unroll
    for (int row = 0; row < tile.kRows; ++row) {
#pragma unroll
      for (int i = 0; i < 4; ++i) multiplied.words[row][i] = tile.words[row][i];
      source.multiply(row, tile.template exist<kVectors>(row), multiplied.words[row]);
    }
    __syncthreads();  // shared memory has been read
    TileCast<kOfTranspose>(params, shared.transpose, multiplied).run();
  }
};

}  // namespace cast

template <config::TileCastConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(),
                                  ptx::resident_blocks(kConfig.resident_blocks()))
    tile_cast_kernel(const __grid_constant__ config::CastParams params) {
  static_assert(kConfig.invalid_reason() == nullptr);
  ptx::let_next_kernel_start();
  ptx::wait_for_earlier_kernels();
  if constexpr (kConfig.source.transposed_factors) {
    using Cast = cast::OneByOneCast<kConfig>;
    return Cast::run(params, cast::shared_memory<kConfig, typename Cast::Shared>());
  }
  using Shared = typename cast::TileCast<kConfig>::Shared;
  Shared& shared = cast::shared_memory<kConfig, Shared>();
  if constexpr (kConfig.source.both_halves) {
    cast::Tiles<kConfig> tiles{{params, 0}, {params, 1}};
    if (!tiles[0].any(params)) return;
    // The same rows: said, as the compiler would keep both in registers.
    if constexpr (kConfig.grouped) tiles[1].of_slot = tiles[0].of_slot;
    cast::load<kConfig>(params, tiles);
    cast::TileCast<kConfig>(params, shared, tiles[0]).run();
    __syncthreads();  // shared memory has been read
    cast::TileCast<kConfig>(params, shared, tiles[1]).run();
  } else {
    cast::Tiles<kConfig> tiles{{params, 0}};
    if (!tiles[0].any(params)) return;
    cast::load<kConfig>(params, tiles);
    cast::TileCast<kConfig>(params, shared, tiles[0]).run();
  }
}

}  // namespace octofold
