// The capability matrix: operations, forms of their operands, and the GPUs that they work on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/export.h"

namespace octofold {

/// How an operation runs.
enum class SupportKind : std::uint8_t {
  kNative,      ///< FP8 units multiply
  kKernels,     ///< kernels run that need no FP8 units
  kWeightOnly,  ///< not itself, but with FP8 weights and 16-bit activations (gemm_weight_only)
  kCast,        ///< not itself, but with FP8 in memory, dequantized before another's product
  kCpu,         ///< only on the CPU backend
  kNone,        ///< nowhere: the call is an error on the CPU too
};

/// "native", "kernels", "weight-only", "cast", "CPU", "none". Throws Error(kInvalidArgument) for a
/// number that is none of the enumerators.
OCTOFOLD_API std::string_view name(SupportKind how);

/// An operand of an operation, by its name in the call, and its form: "numbers" (float32, float16
/// or bfloat16), one of these where it matters which, "fp8" (codes without scales), or codes with
/// scales: a granularity, "head" or "128 keys" (for attention).
struct CapabilityOperand {
  std::string name;
  std::string form;
  std::int64_t most_rows = 0;  ///< 0: any number
};

struct Support {
  SupportKind how = SupportKind::kNone;
  /// Why the operation runs neither natively nor by kernels, as the error of a call there says.
  /// Empty where it does, and for the CPU.
  std::string why_not;
};

/// One operation with operands of one form each.
struct CapabilityRow {
  std::string operation;  ///< the public function: "gemm"
  std::string kind;       ///< its name in info(): "products"
  std::vector<CapabilityOperand> operands;
  std::vector<Support> support;  ///< one for each target
};

struct CapabilityTarget {
  std::string name;                ///< "9.0", or "cpu"
  std::int32_t compute_major = 0;  ///< 0: the CPU
  std::int32_t compute_minor = 0;
  std::string examples;            ///< "H100, H200"; empty where none is known
  std::vector<std::int32_t> gpus;  ///< those at hand, by their index
};

struct Capabilities {
  /// The architectures from 7.5 on, including those of the GPUs at hand, and last the CPU.
  std::vector<CapabilityTarget> targets;
  std::vector<CapabilityRow> rows;
  /// One line that says which GPUs are at hand, or why none is; then the table says what would
  /// work.
  std::string at_hand;
};

/// Made from the tables by which planners and operations refuse. A GPU at hand counts as the one
/// that OCTOFOLD_TARGET names. Never throws for what is missing. Asks the driver, as info() does.
OCTOFOLD_API Capabilities capabilities();

}  // namespace octofold
