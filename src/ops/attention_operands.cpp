#include "ops/attention_operands.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <fmt/ranges.h>
#include <optional>
#include <span>
#include <string_view>

#include "core/group_offsets.h"
#include "plan/operands.h"

namespace octofold::ops {
namespace {

constexpr std::int64_t kMostKeysOfPage = std::int64_t{1} << 30;  // counts are of 32 bits

void check_which_are_given(const core::Arguments& check, const AttentionArguments& arguments) {
  if (arguments.key_offsets) {
    if (!arguments.query_offsets) check.fail("key_offsets", "none without 'query_offsets'", "one");
    if (arguments.page_table) check.fail("page_table", "none beside 'key_offsets'", "one");
    if (arguments.key_counts) check.fail("key_counts", "none beside 'key_offsets'", "one");
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
      scale.element_count() == 1                      ? std::optional(plan::Form::kTensor)
      : scale.rank == 1 && scale.shape[0] == kv_heads ? std::optional(plan::Form::kHead)
      : std::ranges::equal(shape_of(scale), blocks)   ? std::optional(plan::Form::kKeysOfHead)
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
                   Inputs& inputs) {
  check.require_dtype(argument, operand.data, {DType::kE4M3, DType::kE5M2});
  check.require_same_device(argument, operand.data, queries.device);
  require_runs(check, argument, operand.data);
  inputs.add(argument, operand.data);
  if (!operand.scale) return;
  check_scale(check, scale_argument, arguments, queries, *operand.scale);
  inputs.add(scale_argument, *operand.scale);
}

void check_places(const core::Arguments& check, const AttentionArguments& arguments,
                  const AttentionQueries& queries, Inputs& inputs) {
  if (arguments.key_offsets) {
    const TensorView& offsets = *arguments.key_offsets;
    core::require_offsets(check, "key_offsets", offsets, queries.device);
    check.require_shape("key_offsets", offsets, {queries.batch + 1});
    inputs.add("key_offsets", offsets);
  }
  if (arguments.key_counts) {
    const TensorView& counts = *arguments.key_counts;
    check.require_vector("key_counts", counts);
    check.require_dtype("key_counts", counts, {DType::kInt32});
    check.require_shape("key_counts", counts, {queries.batch});
    check.require_same_device("key_counts", counts, queries.device);
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

}  // namespace

void require_size_of_head(const core::Arguments& check, std::string_view argument,
                          std::string_view name, std::int64_t size, std::int64_t most) {
  if (size >= 8 && size <= most && size % 8 == 0) return;
  check.fail(argument, core::format("a {} that is a multiple of 8 from 8 to {}", name, most),
             core::format("{}", size));
}

void require_runs(const core::Arguments& check, std::string_view argument,
                  const TensorView& tensor) {
  if (tensor.element_count() == 0) return;
  const auto last = static_cast<std::size_t>(tensor.rank) - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    check.fail(argument, "a contiguous last dimension", core::describe(tensor));
  }
  check.require_data(argument, tensor);
}

std::int64_t check_attention_operands(const core::Arguments& check,
                                      const AttentionArguments& arguments,
                                      const AttentionQueries& queries, Inputs& inputs) {
  check_which_are_given(check, arguments);
  check_shape_of_keys(check, arguments, queries);
  const std::int64_t value_size = checked_value_size(check, arguments.k.data, arguments.v.data);
  check_operand(check, "k", "k.scale", arguments, arguments.k, queries, inputs);
  check_operand(check, "v", "v.scale", arguments, arguments.v, queries, inputs);
  check_places(check, arguments, queries, inputs);
  return value_size;
}

}  // namespace octofold::ops
