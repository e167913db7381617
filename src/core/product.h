// Products as all rooms below the checks see them: matrices, and what becomes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "octofold/cast_sources.h"
#include "octofold/dot.h"
#include "octofold/tensor.h"
#include "octofold/vocabulary.h"

#include "kernels/cast/config/cast.h"
#include "kernels/shared/work.h"

namespace octofold::core {

/// The places of the groups of a product in its matrices. A dense product is one group.
struct Groups {
  config::Work work = config::Work::kDense;
  std::int64_t count = 1;
  const std::int32_t* numbers = nullptr;  ///< offsets [count + 1] or counts [count], on the device
  GroupLayout layout = GroupLayout::kSpaced;  ///< where K is in groups
  std::int64_t scale_stride = 0;  ///< elements from b's scales of one group to those of the next
  /// The same of a, where a.scale is that of the first group too.
  std::optional<std::int64_t> a_scale_stride{};
  std::int64_t expected_rows = 0;  ///< of a group; where K is in groups: columns of one
  std::int64_t max_rows = 0;       ///< where offsets may end, or what counts may be
};

/// Rows of a that arrive while the product runs, in shards of as many rows each. A shard is there,
/// codes and scales, once its flag is not 0.
struct Arrivals {
  const std::int32_t* flags = nullptr;  ///< [shards], on the device
  std::int64_t shards = 1;
  std::int64_t own = 0;  ///< the shard whose rows come first; then the ones behind it, in a circle
  double most_seconds = 60;  ///< that the CPU waits for a flag; a GPU waits on
};

/// The epilogue that makes gates and ups one matrix and casts it.
struct GatedEpilogue {
  Activation activation = Activation::kSwiGlu;
  config::CastFormat format{};
  MutableTensorView scale{};  ///< of the codes
};

/// out = a · bᵀ (+ c) (+ bias), checked; leading dimensions are one. With groups a, out and c of
/// all groups lie one below another (K in groups: out and c do), and so do their b, [count · N, K],
/// and bias, [count · N]; b.scale is that of the first group.
struct Product {
  ScaledTensorView a{};  ///< with cast_a: the numbers, without scales
  ScaledTensorView b{};
  MutableTensorView out{};  ///< with a gated epilogue: its codes
  std::optional<TensorView> c{};
  std::optional<TensorView> bias{};
  bool fast_accumulation = false;
  bool batch_invariant = false;  ///< the bits of a row of out depend on that row of a alone
  Groups groups{};
  std::optional<Arrivals> arrivals{};          ///< of a dense product
  std::optional<config::CastFormat> cast_a{};  ///< a comes in high precision and is cast so
  std::optional<GatedEpilogue> gated{};
  std::string_view candidate{};  ///< the configuration of this name; empty: the planner's choice
};

/// out = x · wᵀ (+ bias), or x · w, checked; leading dimensions are one. gemm_weight_only(),
/// grouped_gemm_weight_only() and their gradients are all of them. With groups x and out of all
/// groups lie one below another, and so do their w and bias, [count · N]; w.scale is that of the
/// first group.
struct WeightOnlyProduct {
  DotOperand x{};
  std::optional<GatheredRows> gathered{};  ///< of groups of rows: which rows of x these are
  ScaledTensorView w{};
  MutableTensorView out{};
  std::optional<TensorView> bias{};
  std::optional<MutableTensorView> workspace{};  ///< of a dense product
  bool transposed = false;                       ///< x · w
  bool batch_invariant = false;  ///< the bits of a row of out depend on that row of x alone
  Groups groups{};
  std::string_view candidate{};  ///< the configuration of this name; empty: the planner's choice
};

}  // namespace octofold::core
