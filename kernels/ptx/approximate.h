// Functions that the GPU approximates, each within about two units of the last place of FP32.
#pragma once

namespace octofold::ptx {

// 2^x; results below the normal numbers are zero.
__device__ inline float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x; of infinity 0, of 0 infinity.
__device__ inline float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace octofold::ptx
