// Orders other than those of consumer.h, in which products and what else a consumer does take
// turns.
//
// Ping-pong: consumer warpgroups take turns. Each passes a named barrier on to the next one when
// its products are under way, and promotes while the next one's products run.
//
// With three warpgroups at 192×128 it gains 1 to 2 %, between 129 and 400 rows and at K of at most
// 1536; at 256×128 it gains 10 % at K of at most 512 and costs 2 % elsewhere. Together with
// wait-ahead it keeps the other warpgroups waiting too long (docs/kernels/gemm-tilings.md).
#pragma once

#include "kernels/sm90/consumer.h"

namespace octofold::sm90 {

// Each warpgroup waits at a barrier of its own, which the one before it lets it pass. Barrier 0 is
// that of __syncthreads.
inline constexpr unsigned kFirstHandOver = 1;

template <typename Warpgroup>
struct PingPong : Free<Warpgroup> {
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  static __device__ void begin(Warpgroup& warpgroup, bool) {
    // The first one begins.
    if (warpgroup.index() == kConfig.consumer_warpgroups - 1) after_products(warpgroup, false);
  }
  static __device__ void before_products(const Warpgroup& warpgroup) {
    ptx::barrier_sync(kFirstHandOver + warpgroup.index(), 2 * 128);
  }
  static __device__ void after_products(const Warpgroup& warpgroup, bool) {
    const int next = (warpgroup.index() + 1) % kConfig.consumer_warpgroups;
    ptx::barrier_arrive(kFirstHandOver + next, 2 * 128);
  }
  // A warpgroup without products in a sub-tile takes its turn and passes it on all the same.
  static __device__ void pass_sub_tile(const Warpgroup& warpgroup) {
    before_products(warpgroup);
    after_products(warpgroup, false);
  }
};

// Alternating: each stage is promoted while the next one's products are under way, from two sets of
// partial sums in turn. It gains 2 to 9 % where a warpgroup is alone on its multiprocessor, as
// nobody else keeps the tensor cores busy meanwhile, and nothing where blocks share one.

template <typename Warpgroup>
class Alternate {
 public:
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  __device__ Alternate(Warpgroup&, bool) {}

  // The loop's body has two stages, so that either set of partial sums has registers of its own.
  __device__ void add_stages(Warpgroup& warpgroup, const Tile& tile, bool,
                             Accumulators<kConfig>& sums) {
    int left = tile.k_end - tile.k_begin;
    if (left <= 0) return;
    PartialSums first, second;
    int stage = begin_stage(warpgroup, first);
    while (true) {
      left -= kStageDepth;
      if (left <= 0) return finish_stage<0>(warpgroup, stage, first, sums);
      int next = begin_stage(warpgroup, second);
      finish_stage<1>(warpgroup, stage, first, sums);
      left -= kStageDepth;
      if (left <= 0) return finish_stage<0>(warpgroup, next, second, sums);
      stage = begin_stage(warpgroup, first);
      finish_stage<1>(warpgroup, next, second, sums);
    }
  }

  __device__ void pass_tile(Warpgroup& warpgroup, const Tile& tile, bool) {
    warpgroup.pass_stages(tile, [] {});
  }

 private:
  using PartialSums = typename Warpgroup::PartialSums;

  __device__ int begin_stage(Warpgroup& warpgroup, PartialSums& partial) {
    const int stage = warpgroup.stage();
    warpgroup.await_operands();
    ptx::wgmma_fence();
    warpgroup.issue(stage, 0, partial, false);
    ptx::wgmma_commit();
    warpgroup.advance();
    return stage;
  }

  // The earliest of the stages that were begun; `kBehind` more are under way.
  template <int kBehind>
  __device__ void finish_stage(Warpgroup& warpgroup, int stage, const PartialSums& partial,
                               Accumulators<kConfig>& sums) {
    warpgroup.read_scales(stage);
    ptx::wgmma_wait<kBehind>();
    warpgroup.release(stage);
#pragma unroll
    for (int i = 0; i < Warpgroup::kSums; ++i) {
      sums[0][i] += partial[i] * (warpgroup.row_scales.at(0, i) * warpgroup.column_scales.at(0, i));
    }
  }
};

// No promotion (`fast_accumulation`): the tensor core sums all of K, at about 14 bits, and always
// has another stage's products to go on with.

template <typename Warpgroup>
class SumInTensorCore {
 public:
  static constexpr Sm90GemmConfig kConfig = Warpgroup::kConfig;

  __device__ SumInTensorCore(Warpgroup&, bool) {}

  __device__ void add_stages(Warpgroup& warpgroup, const Tile& tile, bool,
                             Accumulators<kConfig>& sums) {
    int before = -1;  // the stage that may still be read
    for (int k = tile.k_begin; k < tile.k_end; k += kStageDepth) {
      const int stage = warpgroup.stage();
      warpgroup.await_operands();
      ptx::wgmma_fence();
#pragma unroll
      for (int sub_tile = 0; sub_tile < Warpgroup::kSubTiles; ++sub_tile) {
        warpgroup.issue(stage, sub_tile, sums[sub_tile], true);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (before >= 0) warpgroup.release(before);
      before = stage;
      warpgroup.advance();
    }
    ptx::wgmma_wait<0>();
    if (before >= 0) warpgroup.release(before);
  }

  __device__ void pass_tile(Warpgroup& warpgroup, const Tile& tile, bool) {
    warpgroup.pass_stages(tile, [] {});
  }
};

}  // namespace octofold::sm90
