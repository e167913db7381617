// An exchange of two values within a thread that is instructions, never a branch.
#pragma once

namespace octofold::ptx {

// Swaps `left` and `right` where condition != 0. Of several choices by one condition the compiler
// may make branches, with copies of whatever stands between them; where that is an exchange between
// lanes, the threads of the warp have to be collected for each copy. Here it sees no choice.
__device__ inline void swap_if(unsigned condition, unsigned& left, unsigned& right) {
  unsigned first, second;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; selp.b32 %0, %4, %3, p; selp.b32 %1, %3, %4, p; }"
      : "=&r"(first), "=r"(second)
      : "r"(condition), "r"(left), "r"(right));
  left = first, right = second;
}

}  // namespace octofold::ptx
