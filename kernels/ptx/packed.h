// Arithmetic and logic on words that hold several numbers.
#pragma once

namespace octofold::ptx {

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

}  // namespace octofold::ptx
