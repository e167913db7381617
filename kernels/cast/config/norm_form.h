// The computation of a norm on a row, whichever kernel does it.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::config {

// One of the vectors that are applied to rows, and its type.
enum class NormOperand {
  kNone,
  kInputType,  // that of x
  kFloat32,    // where x is of another type
};

constexpr const char* word(NormOperand operand) {
  switch (operand) {
    case NormOperand::kNone: return "";
    case NormOperand::kInputType: return "of x's type";
    case NormOperand::kFloat32: return "float32";
  }
  return "?";
}

// The output that a kernel of rows writes beside statistics and the sum.
enum class NormOutput {
  kNothing,
  kCodes,    // the cast of y
  kNumbers,  // y, in the type of x
};

constexpr const char* word(NormOutput output) {
  switch (output) {
    case NormOutput::kNothing: return "";
    case NormOutput::kCodes: return "codes";
    case NormOutput::kNumbers: return "numbers";
  }
  return "?";
}

// y = (x - mean) · rstd · weight + bias, then · (1 + scale) + shift: what of it there is. The mean
// is kLayer's only.
struct NormForm {
  NormKind kind = NormKind::kRms;
  NormOperand weight = NormOperand::kNone;
  NormOperand bias = NormOperand::kNone;
  NormOperand scale = NormOperand::kNone;
  NormOperand shift = NormOperand::kNone;

  static constexpr const char* kTypeName = "octofold::config::NormForm";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("kind", kind);
    field("weight", weight);
    field("bias", bias);
    field("scale", scale);
    field("shift", shift);
  }
  friend constexpr bool operator==(const NormForm&, const NormForm&) = default;

  constexpr bool centres() const { return kind == NormKind::kLayer; }
  // How many vectors of x's type take the registers that all operands take, where x is narrow.
  constexpr int width() const {
    const NormOperand operands[] = {weight, bias, scale, shift};
    int width = 0;
    for (const NormOperand operand : operands) width += static_cast<int>(operand);
    return width;
  }
  // True if rows of different batches have operands of their own.
  constexpr bool modulates() const {
    return scale != NormOperand::kNone || shift != NormOperand::kNone;
  }
};

// The addresses and strides of the vectors of a NormForm.

struct NormOperands {
  const void* weight;  // [cols], as bias
  const void* bias;
  const void* scale;  // [batches, cols], as shift; strides count elements
  long long scale_stride;
  const void* shift;
  long long shift_stride;
  long long rows_per_batch;
};

}  // namespace octofold::config
