// Rotary position embeddings of queries and keys.
#pragma once

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"

namespace octofold {

struct RotaryArguments {
  /// [tokens, heads, head_dim] or [batch, tokens, heads, head_dim]: float32, float16 or bfloat16,
  /// head_dim even, its last dimension contiguous, the others anywhere.
  TensorView x;
  /// [tokens, head_dim] for all batches, or [batch, tokens, head_dim], where batch may be 1: of x's
  /// dtype, the last dimension contiguous.
  TensorView cos;
  TensorView sin;  ///< Like cos; its strides may differ.
  /// The transpose of the rotation in place of it: the gradient by x, where x is that by y. With
  /// cos² + sin² = 1 and equal halves it is the inverse.
  bool inverse = false;
};

/// Rotates pairs of elements, head_dim / 2 apart, as GPT-NeoX, Llama and transformers'
/// rotate_half() pair them. (Neighbours, as in GPT-J, are another convention.) With h = head_dim /
/// 2, i < h:
///
///   y[i]     = x[i] · cos[i] - x[i + h] · sin[i]
///   y[i + h] = x[i + h] · cos[i + h] + x[i] · sin[i + h]
///
/// Inverse: y[i] = x[i] · cos[i] + x[i + h] · sin[i + h], and y[i + h] = x[i + h] · cos[i + h] -
/// x[i] · sin[i]. Halves of cos and sin need not be equal.
///
/// y: of x's shape and dtype, contiguous; it overlaps no other tensor. Products and their sum are
/// FP32 operations, rounded to y's dtype once; bits do not depend on the device. Throws Error:
/// kInvalidArgument for wrong dtypes, shapes, strides, devices or overlapping memory; on a GPU
/// kUnsupported without kernels for it, kUnavailable without a usable driver or compiler.
OCTOFOLD_API void rotary(const RotaryArguments& arguments, const MutableTensorView& y,
                         Stream stream = {});

}  // namespace octofold
