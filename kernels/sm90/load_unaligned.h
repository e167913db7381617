// Load: operands that TMA cannot address. Where their rows consist of whole words, six warps of two
// producer warpgroups copy them asynchronously, a word of a row to each lane, straight to where the
// tensor core wants them (LoadWords); else with a shift (LoadUnaligned).
//
// LoadWords was predicted near TMA's speed; it takes about twice as long: 8 ns for each row of a
// stage. What binds was not found: neither bytes (2 TB/s from L2) nor instructions
// (docs/notes/gemm-sm90.md).
#pragma once

#include "kernels/ptx/tma.h"
#include "kernels/sm90/load_tma.h"
#include "kernels/sm90/stage_walk.h"

namespace octofold::sm90 {

// This warp's share of the rows of one operand in a stage. Values beyond K become 0; rows beyond
// the operand are left as they are, as their products are not stored.
template <int kExtent, int kWarps>
__device__ void copy_words(const config::OperandParams& operand, RowRange range, int k, int k_end,
                           unsigned target, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int existing = min(kExtent, range.end - range.first);
  const int bytes = min(max(k_end - k - 4 * lane, 0), 4);
  // If there is nothing to copy, the address is still one of the row.
  const unsigned char* source =
      operand.data + (range.first + warp) * operand.stride + k + (bytes == 0 ? 0 : 4 * lane);
#pragma unroll 4
  for (int row = warp; row < existing; row += kWarps) {
    ptx::copy_word_async(target + row * kStageDepth + 16 * (lane / 4 ^ row % 8) + lane % 4 * 4,
                         source, static_cast<unsigned>(bytes));
    source += kWarps * operand.stride;
  }
}

// Number of a producer warp among those that copy operands: all but warps 2 and 3, which copy
// scales.
__device__ inline int copy_warp(int producer_warp) {
  return producer_warp < 2 ? producer_warp : producer_warp - 2;
}

template <Sm90GemmConfig kConfig>
struct LoadWords : LoadDefaults<kConfig> {
  static constexpr int kWarps = kConfig.copy_warps();
  static constexpr unsigned kArrivals = 32 * kWarps;

  static __device__ void run(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                             int warp) {
    const int place = copy_warp(warp);
    for_each_stage(params, smem, [&](int stage, const Tile& tile, int k) {
      copy_words<kConfig.tile_rows, kWarps>(params.rows, rows_of(tile), k, tile.k_end,
                                            smem.rows(stage), place);
      copy_words<kConfig.tile_columns, kWarps>(params.columns, columns_of(tile), k, tile.k_end,
                                               smem.columns(stage), place);
      ptx::mbarrier_arrive_after_copies(smem.full(stage));
    });
  }
  // The words were written by threads that did not wait for them.
  static __device__ void fence() { ptx::fence_proxy_async(); }
};

// At any address and with any stride: the same warps copy the units of 16 bytes that hold their
// rows of a stage, asynchronously, into a buffer. While those of the next stage are on their way,
// they shift the bytes to where the tensor core wants them.
template <Sm90GemmConfig kConfig>
class UnalignedCopy {
 public:
  // `warp`: of those that copy.
  __device__ UnalignedCopy(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                           int warp)
      : params_(params), smem_(smem), warp_(warp), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() const {
    StageWalk<kConfig> copied(params_), shifted(params_);
    if (!copied.has_stage() || copied.k() >= copied.tile().k_end) return;  // nothing to sum
    RingPosition<kConfig.stages> position;
    AwaitRows<kConfig> rows;
    rows.await(params_, copied.tile());
    copy(copied, 0);
    ptx::copies_commit();
    for (int buffer = 0; shifted.has_stage(); shifted.advance(), buffer ^= 1) {
      copied.advance();
      if (copied.has_stage()) {
        rows.await(params_, copied.tile());
        copy(copied, buffer ^ 1);
      }
      ptx::copies_commit();
      ptx::copies_wait<1>();
      __syncwarp();
      ptx::mbarrier_wait(smem_.empty(position.stage), position.parity ^ 1);
      shift(shifted, buffer, position.stage);
      ptx::fence_proxy_async();
      ptx::mbarrier_arrive_for_warp(smem_.full(position.stage));
      position.advance();
    }
  }

