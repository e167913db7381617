// The enumerators of the configuration of Hopper's GEMM kernel.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::config {

// How the operands reach shared memory. Threads copy what TMA cannot address: rows whose length in
// bytes or address is no multiple of 16.
enum class OperandLoad : unsigned char {
  kTma,
  kWords,    // by threads, where addresses and rows are multiples of 4 bytes
  kThreads,  // by threads, which shift what they copy into place
};

constexpr const char* word(OperandLoad load) {
  switch (load) {
    case OperandLoad::kTma: return "by TMA";
    case OperandLoad::kWords: return "by threads, in words";
    case OperandLoad::kThreads: return "by threads (slower)";
  }
  return "?";
}

// kThreads: bytes that hold 128 of a row at any address, in units of 16.
inline constexpr int kUnalignedRow = kScaleBlock + 16;

// How D reaches global memory.
enum class OutputStore : unsigned char {
  kTma,             // whole tiles through shared memory, by a producer warp
  kDirect,          // straight from registers: any row stride
  kTmaSlabs,        // slabs: by each consumer warp, where a whole tile would take too much memory
  kSlabs,           // slabs that the warp itself copies: any row stride, in full lines
  kTmaPrefetchedC,  // as kTma, box by box, each after TMA has prefetched C's to the same place
};

constexpr const char* word(OutputStore store) {
  switch (store) {
    case OutputStore::kTma: return "by TMA";
    case OutputStore::kDirect: return "direct";
    case OutputStore::kTmaSlabs: return "by TMA in slabs";
    case OutputStore::kSlabs: return "in slabs";
    case OutputStore::kTmaPrefetchedC: return "by TMA onto C";
  }
  return "?";
}

constexpr bool by_tma(OutputStore store) {
  return store != OutputStore::kDirect && store != OutputStore::kSlabs;
}
constexpr bool in_slabs(OutputStore store) {
  return store == OutputStore::kTmaSlabs || store == OutputStore::kSlabs;
}

// A slab holds the rows that a consumer warp has of a sub-tile, 128 bytes wide.
inline constexpr int kSlabRows = 16;
inline constexpr int kSlabRowBytes = 128;
inline constexpr int kSlabBytes = kSlabRows * kSlabRowBytes;

// How the consumer warpgroups are timed, so that promotion overlaps with products.
enum class ConsumerOrder : unsigned char {
  kFree,         // a warpgroup issues its products when their operands are there
  kPingPong,     // ping-pong: one warpgroup promotes while the next one's products run
  kAlternating,  // a warpgroup has the next stage's products under way while it promotes: two
                 // partial sums, taken in turn
};

constexpr const char* word(ConsumerOrder order) {
  switch (order) {
    case ConsumerOrder::kFree: return "free";
    case ConsumerOrder::kPingPong: return "ordered";
    case ConsumerOrder::kAlternating: return "alternating";
  }
  return "?";
}

}  // namespace octofold::config
