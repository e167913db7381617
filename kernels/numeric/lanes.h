// Reductions over all lanes of a warp, and the search for a tile by them.
#pragma once

#include "kernels/numeric/vector.h"
#include "kernels/ptx/architecture.h"
#include "kernels/ptx/arithmetic.h"

namespace octofold::numeric {

// choose(left, right): either; which of them may not depend on their order.
template <typename T, typename Choose>
__device__ inline T chosen_of_lanes(T value, Choose&& choose) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = choose(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  }
  return value;
}

template <typename T>
__device__ inline T max_of_lanes(T value) {
  if constexpr (ptx::kHasAmpere) {
    return __reduce_max_sync(0xFFFFFFFFu, value);
  } else {
    return chosen_of_lanes(value, [](T left, T right) { return left < right ? right : left; });
  }
}

template <typename T>
__device__ inline T min_of_lanes(T value) {
  if constexpr (ptx::kHasAmpere) {
    return __reduce_min_sync(0xFFFFFFFFu, value);
  } else {
    return chosen_of_lanes(value, [](T left, T right) { return right < left ? right : left; });
  }
}

// The largest magnitudes among what the lanes of a warp hold, packed as in vector.h.

template <DType kType>
__device__ inline unsigned largest_of_vector(const unsigned (&words)[4]) {
  unsigned magnitudes = magnitude<kType>(words[0]);
#pragma unroll
  for (int i = 1; i < 4; ++i) magnitudes = larger<kType>(magnitudes, magnitude<kType>(words[i]));
  return magnitudes;
}

// Among kWidth neighbouring lanes, all of which get them.
template <DType kType, int kWidth>
__device__ inline unsigned largest_of_lanes(unsigned magnitudes) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2) {
    magnitudes = larger<kType>(magnitudes, __shfl_xor_sync(0xFFFFFFFFu, magnitudes, distance));
  }
  return magnitudes;
}

// Reduces kCount vectors that kLanes neighbouring lanes share: the lane gets the amax of vector
// `lane % kLanes / (kLanes / kCount)`. Of two lanes, each hands on half of the vectors and keeps
// the other half, until it is left with one: few exchanges for all vectors together.
template <DType kType, int kLanes, int kCount>
__device__ inline unsigned largest_of_one(unsigned (&magnitudes)[kCount], int lane) {
  int distance = kLanes / 2;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const unsigned upper = static_cast<unsigned>(lane & distance);
#pragma unroll
    for (int i = 0; i < half; ++i) {
      unsigned kept = magnitudes[i], given = magnitudes[half + i];
      ptx::swap_if(upper, kept, given);
      magnitudes[i] = larger<kType>(kept, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
    }
    distance /= 2;
  }
  return largest_of_lanes<kType, kLanes / kCount>(magnitudes[0]);
}

// ---- Tiles of parts whose sizes are numbers in device memory, such as groups of rows or
// sequences: those of one part after those of another.

struct TileOfPart {
  int part;
  unsigned tile;  // of the part's
  bool exists;
};

// Tile `index` below 2^29 of those of all parts, by all lanes of a warp, each of which asks for
// kOfLane parts at once: tiles_of(part) is how many a part has. Numbers that lie may make more
// tiles than there are: those of a part beyond `index` are not counted, so that sums are right as
// far as they matter.
template <int kOfLane, typename TilesOf>
__device__ inline TileOfPart find_tile(int parts, unsigned index, TilesOf&& tiles_of) {
  const unsigned lane = threadIdx.x % 32;
  unsigned before = 0;
  TileOfPart found{0, 0, false};
  for (int first = 0; first < parts; first += 32 * kOfLane) {
    int part = first + static_cast<int>(lane) * kOfLane;
    unsigned tiles[kOfLane], own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      tiles[i] = part + i < parts ? min(tiles_of(part + i), index + 1) : 0;
      own += tiles[i];
    }
    unsigned through = own;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const unsigned other = __shfl_up_sync(0xFFFFFFFFu, through, distance);
      if (lane >= distance) through += other;
    }
    const unsigned hit = min_of_lanes(index < before + through ? lane : 32u);
    // The lane that has the tile finds which of its parts it belongs to.
    unsigned tile = index - before - (through - own);
    bool goes_on = true;
#pragma unroll
    for (int i = 0; i + 1 < kOfLane; ++i) {
      goes_on = goes_on && tile >= tiles[i];
      if (goes_on) tile -= tiles[i], ++part;
    }
    part = __shfl_sync(0xFFFFFFFFu, part, static_cast<int>(hit % 32));
    tile = __shfl_sync(0xFFFFFFFFu, tile, static_cast<int>(hit % 32));
    if (hit < 32 && !found.exists) found = {part, tile, true};
    before += __shfl_sync(0xFFFFFFFFu, through, 31);
  }
  return found;
}

}  // namespace octofold::numeric
