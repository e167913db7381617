#include "plan/attention.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "cuda/backend.h"
#include "cuda/params.h"
#include "kernels/attention/config/params.h"

namespace octofold::cuda {
namespace {

// Tiles end beyond the last row or key.
constexpr std::int64_t kMostCounted = std::numeric_limits<int>::max() - 4096;

int counted(std::string_view what, std::int64_t count) {
  if (count > kMostCounted) {
    core::fail(ErrorCode::kUnsupported, "attention: {}: expected at most {}, got {}", what,
               kMostCounted, count);
  }
  return static_cast<int>(count);
}

// Kernels hold negative windows to be none, and so are those that no sequence fills.
int window_of(std::int64_t window) {
  return window > kMostCounted ? -1 : static_cast<int>(std::max<std::int64_t>(window, -1));
}

const int* ints_of(const std::optional<TensorView>& tensor) {
  return tensor ? static_cast<const int*>(tensor->data) : nullptr;
}

// True if each run of the last dimension begins at a multiple of `bytes`.
template <typename View>
bool rows_are_aligned(const View& tensor, std::int64_t bytes) {
  bool aligned =
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0;
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(tensor.rank); ++i) {
    aligned =
        aligned && (tensor.shape[i] <= 1 || tensor.strides[i] * size_of(tensor.dtype) % bytes == 0);
  }
  return aligned;
}

std::int64_t size_of_head(const TensorView& tensor) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank) - 1];
}

// True if values are the first numbers of the keys, in the same memory.
bool share_memory(const TensorView& k, const TensorView& v) {
  bool shared = k.data == v.data && k.dtype == v.dtype && size_of_head(v) <= size_of_head(k);
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(k.rank); ++i) {
    shared = shared && (k.shape[i] <= 1 || k.strides[i] == v.strides[i]);
  }
  return shared;
}

// The widest copies that both keys and values allow.
int copy_bytes_of(const AttentionArguments& arguments) {
  for (const int bytes : {16, 8, 4}) {
    if (size_of_head(arguments.k.data) % bytes == 0 &&
        size_of_head(arguments.v.data) % bytes == 0 && rows_are_aligned(arguments.k.data, bytes) &&
        rows_are_aligned(arguments.v.data, bytes)) {
      return bytes;
    }
  }
  return 1;
}

std::int64_t key_heads_of(const AttentionOperand& operand) {
  return operand.data.shape[static_cast<std::size_t>(operand.data.rank) - 2];
}

// True if keys of a head have scales of their own, rather than one.
bool has_key_scales(const AttentionOperand& operand) {
  if (!operand.scale || operand.scale->element_count() == 1) return false;
  return operand.scale->rank > 1 || operand.scale->shape[0] != key_heads_of(operand);
}

config::AttentionSide side_of(const AttentionOperand& operand, config::KeyLayout layout) {
  const bool packed = layout == config::KeyLayout::kPacked;
  const auto& strides = operand.data.strides;
  const std::size_t keys = packed ? 0 : 1;  // in shapes
  // The stride of a single key may be anything, and addresses of absent keys are aligned too.
  const std::int64_t key_stride = operand.data.shape[keys] > 1 ? strides[keys] : 0;
  config::AttentionSide side{.data = static_cast<const unsigned char*>(operand.data.data),
                             .outer_stride = packed ? 0 : strides[0],
                             .key_stride = key_stride,
                             .head_stride = strides[keys + 1],
                             .scale = nullptr,
                             .scale_outer_stride = 0,
                             .scale_block_stride = 0,
                             .scale_head_stride = 0};
  if (!operand.scale) return side;
  const TensorView& scale = *operand.scale;
  side.scale = static_cast<const float*>(scale.data);
  if (scale.element_count() == 1) return side;
  side.scale_head_stride = scale.strides[static_cast<std::size_t>(scale.rank) - 1];
  if (!has_key_scales(operand)) return side;
  if (layout != config::KeyLayout::kPacked) side.scale_outer_stride = scale.strides[0];
  if (layout == config::KeyLayout::kDense) side.scale_block_stride = scale.strides[1];
  if (packed) side.scale_block_stride = scale.strides[0];
  return side;
}

// Keys grow with each token; plans need not: there are four between a power of two and the next.
// Those with parts have as many as the workspace has.
std::int64_t planned_keys(bool in_parts, std::int64_t keys) {
  if (in_parts) return config::attention_parts(keys) * config::kPartKeys;
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(keys)));
  const std::int64_t step = std::max<std::int64_t>(power / 8, 64);
  return config::ceil_divide(keys, step) * step;
}

