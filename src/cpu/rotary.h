// Rotary embeddings on the CPU: the reference.
#pragma once

#include "octofold/rotary.h"

namespace octofold::cpu {

/// octofold::rotary() on checked arguments: x of rank 4, cos and sin of rank 3.
void rotary(const RotaryArguments& arguments, const MutableTensorView& y);

}  // namespace octofold::cpu
