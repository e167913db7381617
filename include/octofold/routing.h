// Routing of tokens to experts, and back: the experts and weights of a token, the order of rows
// expert by expert, and the weighted sum of the experts' results.
//
// T is the number of tokens, k the slots of a token, E the experts, R the rows on which experts
// work. Flat slot s = t · k + j is slot j of token t. Index tensors are int32, on the device of the
// others. Matrices may have leading dimensions, [..., k], which count as rows; columns are
// contiguous. Tensors that are only read may have any row stride. Tensors that are written have
// rows that do not overlap; index tensors that are written are contiguous.
//
// Whatever index tensors hold, nothing outside the tensors is read or written. On a GPU wrong
// numbers raise no error (unless OCTOFOLD_CHECK_GROUPS=1 has them checked); the CPU backend throws
// Error(kInvalidArgument), which names the argument and its first bad entry. The same input gives
// the same bits. All operations can be captured in a CUDA graph, and replayed with other numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "octofold/export.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/types.h"

namespace octofold {

struct TopKOptions {
  Scoring scoring = Scoring::kSoftmax;
  bool normalize = false;  ///< whether weights are divided by their sum over the k slots
  /// For kSigmoid: experts form `groups` groups of equal size, of which the best `top_groups` stay.
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;
  float scaling_factor = 1.0f;  ///< finite; weights are multiplied by it
};

struct TopKArguments {
  TensorView logits{};               ///< [..., E] float32, float16 or bfloat16
  std::optional<TensorView> bias{};  ///< [E] float32, contiguous, for kSigmoid

