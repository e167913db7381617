// Attention on the CPU.
#pragma once

#include "octofold/attention.h"

namespace octofold::cpu {

/// octofold::attention on checked arguments; `scale` is not 0. Throws for offsets, counts and pages
/// that are out of range.
void attention(const AttentionArguments& arguments);

}  // namespace octofold::cpu
