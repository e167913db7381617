#include "ops/weights.h"

namespace octofold::ops {

void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   Inputs& inputs) {
  check.require_scaled_input("w", w);
  if (w.channel_scale) {
    check.fail("w.channel_scale", "none, as two-level scales of 'w' are for gemm()", "one");
  }
  check.require_same_device("w", w.data, device);
  inputs.add("w", w.data);
  inputs.add("w.scale", w.scale);
}

}  // namespace octofold::ops
