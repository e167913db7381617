#include "octofold/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "core/group_offsets.h"
#include "cpu/attention.h"
#include "cuda/attention.h"
#include "kernels/attention/config/params.h"
#include "ops/attention_operands.h"
#include "ops/backend.h"
#include "ops/inputs.h"

namespace octofold {
namespace {

// Each element at a place of its own: every dimension steps over all of the smaller ones.
void require_elements_apart(const core::Arguments& check, std::string_view argument,
                            const TensorView& tensor) {
  if (tensor.element_count() == 0) return;
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dimensions{};  // strides and sizes
  const auto rank = static_cast<std::size_t>(tensor.rank);
  for (std::size_t i = 0; i < rank; ++i) {
    dimensions[i] = {std::abs(tensor.strides[i]), tensor.shape[i]};
  }
  std::sort(dimensions.begin(), dimensions.begin() + tensor.rank);
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const auto [stride, size] = dimensions[i];
    if (size == 1) continue;
    if (stride < reach)
      check.fail(argument, "elements that do not overlap", core::describe(tensor));
    reach += (size - 1) * stride;
  }
}

// q, and how many sequences there are.
ops::AttentionQueries checked_queries(const core::Arguments& check,
                                      const AttentionArguments& arguments, ops::Inputs& inputs) {
  const TensorView& q = arguments.q;
  check.require_sizes("q", q);
  const bool packed = arguments.query_offsets.has_value();
  if (q.rank != (packed ? 3 : 4)) {
    check.fail("q",
               packed ? "[total_queries, heads, head_size] with 'query_offsets'"
                      : "[batch, queries, heads, head_size]",
               core::describe(q));
  }
  check.require_dtype("q", q, {DType::kFloat16, DType::kBFloat16});
  const auto rank = static_cast<std::size_t>(q.rank);
  const std::int64_t head_size = q.shape[rank - 1];
  ops::require_size_of_head(check, "q", "head_size", head_size, ops::kMostOfHead);
  ops::require_runs(check, "q", q);
  inputs.add("q", q);
  std::int64_t batch = q.shape[0];
  if (packed) {
    batch = core::require_offsets(check, "query_offsets", *arguments.query_offsets, q.device);
    inputs.add("query_offsets", *arguments.query_offsets);
  }
  return {batch, q.shape[rank - 2], head_size, q.device};
}

void check_results(const core::Arguments& check, const AttentionArguments& arguments,
                   const ops::AttentionQueries& queries, std::int64_t value_size,
                   ops::Inputs& inputs) {
  const TensorView& q = arguments.q;
  const MutableTensorView& out = arguments.out;
  const auto rank = static_cast<std::size_t>(q.rank);
  std::array<std::int64_t, kMaxRank> shape = q.shape;
  shape[rank - 1] = value_size;
  check.require_shape("out", out, std::span(shape.data(), rank));
  check.require_dtype("out", out, {q.dtype});
  check.require_same_device("out", out, queries.device);
  ops::require_runs(check, "out", out);
  require_elements_apart(check, "out", out);
  inputs.add_output("out", out);

  const bool packed = arguments.query_offsets.has_value();
  if (arguments.log_sum_exp) {
    const MutableTensorView& sums = *arguments.log_sum_exp;
    if (packed) {
      check.require_shape("log_sum_exp", sums, {queries.heads, q.shape[0]});
    } else {
      check.require_shape("log_sum_exp", sums, {queries.batch, queries.heads, q.shape[1]});
    }
    check.require_dtype("log_sum_exp", sums, {DType::kFloat32});
    check.require_same_device("log_sum_exp", sums, queries.device);
    if (sums.element_count() > 0) check.require_data("log_sum_exp", sums);
    require_elements_apart(check, "log_sum_exp", sums);
    inputs.add_output("log_sum_exp", sums);
  }

  const MutableTensorView& workspace = arguments.workspace;
  std::optional<std::int64_t> keys;
  if (arguments.batch_invariant) keys = cuda::key_count(arguments);
  check.require_vector("workspace", workspace);
  check.require_dtype("workspace", workspace, {DType::kFloat32});
  check.require_shape("workspace", workspace,
                      {attention_workspace_size(packed ? q.shape[0] : q.shape[0] * q.shape[1],
                                                queries.heads, value_size, keys)});
  check.require_same_device("workspace", workspace, queries.device);
  inputs.add_output("workspace", workspace);
}

}  // namespace

std::int64_t attention_workspace_size(std::int64_t queries, std::int64_t heads,
                                      std::int64_t value_size, std::optional<std::int64_t> keys) {
  const core::Arguments check("attention_workspace_size");
  check.require_size("queries", queries);
  check.require_size("heads", heads);
  check.require_size("value_size", value_size);
  check.require_size("keys", keys.value_or(0));
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(queries, heads, &rows)) return 0;  // so many need no splits
  if (!keys) return config::attention_workspace_elements(rows, value_size);
  std::int64_t elements = 0;  // more than there may be: so many rows have no memory either
  if (__builtin_mul_overflow(rows, value_size + 4, &elements)) return 0;
  return config::attention_parts_elements(rows, *keys, value_size);
}

void attention(const AttentionArguments& given, Stream stream) {
  const core::Arguments check("attention");
  ops::Inputs inputs(check);
  const ops::AttentionQueries queries = checked_queries(check, given, inputs);
  const std::int64_t value_size = ops::check_attention_operands(check, given, queries, inputs);
  if (!std::isfinite(given.softmax_scale)) {
    check.fail("softmax_scale", "a finite number", core::format("{}", given.softmax_scale));
  }
  if (given.compute != AttentionCompute::kExact && given.compute != AttentionCompute::kFp8) {
    check.fail("compute", "an AttentionCompute",
               core::format("{}", static_cast<int>(given.compute)));
  }
  AttentionArguments arguments = given;
  arguments.batch_invariant = given.batch_invariant || is_batch_invariant();
  check_results(check, arguments, queries, value_size, inputs);
  if (arguments.softmax_scale == 0) {
    arguments.softmax_scale =
        static_cast<float>(1 / std::sqrt(static_cast<double>(queries.head_size)));
  }
  if (!ops::has_memory(queries.device)) return;
  if (ops::is_on_cpu(queries.device)) return cpu::attention(arguments);
  cuda::attention(ops::gpu("attention", queries.device), arguments, stream);
}

}  // namespace octofold
