// The matrix of capabilities(), of whatever GPUs a driver tells of.
#pragma once

#include "octofold/capabilities.h"

#include "cuda/probe.h"

namespace octofold::ops {

/// `target`: the compute capability that GPUs are to count as, 80 for 8.0; 0: their own.
Capabilities capabilities_of(const cuda::DriverProbe& probe, const Component& nvrtc, int target);

}  // namespace octofold::ops
