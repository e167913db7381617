// The one table of the operations that have kernels, and on which GPUs. Planners throw what it
// says, info() tells it.
#pragma once

#include <string>
#include <string_view>

#include "octofold/vocabulary.h"

#include "plan/gpu.h"

namespace octofold::plan {

/// Operations whose kernels want the same of a GPU.
enum class Operation {
  kCast,            ///< quantize, dequantize, convert, and what is fused with casts
  kNorm,            ///< norms with casts, and their gradients
  kRotary,          ///< rotary
  kRouting,         ///< tokens to experts and back
  kDot,             ///< dot
  kWeightOnly,      ///< gemm_weight_only and its gradient
  kAttention,       ///< attention
  kProduct,         ///< gemm
  kGroupedProduct,  ///< grouped_gemm, and gated_gemm of groups
  kGatedProduct,    ///< gated_gemm
  kDynamicProduct,  ///< gemm whose A is cast on its way
};
inline constexpr Operation kOperations[] = {
    Operation::kCast,         Operation::kNorm,          Operation::kRotary,
    Operation::kRouting,      Operation::kDot,           Operation::kWeightOnly,
    Operation::kAttention,    Operation::kProduct,       Operation::kGroupedProduct,
    Operation::kGatedProduct, Operation::kDynamicProduct};

/// "casts": for people.
std::string_view word(Operation operation);

/// Why there are no kernels of the operation for this GPU; empty where there are.
std::string why_not(Operation operation, const Gpu& gpu);

/// The same of bfloat16 in tensor cores, where the operation has kernels for the GPU.
std::string why_not_bfloat16(Operation operation, const Gpu& gpu);

/// Throws Error(kUnsupported) that names `called`, the public function, and says why not.
void require_kernels(Operation operation, std::string_view called, const Gpu& gpu);
/// The same for operands of this type.
void require_kernels(Operation operation, std::string_view called, DType type, const Gpu& gpu);

}  // namespace octofold::plan
