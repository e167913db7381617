// Routing of tokens to experts, and back: which experts a token goes to and with which weights, the
// order of rows that lies expert by expert, and the weighted sum of what the experts give.
//
// Words: T tokens, k slots of a token, E experts, R rows that experts work on. Flat slot s = t · k
// + j is slot j of token t. Index tensors are int32, on the device of the others. Matrices may have
// leading dimensions, [..., k], which count as rows; columns are contiguous. What is only read may
// have any row stride, what is written rows that do not overlap, index tensors that are written no
// gaps.
//
// Whatever index tensors hold, nothing outside the tensors is read or written. On a GPU nothing is
// said about wrong numbers either (OCTOFOLD_CHECK_GROUPS=1 has them looked for), the CPU backend
// throws Error(kInvalidArgument) that names the argument and its first bad entry. The same input
// gives the same bits. All can be captured in a CUDA graph, and replayed with other numbers.
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
  bool normalize = false;  ///< whether weights are divided by their sum over the k
  /// Of kSigmoid: experts are in so many groups of equal size, of which the best `top_groups` stay.
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;
  float scaling_factor = 1.0f;  ///< finite; weights are multiplied by it
};

struct TopKArguments {
  TensorView logits{};               ///< [..., E] float32, float16 or bfloat16
  std::optional<TensorView> bias{};  ///< [E] float32, contiguous, of kSigmoid

  // Written.
  MutableTensorView ids{};      ///< [..., k] int32, 1 <= k <= E
  MutableTensorView weights{};  ///< [..., k] float32
};

/// Of each token the k experts of the best choice, and their weights, in FP32:
///
///   kSoftmax: score = exp(logit) / Σ exp(logit) over all experts; choice = logit
///   kSigmoid: score = 1 / (1 + exp(-logit));                      choice = score + bias
///
/// as the routers of Mixtral (normalize) and Qwen3-MoE (normalize as norm_topk_prob) have the one,
/// of DeepSeek-V3 (arXiv:2412.19437, section 2.1.2) the other. With groups > 1 the score of a group
/// is the sum of its two best choices, and experts of other than the `top_groups` best groups are
/// not chosen: those have k experts at least, and each group two. Weights are the scores of the
/// chosen, without bias; `normalize` divides them by their sum (kSigmoid: + 1e-20), then they are
/// multiplied by `scaling_factor`. The k stand in order of descending choice; of equal ones, and of
/// groups alike, the lower index is the better. NaN is better than any number.
///
/// On a GPU up to 1024 experts, k up to 32, groups up to 32: others are kUnsupported. Scores of CPU
/// and GPU may differ in their last bits.
/// Errors: as those of cast().
OCTOFOLD_API void top_k(const TopKArguments& arguments, const TopKOptions& options = {},
                        Stream stream = {});

struct TopKGradientArguments {
  TensorView gradient{};  ///< by weights: float32 [..., k]
  TensorView logits{};    ///< as they were given to top_k()
  TensorView ids{};       ///< as top_k() wrote them; -1: a slot that counts for nothing
  MutableTensorView logits_gradient{};  ///< written: logits' shape and dtype
};

/// The gradient by logits of what top_k() made of them with the same options; scores are worked out
/// anew, and the choice is no function that has a gradient. Arithmetic in FP32 (on the CPU in
/// double), each result rounded once. On a GPU ids outside [0, E) count for nothing.
OCTOFOLD_API void top_k_gradient(const TopKGradientArguments& arguments,
                                 const TopKOptions& options = {}, Stream stream = {});

/// What sort_by_expert() writes: int32, contiguous.
struct SortedSlots {
  MutableTensorView offsets{};  ///< [E + 1]: rows of expert e are offsets[e] … offsets[e + 1]
  MutableTensorView sources{};  ///< [T · k]: the flat slot of each row, -1 from offsets[E] on
  MutableTensorView
      positions{};  ///< the shape of ids: the row of each slot, -1 where there is none
  /// [sort_workspace_size()]; what it holds afterwards is of no account.
  MutableTensorView workspace{};
};

/// Elements of the workspace of sort_by_expert() for T · k slots. Depends on nothing else.
OCTOFOLD_API std::int64_t sort_workspace_size(std::int64_t slots, std::int64_t experts);

/// The order of rows that lies expert by expert, and of each expert by flat slot. `ids` [..., k]
/// are experts' numbers in [0, experts), or -1 for slots that go nowhere; on a GPU others count as
/// -1. Fewer than 2^31 slots; on a GPU up to 2048 experts, others are kUnsupported. Errors: as
/// those of cast().
OCTOFOLD_API void sort_by_expert(const TensorView& ids, std::int64_t experts,
                                 const SortedSlots& out, Stream stream = {});

struct CombineArguments {
  TensorView y{};                       ///< [R, H] float32, float16 or bfloat16
  TensorView positions{};               ///< [..., k] int32: rows of y; others add nothing
  std::optional<TensorView> weights{};  ///< float32, the shape of positions; left out: ones
  /// [..., H] of out's dtype: what is added to. May be out itself.
  std::optional<TensorView> c{};
  MutableTensorView out{};  ///< written: [..., H] float32, float16 or bfloat16
};

/// out[t] = c[t] + Σ_j weights[t, j] · y[positions[t, j]]: FP32, each product and each sum rounded
/// by itself, c first, then j in order; rounded once to out's dtype. CPU and GPU give the same
/// bits. The CPU backend takes positions in [-1, R). Errors: as those of cast().
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

}  // namespace octofold
