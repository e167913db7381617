// The arguments of layers: recipes as words, weights as numbers or casts, memory as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <variant>

#include "octofold/linear.h"

#include "arguments.h"

namespace octofold::bindings {

using Words = tvm::ffi::Array<tvm::ffi::Any>;
using OptionalGpu = tvm::ffi::Optional<std::int64_t>;

/// Three products: each the formats of a and b, fast_accumulation, batch_invariant; a format is
/// dtype, granularity, power_of_two, overflow, rule.
LinearRecipe recipe_of(const tvm::ffi::Array<Words>& products);

/// A GPU by its number; without one the CPU.
Device device_of(const OptionalGpu& gpu);

/// All of a tensor without gaps; of none nothing.
std::span<std::byte> bytes_of(const OptionalTensor& tensor);

/// Codes where there are scales, in the format that `product` reads b in; else numbers.
std::variant<TensorView, ScaledTensorView> weight_of(const CastOperation& operation,
                                                     std::string_view argument,
                                                     const tvm::ffi::TensorView& weight,
                                                     const OptionalTensor& scale,
                                                     const LinearProduct& product);

/// The cast of a weight's transpose, if one is given.
std::optional<ScaledTensorView> transposed_of(const CastOperation& operation,
                                              std::string_view argument,
                                              const OptionalTensor& codes,
                                              const OptionalTensor& scale,
                                              const LinearProduct& product);

inline std::optional<MutableTensorView> written(const CastOperation& operation,
                                                std::string_view argument,
                                                const OptionalTensor& tensor) {
  return operation.optional<MutableTensorView>(argument, tensor, "bfloat16, float16 or float32");
}

/// The functions that Python calls, and the bytes that they take.
inline Words layer_of(tvm::ffi::Function forward, tvm::ffi::Function backward,
                      const LayerMemory& memory) {
  return {std::move(forward), std::move(backward), memory.kept, memory.forward, memory.backward};
}

}  // namespace octofold::bindings
