// The policies of a configuration: what stands in each place of the kernel (kernel.h). This is the
// one file that asks a configuration for its features in order to choose code.
#pragma once

#include "kernels/shared/group_walk.h"
#include "kernels/sm90/await_rows.h"
#include "kernels/sm90/consumer.h"
#include "kernels/sm90/gated.h"
#include "kernels/sm90/groups.h"
#include "kernels/sm90/load_dynamic.h"
#include "kernels/sm90/load_tma.h"
#include "kernels/sm90/load_unaligned.h"
#include "kernels/sm90/orders.h"
#include "kernels/sm90/pass_tiles.h"
#include "kernels/sm90/scales_mirrored.h"
#include "kernels/sm90/shared_memory.h"
#include "kernels/sm90/split_k.h"
#include "kernels/sm90/store_boxes.h"
#include "kernels/sm90/store_prefetched_c.h"
#include "kernels/sm90/store_slabs.h"
#include "kernels/sm90/store_tile.h"

namespace octofold::sm90 {

// The first case that holds: FirstOf<When<condition, A>, When<condition, B>, Otherwise<C>>.
template <bool kHolds, typename Policy>
struct When;
template <typename Policy>
using Otherwise = When<true, Policy>;

template <typename Case, typename... Cases>
struct FirstOfCases : FirstOfCases<Cases...> {};
template <typename Policy, typename... Cases>
struct FirstOfCases<When<true, Policy>, Cases...> {
  using Chosen = Policy;
};
template <typename... Cases>
using FirstOf = typename FirstOfCases<Cases...>::Chosen;

template <Sm90GemmConfig kConfig>
struct Policies {
  using LoadKind = config::OperandLoad;
  using StoreKind = config::OutputStore;
  using OrderKind = config::ConsumerOrder;

  // The data that the blocks of a cluster share.
  using Cluster = FirstOf<When<(kConfig.multicast_blocks() > 1), Multicast<kConfig>>,
                          When<(kConfig.split_k > 1), SplitK<kConfig>>,  //
                          Otherwise<Alone<kConfig>>>;

  // The part of either operand that a stage holds.
  using Rows = FirstOf<When<kConfig.loads_sub_tiles(), GroupRows<kConfig>>,  //
                       Otherwise<TileRows<kConfig>>>;
  using RowScaleLoad = RowScalesOfTile<kConfig>;
  using Columns =
      FirstOf<When<kConfig.gated.exists, GatedColumns<kConfig>>,
              When<kConfig.dynamic.exists, CastColumns<kConfig>>, Otherwise<TileColumns<kConfig>>>;

  // How it gets there.
  using Load = FirstOf<When<kConfig.load == LoadKind::kWords, LoadWords<kConfig>>,
                       When<kConfig.load == LoadKind::kThreads, LoadUnaligned<kConfig>>,
                       When<kConfig.dynamic.exists, LoadAndCast<kConfig, Rows>>,
                       Otherwise<LoadByTma<kConfig, Rows, Columns>>>;
  static constexpr unsigned kArrivalsOfStage =
      Load::kArrivals + RowScaleLoad::kScaleArrivals + Columns::kScaleArrivals;

  // Who finds the consumers' tiles.
  using Tiles =
      FirstOf<When<kConfig.passes_tiles(), PassedTiles<kConfig>>, Otherwise<WalkedTiles<kConfig>>>;

  // The work that the products overlap with.
  using ColumnScaleValues = FirstOf<When<kConfig.gated.exists, GatedColumnScales<kConfig>>,
                                    Otherwise<ColumnScales<kConfig>>>;
  using Warpgroup = ConsumerWarpgroup<kConfig, Load, ColumnScaleValues>;
  using Timing = FirstOf<When<kConfig.order == OrderKind::kPingPong, PingPong<Warpgroup>>,
                         When<kConfig.wait_ahead, WaitAhead<Warpgroup>>,  //
                         Otherwise<Free<Warpgroup>>>;
  using Order = FirstOf<When<!kConfig.promote(), SumInTensorCore<Warpgroup>>,
                        When<kConfig.order == OrderKind::kAlternating, Alternate<Warpgroup>>,
                        Otherwise<Promote<Warpgroup, Timing>>>;

  // How D leaves.
  using Boxes = FirstOf<When<kConfig.stores_groups(), GroupBoxes<kConfig>>,
                        When<kConfig.prefetches_c(), BoxesWithC<kConfig>>,  //
                        Otherwise<TileBoxes<kConfig>>>;
  using Write = FirstOf<When<kConfig.gated.exists, WriteGated<kConfig>>,
                        When<kConfig.swapped, WriteSwapped<kConfig>>,  //
                        Otherwise<WriteRows<kConfig>>>;
  using Store = FirstOf<
      When<kConfig.store == StoreKind::kDirect, StoreDirectly<kConfig>>,
      When<kConfig.store == StoreKind::kTmaSlabs, StoreSlabs<kConfig, SentSlabs<kConfig, Boxes>>>,
      When<kConfig.store == StoreKind::kSlabs, StoreSlabs<kConfig, CopiedSlabs<kConfig>>>,
      When<kConfig.store == StoreKind::kTmaPrefetchedC, StorePrefetchedC<kConfig, Boxes>>,
      Otherwise<StoreTile<kConfig, Write, Boxes>>>;
};

}  // namespace octofold::sm90
