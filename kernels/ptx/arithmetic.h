// Arithmetic in one instruction: what the GPU approximates, each within about two units of the last
// place of FP32; words that hold several numbers; an exchange that is never a branch.
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

// Takes each bit from `ones` where the mask has a one, else from `zeros`: one instruction, which
// the compiler does not find where the mask is a constant.
__device__ inline unsigned select_bits(unsigned mask, unsigned ones, unsigned zeros) {
  unsigned selected;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(selected) : "r"(mask), "r"(ones), "r"(zeros));
  return selected;
}

// Products of two FP16 numbers each, to nearest even; subnormal ones are kept. NaN: 0x7FFF.
__device__ inline unsigned multiply_float16_pair(unsigned left, unsigned right) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(left), "r"(right));
  return product;
}

// Products of two bfloat16 numbers each, likewise.
__device__ inline unsigned multiply_bfloat16_pair(unsigned left, unsigned right) {
  unsigned product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(left), "r"(right), "r"(0x80008000u));
  return product;
}

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
