// The instructions of the GPU that is compiled for. Each is chosen where it is used, by a constant
// of this file; nobody else asks for an architecture.
#pragma once

namespace octofold::ptx {

#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__;  // 900 of 9.0
#else
inline constexpr int kArchitecture = 900;  // no device code at all
#endif

// Copies from global to shared memory that go on by themselves, conversions of two numbers to
// 16 bits, bfloat16, and reductions over the lanes of a warp.
inline constexpr bool kHasAmpere = kArchitecture >= 800;
inline constexpr bool kHasFp8Conversions = kArchitecture >= 890;
// Products of FP8 matrices by a warp.
inline constexpr bool kHasFp8Products = kArchitecture >= 890;
// Programmatic dependent launch, and the maximum of packed integers.
inline constexpr bool kHasHopper = kArchitecture >= 900;

// Blocks that a multiprocessor is to have registers for: counted on Hopper. What other instructions
// do takes more.
constexpr int resident_blocks(int wanted) { return kHasHopper ? wanted : 1; }

}  // namespace octofold::ptx
