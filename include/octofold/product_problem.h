// Products without their tensors: for kernels that are made in advance, and for tables of the
// fastest.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/gemm_form.h"
#include "octofold/vocabulary.h"

namespace octofold {

/// A call of gemm().
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  GemmForm form{};

  template <typename Visit>
  constexpr void visit(Visit&& field) const {
    field("m", m);
    field("n", n);
    field("k", k);
    field("form", form);
  }
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

/// The part of a product that is in groups: nothing, rows of `a` one group after another
/// (RowGroups), rows with room for as many in each group (MaskedGroups), or K (DepthGroups).
enum class Grouping : unsigned char { kNone, kRows, kMasked, kDepth };

/// A call of gemm(), grouped_gemm() or gated_gemm().
struct ProductProblem {
  /// The sizes of the arguments: of kRows m is the rows of all groups, of kMasked those that each
  /// has room for, of kDepth k is that of all groups. With a gated epilogue n is the columns of the
  /// result, and form.out the type of its codes.
  GemmProblem product{};
  Grouping grouping = Grouping::kNone;
  std::int64_t groups = 1;
  /// The rows that a group of kMasked is expected to have. Others divide m or k by `groups`.
  std::optional<std::int64_t> expected_rows{};
  /// The activation of gated_gemm().
  std::optional<Activation> gated{};
  /// The type of an `a` that gemm() casts itself; form.a is then that of its codes.
  std::optional<DType> cast_from{};
  bool batch_invariant = false;
};

}  // namespace octofold
