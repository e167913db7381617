// Which operations there are kernels for, on which GPUs: the one table. Planners throw what it
// says, info() tells it.
#pragma once

#include <string>
#include <string_view>

#include "plan/gpu.h"

namespace octofold::plan {

/// Operations whose kernels want the same of a GPU.
enum class Operation {
  kCast,       ///< quantize, dequantize, convert, and what is fused with casts
  kNorm,       ///< norms with casts, and their gradients
  kRouting,    ///< tokens to experts and back
  kDot,        ///< dot
  kAttention,  ///< attention
  kProduct,    ///< gemm, of groups too, with a gated output or an input that is cast
};
inline constexpr Operation kOperations[] = {Operation::kCast,      Operation::kNorm,
                                            Operation::kRouting,   Operation::kDot,
                                            Operation::kAttention, Operation::kProduct};

/// "casts": for people.
std::string_view word(Operation operation);

/// Why there are no kernels of the operation for this GPU; empty where there are.
std::string why_not(Operation operation, const Gpu& gpu);

/// Throws Error(kUnsupported) that names `called`, the public function, and says why not.
void require_kernels(Operation operation, std::string_view called, const Gpu& gpu);

}  // namespace octofold::plan
