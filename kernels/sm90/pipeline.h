// A ring of stages between those that fill it and those that use it up.
#pragma once

namespace octofold::sm90 {

// Where one side stands in the ring: the stage, and the parity of the barriers' phase. A consumer
// waits for `full` with this parity, a producer for `empty` with the other: the first round finds
// every stage empty.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // At most once around.
  __device__ void advance_by(int count) {
    stage += count;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

}  // namespace octofold::sm90
