// The source of a cast's values: x as it is, or what is worked out from it on the way.
#pragma once

#include "octofold/vocabulary.h"

#include "kernels/cast/config/norm_form.h"

namespace octofold::config {

// Each a device type in a file of kernels/cast/sources.
enum class SourceKind {
  kPlain,               // x
  kActivation,          // an activation of x
  kActivationGradient,  // the gradient by x, from that by the activation
  kNormed,              // x normalized, from its rows' statistics
  kGathered,            // rows of x that an index names, maybe multiplied by factors
};

constexpr const char* word(SourceKind kind) {
  switch (kind) {
    case SourceKind::kPlain: return "";
    case SourceKind::kActivation: return "activation";
    case SourceKind::kActivationGradient: return "activation gradient";
    case SourceKind::kNormed: return "normed";
    case SourceKind::kGathered: return "gathered";
  }
  return "?";
}

struct CastSource {
  SourceKind kind = SourceKind::kPlain;
  // The function, and where gate and up lie, for activations and their gradients.
  Activation activation = Activation::kSwiGlu;
  GateLayout layout = GateLayout::kHalves;
  // For a gradient that is two halves: true if a tile takes the same columns of both, which are
  // worked out from the same values.
  bool both_halves = false;
  // The norm, for what is normed.
  NormForm norm{};
  // For activations and their gradients: true if x is FP8 codes with scales. Each product of a code
  // and its scale is rounded to the type of what is cast, as dequantize() has it.
  bool scaled = false;
  DType codes = DType::kE4M3;
  Granularity granularity = Granularity::kBlock1x128;
  // For what is gathered: true if each row is multiplied by a factor, and rounded.
  bool factors = false;
  // The same in the transpose alone, which is made behind the rows.
  bool transposed_factors = false;

  static constexpr const char* kTypeName = "octofold::config::CastSource";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("kind", kind);
    if (kind == SourceKind::kNormed) field("norm", norm);
    if (kind == SourceKind::kGathered && factors) field("factors", factors);
    if (transposed_factors) field("transposed_factors", transposed_factors);
    if (!has_activation()) return;
    field("activation", activation);
    if (is_gated(activation)) field("layout", layout);
    if (casts_halves()) field("both_halves", both_halves);
    if (!scaled) return;
    field("scaled", scaled);
    field("codes", codes);
    field("granularity", granularity);
  }
  friend constexpr bool operator==(const CastSource&, const CastSource&) = default;

  // Returns the source of an activation. If that has no gate, the layout is of no account.
  static constexpr CastSource of(SourceKind kind, Activation activation, GateLayout layout) {
    return {kind, activation, is_gated(activation) ? layout : GateLayout::kHalves};
  }
  // The same of an x in FP8.
  constexpr CastSource of_codes(DType dtype, Granularity unit) const {
    CastSource source = *this;
    source.scaled = true;
    source.codes = dtype;
    source.granularity = unit;
    return source;
  }

  constexpr bool has_activation() const {
    return kind == SourceKind::kActivation || kind == SourceKind::kActivationGradient;
  }
  // True if the columns that are cast are halves, each of which is to begin at a whole vector.
  constexpr bool casts_halves() const {
    return kind == SourceKind::kActivationGradient && is_gated(activation) &&
           layout == GateLayout::kHalves;
  }
  // True if values are worked out, from several pieces; else a vector is read where it lies.
  constexpr bool works_out() const {
    return kind != SourceKind::kPlain && kind != SourceKind::kGathered;
  }
  // Pieces of up to 16 bytes that a vector of values is worked out from: those of x, of an FP8 x as
  // many scales, and the gradient.
  constexpr int pieces() const {
    if (!works_out()) return 1;
    if (kind == SourceKind::kNormed) return norm.centres() ? 3 : 2;
    return (scaled ? 2 : 1) * pieces_of_x() + (kind == SourceKind::kActivationGradient ? 1 : 0);
  }
  // Gates and ups; next to each other they are one piece, unless that is too large.
  constexpr int pieces_of_x() const {
    if (!has_activation() || !is_gated(activation)) return 1;
    return layout == GateLayout::kHalves || reads_neighbours() ? 2 : 1;
  }
  // True if its pieces of 16 bytes lie next to each other.
  constexpr bool reads_neighbours() const {
    return kind == SourceKind::kActivation && is_gated(activation) &&
           layout == GateLayout::kInterleaved && !scaled;
  }
  // Bytes of a piece, for a vector of so many values.
  constexpr int bytes_of(int piece, int vector) const {
    const bool interleaved = has_activation() && layout == GateLayout::kInterleaved;
    if (kind == SourceKind::kNormed) return piece == 0 ? 16 : 4;
    if (kind == SourceKind::kActivationGradient && piece == pieces() - 1) {
      return interleaved ? 8 : 16;
    }
    if (!scaled) return 16;
    if (piece >= pieces_of_x()) return 4;
    return kind == SourceKind::kActivation && interleaved ? 2 * vector : vector;
  }
  // Bytes of shared memory that a piece takes. An FP8 x has many small pieces, which lie close.
  constexpr int slot_bytes(int piece, int vector) const {
    return scaled ? bytes_of(piece, vector) : 16;
  }
  // Bytes of shared memory of the pieces before this one; before pieces(), of all.
  constexpr int slot_bytes_before(int piece, int vector) const {
    int bytes = 0;
    for (int i = 0; i < piece; ++i) bytes += slot_bytes(i, vector);
    return bytes;
  }
  // Rows that a thread works out without a branch in between, where the first of them exists; those
  // that do not are made from zeros, and are zeros. Registers of the others would spill.
  constexpr int rows_at_once() const {
    return scaled && kind == SourceKind::kActivationGradient ? 4 : 1;
  }
  // Tiles of what is cast that a block of threads takes together.
  constexpr int parts() const { return both_halves ? 2 : 1; }
};

}  // namespace octofold::config
