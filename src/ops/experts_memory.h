// A layer of experts as its passes see it, and what they have in memory.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/cast.h"
#include "octofold/cast_targets.h"
#include "octofold/experts.h"
#include "octofold/tensor.h"

#include "ops/dense.h"

namespace octofold::ops::experts {

/// Both layers of an expert as linear layers of all rows: a row for each slot of a token.
struct Experts {
  explicit Experts(const ExpertsProblem& problem);

  std::int64_t rows() const { return up.tokens; }
  /// Columns of a transposed cast: the sums over tokens are of groups of them.
  std::int64_t columns() const { return group_columns(rows(), of.experts); }
  /// The type of rows between the layers.
  DType between() const { return of.weight_only.value_or(of.y); }

  const ExpertsProblem& of;
  LinearProblem up, down;
  bool keeps_between;  ///< True if backward goes through the activation
  bool keeps_routing;  ///< True if there is a backward
  bool fuses;          ///< True if the first product writes no result of its own
};

/// Throws for sizes of which no others can be computed, and then for all else.
Experts checked(const LayerArguments& arguments, const ExpertsProblem& problem);

/// The places of rows, as sort_by_expert() finds them.
struct Routing {
  Routing(const Experts& layer, Parts& parts);
  MutableTensorView offsets, sources, positions;
};

struct Kept {
  Kept(const Experts& layer, Parts& parts);
  std::optional<Routing> routing;
  std::optional<CastTarget> x_transposed, h_transposed, up_transposed, down_transposed;
  std::optional<MutableTensorView> between;  ///< the activation's input
};

struct ForwardSpace {
  ForwardSpace(const Experts& layer, Parts& parts);
  MutableTensorView counts, y;
  std::optional<CastTarget> x, h;
  std::optional<MutableTensorView> wide_h;  ///< where it is not cast
  std::optional<Routing> routing;
  std::optional<CastTarget> up, down;
  /// The filler is memory of a row that is filled from nowhere, where the cast of rows takes the
  /// largest of all, those too that are nobody's.
  std::optional<MutableTensorView> between, filler;
};

struct BackwardSpace {
  BackwardSpace(const Experts& layer, Parts& parts);
  std::optional<CastTarget> dy, dy_transposed;  ///< of the gradient by y
  std::optional<MutableTensorView> dh;          ///< that by the activation
  std::optional<CastTarget> d, d_transposed;    ///< of that by what the activation takes
  std::optional<MutableTensorView> wide_dy, wide_d;
  std::optional<MutableTensorView> dx, filler;  ///< of rows
  std::optional<MutableTensorView> up_sums, down_sums;
};

}  // namespace octofold::ops::experts
