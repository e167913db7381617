#include "octofold/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fmt/ranges.h>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "kernels/attention/config/params.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "plan/operands.h"

namespace octofold {
namespace {

// Numbers of a query and key, and of a value, at most.
constexpr std::int64_t kMostOfHead = 576, kMostOfValue = 512;
constexpr std::int64_t kMostKeysOfPage = std::int64_t{1} << 30;  // counts are of 32 bits

// The sizes and device that queries prescribe for keys.
struct AttentionQueries {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t head_size;
  Device device;
};

// Requires a multiple of 8 up to `most`.
void require_size_of_head(const core::Arguments& check, std::string_view argument,
                          std::string_view name, std::int64_t size, std::int64_t most) {
  if (size >= 8 && size <= most && size % 8 == 0) return;
  check.fail(argument, core::format("a {} that is a multiple of 8 from 8 to {}", name, most),
             core::format("{}", size));
}

void check_which_are_given(const core::Arguments& check, const AttentionArguments& arguments) {
  if (arguments.key_offsets) {
    if (!arguments.query_offsets)
      check.fail("key_offsets", "it to be omitted without 'query_offsets'", "one");
    if (arguments.page_table)
      check.fail("page_table", "it to be omitted beside 'key_offsets'", "one");
    if (arguments.key_counts)
      check.fail("key_counts", "it to be omitted beside 'key_offsets'", "one");
  }
  if (arguments.page_table && !arguments.key_counts) {
    check.fail("key_counts", "one beside 'page_table'", "none");
  }
}

void check_shape_of_keys(const core::Arguments& check, const AttentionArguments& arguments,
                         const AttentionQueries& queries) {
  const TensorView& k = arguments.k.data;
  const std::string_view expected =
      arguments.page_table    ? "[pages, page_size, kv_heads, head_size] with 'page_table'"
      : arguments.key_offsets ? "[total_keys, kv_heads, head_size] with 'key_offsets'"
                              : "[batch, keys, kv_heads, head_size]";
  check.require_sizes("k", k);
  if (k.rank != (arguments.key_offsets ? 3 : 4)) check.fail("k", expected, core::describe(k));
  const auto rank = static_cast<std::size_t>(k.rank);
  if (k.shape[rank - 1] != queries.head_size) {
    check.fail("k", core::format("head_size = {}, as 'q' has", queries.head_size),
               core::format("{}", k.shape[rank - 1]));
  }
  const std::int64_t kv_heads = k.shape[rank - 2];
  if (kv_heads < 1 || queries.heads % kv_heads != 0) {
    check.fail("k", core::format("kv_heads that divide the {} heads of 'q'", queries.heads),
               core::format("{}", kv_heads));
  }
  if (arguments.page_table) {
    const std::int64_t keys = k.shape[1];
    if (keys < 16 || keys > kMostKeysOfPage ||
        !std::has_single_bit(static_cast<std::uint64_t>(keys))) {
      check.fail("k", "a page_size that is a power of two from 16 to 2^30",
                 core::format("{}", keys));
    }
  } else if (!arguments.key_offsets && k.shape[0] != queries.batch) {
    check.fail("k", core::format("batch = {}, as the queries have", queries.batch),
               core::format("{}", k.shape[0]));
  }
}

// Checks that v has k's shape but for the last dimension, which is returned.
std::int64_t checked_value_size(const core::Arguments& check, const TensorView& k,
                                const TensorView& v) {
  check.require_sizes("v", v);
  const auto leading = static_cast<std::size_t>(k.rank) - 1;
  if (v.rank != k.rank ||
      !std::ranges::equal(std::span(v.shape.data(), leading), std::span(k.shape.data(), leading))) {
    check.fail("v",
               core::format("[{}, value_size], as 'k' has",
                            fmt::join(k.shape.begin(), k.shape.begin() + k.rank - 1, ", ")),
               core::describe(v));
  }
  require_size_of_head(check, "v", "value_size", v.shape[leading], kMostOfValue);
  return v.shape[leading];
}

void check_scale(const core::Arguments& check, std::string_view argument,
                 const AttentionArguments& arguments, const AttentionQueries& queries,
                 const TensorView& scale) {
  const auto& shape = arguments.k.data.shape;
  const std::int64_t kv_heads = shape[arguments.key_offsets ? 1 : 2];
  const std::array<std::int64_t, 3> of_blocks =
      arguments.page_table ? std::array{shape[0], kv_heads, std::int64_t{0}}
      : arguments.key_offsets
          ? std::array{shape[0] / kKeysPerScale + queries.batch, kv_heads, std::int64_t{0}}
          : std::array{queries.batch, (shape[1] + kKeysPerScale - 1) / kKeysPerScale, kv_heads};
  const std::span blocks(of_blocks.data(), arguments.page_table || arguments.key_offsets ? 2 : 3);
  check.require_sizes(argument, scale);
  const std::optional<plan::Form> form =
      scale.element_count() == 1                         ? std::optional(plan::Form::kTensor)
      : scale.rank == 1 && scale.shape[0] == kv_heads    ? std::optional(plan::Form::kHead)
      : std::ranges::equal(ops::shape_of(scale), blocks) ? std::optional(plan::Form::kKeysOfHead)
                                                         : std::nullopt;
  if (!form || !plan::kKeysAndValues.taken.has(*form)) {
    check.fail(argument, core::format("one element, shape [{}] or shape {}", kv_heads, blocks),
               core::describe(scale));
  }
  check.require_dtype(argument, scale, {DType::kFloat32});
  check.require_same_device(argument, scale, queries.device);
  check.require_data(argument, scale);
}

void check_operand(const core::Arguments& check, std::string_view argument,
                   std::string_view scale_argument, const AttentionArguments& arguments,
                   const AttentionOperand& operand, const AttentionQueries& queries,
                   ops::Inputs& inputs) {
  check.require_dtype(argument, operand.data, {DType::kE4M3, DType::kE5M2});
  check.require_same_device(argument, operand.data, queries.device);
  check.require_runs(argument, operand.data);
  inputs.add(argument, operand.data);
  if (!operand.scale) return;
  check_scale(check, scale_argument, arguments, queries, *operand.scale);
  inputs.add(scale_argument, *operand.scale);
}

void check_places(const core::Arguments& check, const AttentionArguments& arguments,
                  const AttentionQueries& queries, ops::Inputs& inputs) {
  if (arguments.key_offsets) {
    const TensorView& offsets = *arguments.key_offsets;
    core::require_offsets(check, "key_offsets", offsets, queries.device);
    check.require_shape("key_offsets", offsets, {queries.batch + 1});
    inputs.add("key_offsets", offsets);
  }
  if (arguments.key_counts) {
    const TensorView& counts = *arguments.key_counts;
    ops::check_vector(check, "key_counts", counts, {DType::kInt32}, queries.batch, queries.device);
    inputs.add("key_counts", counts);
  }
  if (arguments.page_table) {
    const TensorView& table = *arguments.page_table;
    check.require_input_matrix("page_table", table);
    check.require_dtype("page_table", table, {DType::kInt32});
    check.require_shape("page_table", table, {queries.batch, table.shape[1]});
    check.require_same_device("page_table", table, queries.device);
    inputs.add("page_table", table);
  }
}

// Checks k, v, key_offsets, key_counts and page_table, and adds them to what is read. Returns the
// size of values.
std::int64_t check_attention_operands(const core::Arguments& check,
                                      const AttentionArguments& arguments,
                                      const AttentionQueries& queries, ops::Inputs& inputs) {
  check_which_are_given(check, arguments);
  check_shape_of_keys(check, arguments, queries);
  const std::int64_t value_size = checked_value_size(check, arguments.k.data, arguments.v.data);
  check_operand(check, "k", "k.scale", arguments, arguments.k, queries, inputs);
  check_operand(check, "v", "v.scale", arguments, arguments.v, queries, inputs);
  check_places(check, arguments, queries, inputs);
  return value_size;
}

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
AttentionQueries checked_queries(const core::Arguments& check, const AttentionArguments& arguments,
                                 ops::Inputs& inputs) {
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
  require_size_of_head(check, "q", "head_size", head_size, kMostOfHead);
  check.require_runs("q", q);
  inputs.add("q", q);
  std::int64_t batch = q.shape[0];
  if (packed) {
    batch = core::require_offsets(check, "query_offsets", *arguments.query_offsets, q.device);
    inputs.add("query_offsets", *arguments.query_offsets);
  }
  return {batch, q.shape[rank - 2], head_size, q.device};
}

void check_results(const core::Arguments& check, const AttentionArguments& arguments,
                   const AttentionQueries& queries, std::int64_t value_size, ops::Inputs& inputs) {
  const TensorView& q = arguments.q;
  const MutableTensorView& out = arguments.out;
  const auto rank = static_cast<std::size_t>(q.rank);
  std::array<std::int64_t, kMaxRank> shape = q.shape;
  shape[rank - 1] = value_size;
  check.require_shape("out", out, std::span(shape.data(), rank));
  check.require_dtype("out", out, {q.dtype});
  check.require_same_device("out", out, queries.device);
  check.require_runs("out", out);
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
  const std::int64_t rows = packed ? q.shape[0] : q.shape[0] * q.shape[1];
  ops::check_vector(check, "workspace", workspace, {DType::kFloat32},
                    attention_workspace_size(rows, queries.heads, value_size, keys),
                    queries.device);
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
  const AttentionQueries queries = checked_queries(check, given, inputs);
  const std::int64_t value_size = check_attention_operands(check, given, queries, inputs);
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
