// Activations and their slopes in FP32. Every operation is rounded as it says, none is fused by the
// compiler's choice: a cast and the epilogue of a product give the same bits.
// src/cpu/activations.cpp works them out in FP64. At -∞ SiLU and GELU are NaN, as the products 0 ·
// ∞ in them.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/ptx/arithmetic.h"

namespace octofold::numeric {

inline constexpr float kLog2OfE = 1.44269504f;

// f of an activation f(x), or f(gate) · up, and its derivative. What up is multiplied with may be a
// function of it too.
struct Curve {
  float value, slope;
};

// 1 / (1 + exp(-x)).
__device__ inline float sigmoid(float x) {
  return ptx::reciprocal(__fadd_rn(1.0f, ptx::exp2(__fmul_rn(x, -kLog2OfE))));
}

// (1 + tanh(u)) / 2 is the sigmoid of 2u: here 2u is x · (kLinear + kCubic · x²).
struct GeluTanh {
  static constexpr float kLinear = 1.59576912f;   // 2 · √(2/π)
  static constexpr float kCubic = 0.0713548162f;  // 2 · √(2/π) · 0.044715

  static __device__ float part(float x) {
    return sigmoid(__fmul_rn(x, __fmaf_rn(kCubic, __fmul_rn(x, x), kLinear)));
  }
  static __device__ float slope_of_exponent(float x) {
    return __fmaf_rn(3 * kCubic, __fmul_rn(x, x), kLinear);
  }
};

// Φ, the normal distribution, and its density. Φ(-u) = density · R(u) with a polynomial in
// t = 1 / (1 + 0.36 u), fitted to R in relative error: below 1e-6, also far out, where Φ is small.
struct Normal {
  float part, density;

  static __device__ Normal at(float x) {
    const float bell = ptx::exp2(__fmul_rn(__fmul_rn(x, x), -0.5f * kLog2OfE));
    const float t = ptx::reciprocal(__fmaf_rn(0.36f, fabsf(x), 1.0f));
    constexpr float kFit[] = {0.0470672078f, -0.179802433f, 0.181005671f, 0.0265136763f,
                              0.139732273f,  0.141770094f,  0.143713208f};
    float ratio = kFit[0];
#pragma unroll
    for (int i = 1; i < 7; ++i) ratio = __fmaf_rn(ratio, t, kFit[i]);
    const float beyond = __fmul_rn(bell, __fmul_rn(ratio, t));  // |x|
    return {x < 0 ? beyond : __fadd_rn(1.0f, -beyond), __fmul_rn(0.398942280f, bell)};
  }
};

// gpt-oss: its slope is that of the sigmoid, and none where a value is clamped. NaN is handed on.
struct SwiGluOss {
  static constexpr float kSlope = 1.702f;
  static constexpr float kLimit = 7;

  static __device__ Curve gate(float x) {
    const float clamped = x > kLimit ? kLimit : x;
    const float part = sigmoid(__fmul_rn(clamped, kSlope));
    const float rest = __fmul_rn(part, __fadd_rn(1.0f, -part));
    const float slope = __fmaf_rn(clamped, __fmul_rn(rest, kSlope), part);
    return {__fmul_rn(clamped, part), x > kLimit ? 0.0f : slope};
  }
  static __device__ Curve up(float x) {
    const bool is_clamped = fabsf(x) > kLimit;
    const float clamped = !is_clamped ? x : x < 0 ? -kLimit : kLimit;
    return {__fadd_rn(clamped, 1.0f), is_clamped ? 0.0f : 1.0f};
  }
};

template <Activation kActivation>
__device__ inline Curve curve(float x) {
  using enum Activation;
  if constexpr (kActivation == kReluSquared) {
    const float positive = x < 0 ? 0.0f : x;  // NaN is handed on
    return {__fmul_rn(positive, positive), __fmul_rn(2.0f, positive)};
  } else if constexpr (kActivation == kSwiGluOss) {
    return SwiGluOss::gate(x);
  } else if constexpr (kActivation == kGelu || kActivation == kGeGluErf) {
    const Normal normal = Normal::at(x);
    return {__fmul_rn(x, normal.part), __fmaf_rn(x, normal.density, normal.part)};
  } else {  // x times a sigmoid s(e(x)): its slope is s + x · s · (1 - s) · e'
    constexpr bool kTanh = kActivation == kGeluTanh || kActivation == kGeGluTanh;
    const float part = kTanh ? GeluTanh::part(x) : sigmoid(x);
    const float rest = __fmul_rn(part, __fadd_rn(1.0f, -part));
    const float bent = kTanh ? __fmul_rn(rest, GeluTanh::slope_of_exponent(x)) : rest;
    return {__fmul_rn(x, part), __fmaf_rn(x, bent, part)};
  }
}

// The factor that f(gate) is multiplied with, and its derivative by up.
template <Activation kActivation>
__device__ inline Curve factor(float up) {
  if constexpr (kActivation == Activation::kSwiGluOss) return SwiGluOss::up(up);
  return {up, 1.0f};
}

// f(gate) · up, or f(gate) where the activation is not gated.
template <Activation kActivation>
__device__ inline float activate(float gate, float up) {
  const float value = curve<kActivation>(gate).value;
  if constexpr (!is_gated(kActivation)) return value;
  return __fmul_rn(value, factor<kActivation>(up).value);
}

// The gradients by gate, or by x, and by up, from the one by the activation.
template <Activation kActivation>
__device__ inline float2 activation_gradients(float gradient, float gate, float up) {
  const Curve of_gate = curve<kActivation>(gate);
  if constexpr (!is_gated(kActivation)) return {__fmul_rn(gradient, of_gate.slope), 0};
  const Curve of_up = factor<kActivation>(up);
  float by_up = __fmul_rn(gradient, of_gate.value);
  if constexpr (kActivation == Activation::kSwiGluOss) by_up = __fmul_rn(by_up, of_up.slope);
  return {__fmul_rn(gradient, __fmul_rn(of_gate.slope, of_up.value)), by_up};
}

}  // namespace octofold::numeric
