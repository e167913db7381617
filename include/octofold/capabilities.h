// What works where: operations, forms of their operands, and GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/export.h"

namespace octofold {

/// How an operation runs.
enum class Way : std::uint8_t {
  kNative,      ///< FP8 units multiply
  kKernels,     ///< kernels that need no FP8 units
  kWeightOnly,  ///< not this, but FP8 weights with 16-bit activations (gemm_weight_only)
  kCast,        ///< not this, but FP8 in memory, dequantized before another library's product
  kCpu,         ///< on the CPU backend alone
  kNone,        ///< nowhere: the call is an error on the CPU too
};

/// "native", "kernels", "weight-only", "cast", "CPU", "none". Throws Error(kInvalidArgument) for a
/// number that is none of the enumerators.
OCTOFOLD_API std::string_view name(Way way);

/// What an operand of an operation is: "numbers" (float32, float16 or bfloat16), one of these where
/// it matters which, "fp8" (codes without scales), or codes with scales: a granularity, "two-level"
/// (128x128 with `channel_scale`), "head" or "128 keys" (of attention).
struct CapabilityOperand {
  std::string name;
  std::string form;
};

struct CapabilityCell {
  Way way = Way::kNone;
  /// Why not natively or by kernels: what a call there throws says this. Empty where it is so, and
  /// of what the CPU does.
  std::string why_not;
};

/// One operation with operands of one form each.
struct CapabilityRow {
  std::string operation;  ///< the public function: "gemm"
  std::string kind;       ///< the name that info() has for it: "products"
  std::vector<CapabilityOperand> operands;
  std::vector<CapabilityCell> cells;  ///< one for each target
};

struct CapabilityTarget {
  std::string name;                ///< "9.0", or "cpu"
  std::int32_t compute_major = 0;  ///< 0: the CPU
  std::int32_t compute_minor = 0;
  std::string examples;            ///< "H100, H200"; empty where none is known
  std::vector<std::int32_t> gpus;  ///< those at hand, by their index
};

struct Capabilities {
  /// The architectures from 7.5 on, those of GPUs at hand among them, and last the CPU.
  std::vector<CapabilityTarget> targets;
  std::vector<CapabilityRow> rows;
  /// One line: which GPUs are at hand, or why none is and the table says what would work.
  std::string at_hand;
};

/// By the tables that planners and operations refuse by. A GPU at hand counts as that which
/// OCTOFOLD_TARGET names. Never throws for what is missing. Asks the driver, as info() does.
OCTOFOLD_API Capabilities capabilities();

}  // namespace octofold
