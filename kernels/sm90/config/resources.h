// The share of its multiprocessor that a block of threads of Hopper's GEMM kernel has: shared
// memory, and registers, which setmaxnreg moves from the producers to the consumers.
#pragma once

#include "kernels/sm90/config/config.h"

namespace octofold::config {

// Shared memory that a block of threads may have where a multiprocessor is to hold so many of them:
// of its 228 KB the system takes 1 KB for each block. Source: CUDA programming guide,
// "Technical Specifications per Compute Capability".
constexpr int shared_memory_of_block(int blocks) { return 228 * 1024 / blocks - 1024; }
inline constexpr int kSm90SharedMemory = shared_memory_of_block(1);

// Registers of a thread when the block starts: a multiprocessor's 65 536 divided evenly, rounded
// down to a multiple of 8. With 3 warpgroups they are 168. After setmaxnreg all warpgroups together
// may have no more than at the start: a kernel that asks for more hangs at its first instruction.
constexpr int Sm90GemmConfig::registers_at_start() const {
  return 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8;
}

// Registers of the producers. Threads that copy operands themselves need more.
constexpr int Sm90GemmConfig::producer_registers() const {
  if (dynamic.exists) return 32;
  // Walks over shards take registers, and of those over groups two, the copy's and the shift's.
  if (load != OperandLoad::kTma && work == Work::kArrivingRows) return 72;
  if (load == OperandLoad::kThreads && groups_rows(work)) return 64;
  return load == OperandLoad::kTma ? 40 : 56;
}

// Registers of the second producer warpgroup, where there is one.
constexpr int Sm90GemmConfig::second_producer_registers() const {
  return dynamic.exists ? cast_registers(blocks_per_multiprocessor, tile_columns)
                        : producer_registers();
}

// Registers of the consumers: all that is left.
constexpr int Sm90GemmConfig::consumer_registers() const {
  const int all = (consumer_warpgroups + producer_warpgroups()) * registers_at_start();
  const int producing =
      producer_registers() + (producer_warpgroups() > 1 ? second_producer_registers() : 0);
  const int fair = (all - producing) / consumer_warpgroups / 8 * 8;
  return fair < 232 ? fair : 232;
}

// Registers of a consumer thread that the products fill: the accumulators, the partial sums of one
// sub-tile, the scales of its columns and their products with those of its rows.
constexpr int Sm90GemmConfig::product_registers() const {
  const int partial_sums = !promote() ? 0 : order == ConsumerOrder::kAlternating ? 2 : 1;
  const int scales = column_scales() == Granularity::kBlock1x128 ? tile_columns / 2 : 0;
  return tile_columns / 2 * (sub_tiles() + partial_sums) + scales;
}

// Rows of a stage that a warp casts in one turn: a lane has eight vectors of them, or as many as it
// has registers for.
constexpr int Sm90GemmConfig::cast_rows() const {
  const int vectors = (second_producer_registers() < 80 ? 4 : 8) / (dynamic.vectors ? 1 : 2);
  const int most = dynamic.rows_at_once() * vectors;
  return tile_columns < most ? tile_columns : most;
}
// Turns of a warp whose rows are on their way at one time.
constexpr int Sm90GemmConfig::casts_ahead() const {
  return second_producer_registers() < 120 ? 1 : 2;
}
// Turns of a stage.
constexpr int Sm90GemmConfig::cast_turns() const {
  return dynamic.exists ? tile_columns / cast_rows() : 0;
}

}  // namespace octofold::config
