// Swaps two words on a condition.
#pragma once

#include <utility>

#include "kernels/ptx/shared_memory.h"  // exchanges between lanes, where this is used

namespace octofold::ptx {

inline void swap_if(unsigned condition, unsigned& left, unsigned& right) {
  if (condition != 0) std::swap(left, right);
}

}  // namespace octofold::ptx
