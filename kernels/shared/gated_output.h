// The output of a product whose columns are gate and up of a gated activation: the activation, and
// the FP8 codes of what it gives, with a scale for each 1x128.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/shared/cast_rule.h"

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

}  // namespace octofold::config
