// Matrix products of a warp, and loads of their operands: PTX ISA, "Matrix multiply-accumulate
// operation using mma instruction" and "ldmatrix".
//
// A product adds A [16, k] · B [k, 8] to sums [16, 8] in FP32. Its k numbers are 32 bytes of a row
// of A, or of a column of B. With g = lane / 4 and t = lane % 4 a lane holds, as bytes of these 32:
//
// | register           | which           | bytes             |
// |--------------------|-----------------|-------------------|
// | a[0], a[1]         | rows g, g + 8   | 4t … 4t + 3       |
// | a[2], a[3]         | rows g, g + 8   | 4t + 16 … 4t + 19 |
// | b[0]; b[1]         | column g        | as a[0]; as a[2]  |
// | sums[0], sums[1]   | row g           | columns 2t, 2t + 1|
// | sums[2], sums[3]   | row g + 8       | the same          |
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/ptx/architecture.h"

namespace octofold::ptx {

// 16 numbers of K of float16, or from Ampere on bfloat16. Before Ampere an instruction takes half
// of them.
template <DType kType>
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4],
                                    const unsigned (&b)[2]) {
  static_assert(kType == DType::kFloat16 || (kType == DType::kBFloat16 && kHasAmpere));
  if constexpr (kType == DType::kBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else if constexpr (kHasAmpere) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
  }
}

// The same, of sums that are 0 so far.
template <DType kType>
__device__ inline void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  static_assert(kType == DType::kFloat16 || (kType == DType::kBFloat16 && kHasAmpere));
  if constexpr (kType == DType::kBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  } else if constexpr (kHasAmpere) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0;
    multiply_add<kType>(sums, a, b);
  }
}

// 32 numbers of K of e4m3 or e5m2, mixed too.
template <DType kA, DType kB>
__device__ inline void multiply_add_fp8(float (&sums)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2]) {
  static_assert(is_fp8(kA) && is_fp8(kB) && kHasFp8Products);
#define OCTOFOLD_MULTIPLY_ADD_FP8(A, B)                                 \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." A "." B                  \
      ".f32 "                                                           \
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (kA == DType::kE4M3 && kB == DType::kE4M3) {
    OCTOFOLD_MULTIPLY_ADD_FP8("e4m3", "e4m3");
  } else if constexpr (kA == DType::kE4M3) {
    OCTOFOLD_MULTIPLY_ADD_FP8("e4m3", "e5m2");
  } else if constexpr (kB == DType::kE4M3) {
    OCTOFOLD_MULTIPLY_ADD_FP8("e5m2", "e4m3");
  } else {
    OCTOFOLD_MULTIPLY_ADD_FP8("e5m2", "e5m2");
  }
#undef OCTOFOLD_MULTIPLY_ADD_FP8
}

// Four matrices of 8 rows of 16 bytes in shared memory; lane l gives the address, a multiple of 16,
// of row l % 8 of matrix l / 8. A lane gets bytes 4t … 4t + 3 of row g of each.
__device__ inline void load_matrices(unsigned row_address, unsigned (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row_address)
               : "memory");
}

// The same of 16-bit elements, each matrix transposed: a lane gets elements g of rows 2t, 2t + 1.
__device__ inline void load_matrices_transposed(unsigned row_address, unsigned (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row_address)
               : "memory");
}

}  // namespace octofold::ptx