  // Written.
  MutableTensorView ids{};      ///< [..., k] int32, 1 <= k <= E
  MutableTensorView weights{};  ///< [..., k] float32
};

/// Writes for each token the k experts of the best choice, and their weights, in FP32:
///
///   kSoftmax: score = exp(logit) / Σ exp(logit) over all experts; choice = logit
///   kSigmoid: score = 1 / (1 + exp(-logit));                      choice = score + bias
///
/// kSoftmax is that of the routers of Mixtral (normalize) and Qwen3-MoE (normalize as
/// norm_topk_prob), kSigmoid that of DeepSeek-V3 (arXiv:2412.19437, section 2.1.2). With groups > 1
/// the score of a group is the sum of its two best choices, and only experts of the `top_groups`
/// best groups are chosen. These groups have at least k experts, and each group has at least two.
/// Weights are the scores of the chosen, without bias; `normalize` divides them by their sum
/// (kSigmoid: + 1e-20), then they are multiplied by `scaling_factor`. The k experts stand in the
/// order of descending choice; among equal choices, and equal groups, the lower index is better.
/// NaN is better than any number.
///
/// A GPU takes up to 1024 experts, k up to 32 and groups up to 32; more are kUnsupported. Scores on
/// CPU and GPU may differ in their last bits.
/// Errors: as those of cast().
OCTOFOLD_API void top_k(const TopKArguments& arguments, const TopKOptions& options = {},
                        Stream stream = {});

struct TopKGradientArguments {
  TensorView gradient{};  ///< by the weights: float32 [..., k]
  TensorView logits{};    ///< as they were given to top_k()
  TensorView ids{};       ///< as top_k() wrote them; -1: a slot that counts for nothing
  MutableTensorView logits_gradient{};  ///< written: logits' shape and dtype
};

/// Writes the gradient of the weights of top_k(), with the same options, by the logits. Scores are
/// computed anew; the choice itself has no gradient. Arithmetic is FP32 (on the CPU double), and
/// each result is rounded once. On a GPU ids outside [0, E) count for nothing.
OCTOFOLD_API void top_k_gradient(const TopKGradientArguments& arguments,
                                 const TopKOptions& options = {}, Stream stream = {});

/// The results of sort_by_expert(): int32, contiguous.
struct SortedSlots {
  MutableTensorView offsets{};  ///< [E + 1]: rows of expert e are offsets[e] … offsets[e + 1]
  MutableTensorView sources{};  ///< [T · k]: the flat slot of each row, -1 from offsets[E] on
  MutableTensorView
      positions{};  ///< the shape of ids: the row of each slot, -1 where there is none
  /// [sort_workspace_size()]; its contents afterwards do not matter.
  MutableTensorView workspace{};
};

/// The number of elements of the workspace of sort_by_expert() for `slots` = T · k slots. It
/// depends on nothing else.
OCTOFOLD_API std::int64_t sort_workspace_size(std::int64_t slots, std::int64_t experts);

/// Writes the order of rows expert by expert, and within an expert by flat slot. `ids` [..., k] are
/// experts' numbers in [0, experts), or -1 for slots that go nowhere; on a GPU other numbers count
/// as -1. There are fewer than 2^31 slots. A GPU takes up to 2048 experts; more are kUnsupported.
/// Errors: as those of top_k().
OCTOFOLD_API void sort_by_expert(const TensorView& ids, std::int64_t experts,
                                 const SortedSlots& out, Stream stream = {});

struct CombineArguments {
  TensorView y{};                       ///< [R, H] float32, float16 or bfloat16
  TensorView positions{};               ///< [..., k] int32: rows of y; other numbers add nothing
  std::optional<TensorView> weights{};  ///< float32, the shape of positions; left out: ones
  /// [..., H] of out's dtype: to this the sums are added. May be out itself.
  std::optional<TensorView> c{};
  MutableTensorView out{};  ///< written: [..., H] float32, float16 or bfloat16
};

/// out[t] = c[t] + Σ_j weights[t, j] · y[positions[t, j]]. Each product and each sum is rounded to
/// FP32 by itself, c first, then j in order; the result is rounded once to out's dtype. CPU and GPU
/// give the same bits. The CPU backend takes positions in [-1, R). Errors: as those of cast().
OCTOFOLD_API void combine(const CombineArguments& arguments, Stream stream = {});

struct CombineGradientArguments {
  TensorView gradient{};                 ///< by out: [..., H] float32, float16 or bfloat16
  TensorView y{};                        ///< [R, H] of any of these
  TensorView positions{};                ///< [..., k] int32, as they were given to combine()
  MutableTensorView weights_gradient{};  ///< written: float32, the shape of positions
};

/// The gradient by weights of combine(): Σ_h gradient[t, h] · y[positions[t, j], h] in FP32 (on the
/// CPU in double, rounded once), 0 where a slot adds nothing.
OCTOFOLD_API void combine_gradient(const CombineGradientArguments& arguments, Stream stream = {});

struct ActivationDotsArguments {
  TensorView gradient{};  ///< by activation(x): [R, N] float32, float16 or bfloat16
  TensorView x{};  ///< of its dtype: [R, 2·N] for a gated activation, gate first; else [R, N]
  TensorView positions{};  ///< [..., k] int32: rows of x; other numbers have none
  Activation activation = Activation::kSwiGlu;
  std::optional<TensorView> c{};  ///< as dots: to this they are added. May be dots itself.
  MutableTensorView dots{};       ///< written: float32, the shape of positions
};

/// dots[t, j] = Σ_n gradient[r, n] · activation(x)[r, n] of row r = positions[t, j], 0 where a slot
/// has none. Where out = combine(activation(x) · Wᵀ, positions, weights), and `gradient` is that by
/// out of each row's token times W, dots are the gradient by weights: combine_gradient() has it of
/// the rows of the product instead, which then have to be kept. In FP32, of an activation that is
/// not rounded (on the CPU in double, rounded once); c is added last. The CPU backend takes
/// positions in [-1, R). Errors: as those of cast().
OCTOFOLD_API void activation_dots(const ActivationDotsArguments& arguments, Stream stream = {});

struct ExpertSumsArguments {
  /// float32, float16 or bfloat16. Without x: by the sum of a token's experts, [..., N]. With x: by
  /// activation(x), [T · k, N], of each row.
  TensorView gradient{};
  std::optional<TensorView> x{};  ///< as in activation_dots(): [T · k, N], or 2·N of a gated one
  Activation activation = Activation::kSwiGlu;
  TensorView offsets{};      ///< int32 [E + 1], contiguous, as sort_by_expert() writes them
  TensorView sources{};      ///< int32 [T · k], likewise
  TensorView weights{};      ///< float32 [..., k]: those of combine()
  MutableTensorView sums{};  ///< written: float32 [E, columns of a row]
};

/// sums[e] = Σ_r weights[s] · row r, over the rows r of expert e, s = sources[r] being their slots.
/// Row r is that of `gradient` of the token of s; with x it is the gradient by x[r], rounded to x's
/// type. So it is the gradient by the bias of expert e: of its result, or of what its activation
/// takes. In FP32 and in a fixed order (on the CPU in double, rounded once); 0 where an expert has
/// no rows. The CPU backend takes sources in [-1, T · k), of which -1 adds nothing.
/// Errors: as those of cast().
OCTOFOLD_API void expert_sums(const ExpertSumsArguments& arguments, Stream stream = {});

}  // namespace octofold
