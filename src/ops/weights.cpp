#include "ops/weights.h"

#include "ops/scales.h"

namespace octofold::ops {

void check_weights(const core::Arguments& check, const ScaledTensorView& w, Device device,
                   Inputs& inputs) {
  check.require_scaled_input("w", w);
  require_scales(check, "w", plan::kWeights, form_of(w));
  check.require_same_device("w", w.data, device);
  inputs.add("w", w.data);
  inputs.add("w.scale", w.scale);
}

}  // namespace octofold::ops
