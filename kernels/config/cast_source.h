// What a cast reads its values from: x as it is, or what is worked out from it on the way.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold::config {

// Each a device type in a file of kernels/cast/sources.
enum class SourceKind {
  kPlain,               // x
  kActivation,          // an activation of x
  kActivationGradient,  // the gradient by x, from that by the activation
};

constexpr const char* word(SourceKind kind) {
  switch (kind) {
    case SourceKind::kPlain: return "";
    case SourceKind::kActivation: return "activation";
    case SourceKind::kActivationGradient: return "activation gradient";
  }
  return "?";
}

struct CastSource {
  SourceKind kind = SourceKind::kPlain;
  // Of activations and their gradients.
  Activation activation = Activation::kSwiGlu;
  GateLayout layout = GateLayout::kHalves;

  static constexpr const char* kTypeName = "octofold::config::CastSource";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("kind", kind);
    if (!has_activation()) return;
    field("activation", activation);
    if (is_gated(activation)) field("layout", layout);
  }
  friend constexpr bool operator==(const CastSource&, const CastSource&) = default;

  constexpr bool has_activation() const {
    return kind == SourceKind::kActivation || kind == SourceKind::kActivationGradient;
  }
  // Whether the columns that are cast are halves, each of which is to begin at a whole vector.
  constexpr bool casts_halves() const {
    return kind == SourceKind::kActivationGradient && is_gated(activation) &&
           layout == GateLayout::kHalves;
  }
};

}  // namespace octofold::config