plan::AttentionProblem problem_of(const AttentionArguments& arguments) {
  const TensorView& q = arguments.q;
  const std::size_t at = arguments.query_offsets ? 0 : 1;
  return {.form = {.q = q.dtype,
                   .k = arguments.k.data.dtype,
                   .v = arguments.v.data.dtype,
                   .head_size = static_cast<int>(size_of_head(q)),
                   .value_size = static_cast<int>(size_of_head(arguments.v.data)),
                   .shared_latent = share_memory(arguments.k.data, arguments.v.data),
                   .layout = arguments.page_table    ? config::KeyLayout::kPaged
                             : arguments.key_offsets ? config::KeyLayout::kPacked
                                                     : config::KeyLayout::kDense,
                   .k_scales = has_key_scales(arguments.k),
                   .v_scales = has_key_scales(arguments.v),
                   .copy_bytes = copy_bytes_of(arguments)},
          .allows_fp8_scores = arguments.compute == AttentionCompute::kFp8,
          .batch = arguments.query_offsets ? arguments.query_offsets->shape[0] - 1 : q.shape[0],
          .queries = q.shape[at],
          .has_query_offsets = arguments.query_offsets.has_value(),
          .keys = planned_keys(arguments.batch_invariant, key_count(arguments)),
          .heads = q.shape[at + 1],
          .key_heads = key_heads_of(arguments.k),
          .batch_invariant = arguments.batch_invariant};
}

config::AttentionParams params_of(const AttentionArguments& arguments,
                                  const plan::AttentionProblem& problem,
                                  const plan::AttentionWork& work) {
  const TensorView& q = arguments.q;
  const MutableTensorView& out = arguments.out;
  const bool packed = problem.has_query_offsets;
  const std::size_t at = packed ? 0 : 1;  // of queries, in shapes of q
  config::AttentionParams params{};
  params.q = q.data;
  params.out = out.data;
  params.q_batch_stride = packed ? 0 : q.strides[0];
  params.q_stride = q.strides[at];
  params.q_head_stride = q.strides[at + 1];
  params.out_batch_stride = packed ? 0 : out.strides[0];
  params.out_stride = out.strides[at];
  params.out_head_stride = out.strides[at + 1];
  if (arguments.log_sum_exp) {
    const MutableTensorView& sums = *arguments.log_sum_exp;
    params.log_sum_exp = static_cast<float*>(sums.data);
    params.log_sum_exp_batch_stride = packed ? 0 : sums.strides[0];
    params.log_sum_exp_head_stride = sums.strides[at];
    params.log_sum_exp_stride = sums.strides[at + 1];
  }
  params.k = side_of(arguments.k, problem.form.layout);
  params.v = side_of(arguments.v, problem.form.layout);
  params.query_offsets = ints_of(arguments.query_offsets);
  params.key_offsets = ints_of(arguments.key_offsets);
  params.key_counts = ints_of(arguments.key_counts);
  params.page_table = ints_of(arguments.page_table);
  if (arguments.page_table) {
    params.page_table_stride = arguments.page_table->strides[0];
    params.pages = counted("pages", arguments.k.data.shape[0]);
    params.page_shift = std::countr_zero(static_cast<std::uint64_t>(arguments.k.data.shape[1]));
  }
  params.batch = counted("batch", problem.batch);
  params.queries = static_cast<int>(problem.queries);
  params.keys = static_cast<int>(key_count(arguments));
  params.heads = static_cast<int>(problem.heads);
  params.key_heads = static_cast<int>(problem.key_heads);
  params.group = static_cast<int>(problem.heads / problem.key_heads);
  params.row_tiles = static_cast<int>(work.row_tiles);
  params.splits = static_cast<int>(work.splits);
  params.window_left = window_of(arguments.window_left);
  params.window_right = window_of(arguments.window_right);
  params.scale = arguments.softmax_scale * std::numbers::log2e_v<float>;
  params.q_vectors = rows_are_aligned(q, 16);
  params.out_pairs = rows_are_aligned(out, 4);
  params.out_vectors = rows_are_aligned(out, 16);
  params.partials = static_cast<float*>(arguments.workspace.data);
  return params;
}

}  // namespace

std::int64_t key_count(const AttentionArguments& arguments) {
  const TensorView& k = arguments.k.data;
  if (arguments.key_offsets) return k.shape[0];
  if (!arguments.page_table) return k.shape[1];
  // Beyond what counts can say there is nothing.
  return k.shape[0] == 0 ? 0 : std::min(arguments.page_table->shape[1] * k.shape[1], kMostCounted);
}

config::AttentionParams params_of(const AttentionArguments& arguments,
                                  const plan::AttentionWork& work) {
  return params_of(arguments, problem_of(arguments), work);
}

void attention(Device& device, const AttentionArguments& arguments, Stream stream) {
  const plan::AttentionProblem problem = problem_of(arguments);
  if (arguments.q.element_count() == 0) return;
  counted("rows of a sequence", problem.queries * (problem.heads / problem.key_heads));
  counted("keys of a sequence", arguments.page_table ? 0 : key_count(arguments));
  const auto& prepared =
      device.prepared(problem, [&] { return plan::plan_attention(problem, device.gpu()); });
  const config::AttentionParams params = params_of(arguments, problem, prepared.config);
  prepared.launch(stream, &params);
}

}  // namespace octofold::cuda
