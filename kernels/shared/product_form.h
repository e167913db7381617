// The parts of a product that every kernel has alike: the output of one whose columns are gate and
// up of a gated activation (the activation, and the FP8 codes of what it gives, with a scale for
// each 1x128), and which properties of a product go together.
#pragma once

#include "octofold/gemm_form.h"
#include "octofold/vocabulary.h"

#include "kernels/shared/cast_rule.h"
#include "kernels/shared/work.h"

namespace octofold::config {

struct GatedOutput {
  bool exists = false;
  // The fields below count if it does. The type of the codes is the product's `out`.
  Activation activation = Activation::kSwiGlu;
  CastRule rule = kDeepGemmRule;
  bool power_of_two = false;
  bool saturate = true;

  static constexpr const char* kTypeName = "octofold::config::GatedOutput";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("exists", exists);
    if (!exists) return;
    field("activation", activation);
    field("rule", rule);
    field("power_of_two", power_of_two);
    field("saturate", saturate);
  }
  friend constexpr bool operator==(const GatedOutput&, const GatedOutput&) = default;
};

// In a description the activation says the rest.
constexpr const char* word(const GatedOutput& gated) {
  if (!gated.exists) return "";
  switch (gated.activation) {
    case Activation::kSwiGlu: return "swiglu";
    case Activation::kGeGluTanh: return "geglu-tanh";
    case Activation::kGeGluErf: return "geglu";
    case Activation::kSwiGluOss: return "swiglu-oss";
    default: return "?";
  }
}

constexpr const char* gated_invalid_reason(const GemmForm& form, const GatedOutput& gated) {
  if (!is_gated(gated.activation)) return "the activation has to be one of gate and up";
  if (!is_fp8(form.out)) return "the output of a gated product has to be FP8";
  if (form.a.scales != Granularity::kBlock1x128 || form.b.scales != Granularity::kBlock128x128) {
    return "a gated product needs 1x128 scales of A and 128x128 scales of B";
  }
  if (form.c != Addend::kNone || form.bias != Addend::kNone) {
    return "a gated product has no C and no bias";
  }
  return nullptr;
}

// Null if there is such a product, else why not.
constexpr const char* product_invalid_reason(const GemmForm& form, const GatedOutput& gated,
                                             Work work) {
  if (!is_fp8(form.a.type) || !is_fp8(form.b.type)) return "A and B have to be FP8";
  if (gated.exists) {
    if (const char* reason = gated_invalid_reason(form, gated)) return reason;
  } else if (is_fp8(form.out) || form.out == DType::kInt32) {
    return "D has to be float32, float16 or bfloat16";
  }
  if ((varies_along_k(form.a.scales) || varies_along_k(form.b.scales)) && form.fast_accumulation) {
    return "scales that vary along K need promotion";
  }
  if (work == Work::kGroupedDepth && (gated.exists || form.bias != Addend::kNone)) {
    return "a product with groups along K has no gate and no bias";
  }
  return nullptr;
}

}  // namespace octofold::config
