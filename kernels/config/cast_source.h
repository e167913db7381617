// What a cast reads its values from: x as it is, or what is worked out from it on the way.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/config/norm_form.h"

namespace octofold::config {

// Each a device type in a file of kernels/cast/sources.
enum class SourceKind {
  kPlain,               // x
  kActivation,          // an activation of x
  kActivationGradient,  // the gradient by x, from that by the activation
  kNormed,              // x normalized, from its rows' statistics
};

constexpr const char* word(SourceKind kind) {
  switch (kind) {
    case SourceKind::kPlain: return "";
    case SourceKind::kActivation: return "activation";
    case SourceKind::kActivationGradient: return "activation gradient";
    case SourceKind::kNormed: return "normed";
  }
  return "?";
}

struct CastSource {
  SourceKind kind = SourceKind::kPlain;
  // Of activations and their gradients.
  Activation activation = Activation::kSwiGlu;
  GateLayout layout = GateLayout::kHalves;
  // Of a gradient that is two halves: whether a tile takes the same columns of both, which are
  // worked out from the same values.
  bool both_halves = false;
  // Of what is normed.
  NormForm norm{};

  static constexpr const char* kTypeName = "octofold::config::CastSource";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("kind", kind);
    if (kind == SourceKind::kNormed) field("norm", norm);
    if (!has_activation()) return;
    field("activation", activation);
    if (is_gated(activation)) field("layout", layout);
    if (casts_halves()) field("both_halves", both_halves);
  }
  friend constexpr bool operator==(const CastSource&, const CastSource&) = default;

  // Of one that has no gate, the layout is nothing.
  static constexpr CastSource of(SourceKind kind, Activation activation, GateLayout layout) {
    return {kind, activation, is_gated(activation) ? layout : GateLayout::kHalves};
  }

  constexpr bool has_activation() const {
    return kind == SourceKind::kActivation || kind == SourceKind::kActivationGradient;
  }
  // Whether the columns that are cast are halves, each of which is to begin at a whole vector.
  constexpr bool casts_halves() const {
    return kind == SourceKind::kActivationGradient && is_gated(activation) &&
           layout == GateLayout::kHalves;
  }
  // Of up to 16 bytes, that a vector of values is worked out from.
  constexpr int pieces() const {
    if (kind == SourceKind::kNormed) return norm.centres() ? 3 : 2;
    const int of_x = is_gated(activation) ? 2 : 1;
    const bool takes_one = of_x == 1 || layout == GateLayout::kInterleaved;
    if (kind == SourceKind::kActivationGradient) return takes_one ? 2 : 3;
    return kind == SourceKind::kActivation ? of_x : 1;
  }
  constexpr bool reads_neighbours() const {
    return kind == SourceKind::kActivation && pieces() == 2 && layout == GateLayout::kInterleaved;
  }
  // Tiles of what is cast that a block of threads takes together.
  constexpr int parts() const { return both_halves ? 2 : 1; }
};

}  // namespace octofold::config
