// The form of a product: all that, beside sizes and memory, decides how it is computed. Read by the
// run-time compiler too, as vocabulary.h.
#pragma once

#include "octofold/vocabulary.h"

namespace octofold {

/// One side of a product: the type of its codes, and what shares a scale.
struct Operand {
  DType type = DType::kE4M3;
  Granularity scales = Granularity::kBlock1x128;

  static constexpr const char* kTypeName = "octofold::Operand";
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("type", type);
    field("scales", scales);
  }
  friend constexpr bool operator==(const Operand&, const Operand&) = default;
};

/// The type of C, or of a bias; kNone if there is none.
enum class Addend : unsigned char { kNone, kOutputType, kFloat32 };

constexpr const char* word(Addend addend) {
  switch (addend) {
    case Addend::kNone: return "";
    case Addend::kOutputType: return "of out's type";
    case Addend::kFloat32: return "float32";
  }
  return "?";
}

/// out[M, N] = a[M, K] · b[N, K]ᵀ (+ c[M, N]) (+ bias[N]); gemm.h says what each may be.
struct GemmForm {
  Operand a{};
  Operand b{.scales = Granularity::kBlock128x128};
  DType out = DType::kBFloat16;
  Addend c = Addend::kNone;
  Addend bias = Addend::kNone;
  bool fast_accumulation = false;

  static constexpr const char* kTypeName = "octofold::GemmForm";
  /// Calls field(name, value) for each field of `form`, which may be const or not.
  template <typename Form, typename Visit>
  static constexpr void visit_fields(Form& form, Visit&& field) {
    field("a", form.a);
    field("b", form.b);
    field("out", form.out);
    field("c", form.c);
    field("bias", form.bias);
    field("fast_accumulation", form.fast_accumulation);
  }
  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    visit_fields(*this, field);
  }
  friend constexpr bool operator==(const GemmForm&, const GemmForm&) = default;
};

}  // namespace octofold
