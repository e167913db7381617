// The position of one side in a ring of stages between producers and consumers.
#pragma once

namespace octofold::config {

// The stage, and the parity of its barriers' phase. A consumer waits for `full` with this parity, a
// producer for `empty` with the other one: the first round finds every stage empty.
template <int kStages>
struct RingPosition {
  int stage = 0;
  unsigned parity = 0;

  constexpr void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace octofold::config