 private:
  static constexpr int kWarps = kConfig.copy_warps();

  // Calls for_rows(operand, range, rows of the tile, its first row in the buffer) for either.
  template <typename ForRows>
  __device__ void for_operands(const Tile& tile, ForRows&& for_rows) const {
    for_rows(params_.rows, rows_of(tile), kConfig.tile_rows, 0);
    for_rows(params_.columns, columns_of(tile), kConfig.tile_columns, kConfig.tile_rows);
  }

  __device__ unsigned unaligned(int buffer, int row) const {
    constexpr auto kLayout = SharedMemory<kConfig>::kLayout;
    return smem_.base + kLayout.unaligned + buffer * kLayout.unaligned_bytes +
           row * config::kUnalignedRow;
  }

  __device__ void copy(const StageWalk<kConfig>& stage, int buffer) const {
    constexpr int kUnits = config::kUnalignedRow / 16;
    for_operands(stage.tile(), [&](const config::OperandParams& operand, RowRange range, int rows,
                                   int first) {
      const int existing = min(rows, range.end - range.first);
      const unsigned char* begin = operand.data + range.first * operand.stride + stage.k();
      const int bytes = stage.tile().k_end - stage.k();
#pragma unroll 1  // this warpgroup has few registers
      for (int i = lane_; i < (existing - warp_ + kWarps - 1) / kWarps * kUnits; i += 32) {
        const int row = i / kUnits * kWarps + warp_, unit = i % kUnits;
        const auto address = reinterpret_cast<unsigned long long>(begin + row * operand.stride);
        const unsigned long long source = (address & ~15ull) + 16 * unit;
        // Nothing behind the row is read.
        const int left = bytes + static_cast<int>(address & 15) - 16 * unit;
        if (left <= 0) continue;
        ptx::copy_unit_async(unaligned(buffer, first + row) + 16 * unit,
                             reinterpret_cast<const void*>(source), min(left, 16));
      }
    });
  }

  // Values beyond K become 0; rows beyond the operand are left as they are.
  __device__ void shift(const StageWalk<kConfig>& stage, int buffer, int target) const {
    for_operands(stage.tile(), [&](const config::OperandParams& operand, RowRange range, int rows,
                                   int first) {
      const int existing = min(rows, range.end - range.first);
      const auto begin = static_cast<unsigned>(reinterpret_cast<unsigned long long>(operand.data)) +
                         static_cast<unsigned>(range.first * operand.stride + stage.k());
      const unsigned tile = first == 0 ? smem_.rows(target) : smem_.columns(target);
      const int bytes = stage.tile().k_end - stage.k() - 4 * lane_;
      const unsigned mask = bytes >= 4 ? ~0u : bytes <= 0 ? 0 : (1u << 8 * bytes) - 1;
#pragma unroll 2
      for (int row = warp_; row < existing; row += kWarps) {
        const unsigned offset = (begin + static_cast<unsigned>(row * operand.stride)) % 16;
        const unsigned word = unaligned(buffer, first + row) + offset / 4 * 4 + 4 * lane_;
        const unsigned value = __funnelshift_r(ptx::load_shared_word(word),
                                               ptx::load_shared_word(word + 4), 8 * (offset % 4));
        ptx::store_shared_word(
            tile + row * kStageDepth + 16 * (lane_ / 4 ^ row % 8) + lane_ % 4 * 4, value & mask);
      }
    });
  }

  const Sm90GemmParams& params_;
  const SharedMemory<kConfig>& smem_;
  int warp_;
  int lane_;
};

template <Sm90GemmConfig kConfig>
struct LoadUnaligned : LoadDefaults<kConfig> {
  static constexpr unsigned kArrivals = ptx::kArrivalsOfWarp * kConfig.copy_warps();

  static __device__ void run(const Sm90GemmParams& params, const SharedMemory<kConfig>& smem,
                             int warp) {
    UnalignedCopy<kConfig>(params, smem, copy_warp(warp)).run();
  }
};

}  // namespace octofold::sm90
