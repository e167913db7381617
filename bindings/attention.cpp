// Attention, and the rotary embeddings before it.
#include "octofold/attention.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include "octofold/rotary.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

constexpr std::string_view kCodes = "e4m3 or e5m2", kHalf = "float16 or bfloat16";

std::optional<TensorView> given(std::string_view argument, const OptionalTensor& tensor,
                                std::string_view dtypes) {
  if (!tensor) return {};
  return view_of("attention", argument, *tensor, dtypes);
}

}  // namespace

void attention(tvm::ffi::TensorView q, tvm::ffi::TensorView k, tvm::ffi::TensorView v,
               OptionalTensor k_scale, OptionalTensor v_scale, OptionalTensor query_offsets,
               OptionalTensor key_offsets, OptionalTensor key_counts, OptionalTensor page_table,
               tvm::ffi::TensorView out, tvm::ffi::TensorView workspace, OptionalTensor log_sum_exp,
               double softmax_scale, int64_t window_left, int64_t window_right,
               tvm::ffi::String compute, bool batch_invariant, OptionalStream stream) {
  AttentionArguments arguments{
      .q = view_of("attention", "q", q, kHalf),
      .k = {.data = view_of("attention", "k", k, kCodes),
            .scale = given("k.scale", k_scale, "float32")},
      .v = {.data = view_of("attention", "v", v, kCodes),
            .scale = given("v.scale", v_scale, "float32")},
      .out = view_of("attention", "out", out, kHalf),
      .query_offsets = given("query_offsets", query_offsets, "int32"),
      .key_offsets = given("key_offsets", key_offsets, "int32"),
      .key_counts = given("key_counts", key_counts, "int32"),
      .page_table = given("page_table", page_table, "int32"),
      .softmax_scale = static_cast<float>(softmax_scale),
      .window_left = window_left,
      .window_right = window_right,
      .compute = parse_attention_compute(view_of(compute)),
      .batch_invariant = batch_invariant,
      .workspace = view_of("attention", "workspace", workspace, "float32")};
  if (log_sum_exp) {
    arguments.log_sum_exp = view_of("attention", "log_sum_exp", *log_sum_exp, "float32");
  }
  octofold::attention(arguments, stream_of(stream, q));
}

int64_t attention_workspace_size(int64_t queries, int64_t heads, int64_t value_size,
                                 tvm::ffi::Optional<int64_t> keys) {
  std::optional<int64_t> of_parts;
  if (keys) of_parts = *keys;
  return octofold::attention_workspace_size(queries, heads, value_size, of_parts);
}

OCTOFOLD_EXPORT(attention)
OCTOFOLD_EXPORT(attention_workspace_size)

void rotary(tvm::ffi::TensorView x, tvm::ffi::TensorView cos, tvm::ffi::TensorView sin,
            tvm::ffi::TensorView y, bool inverse, OptionalStream stream) {
  const CastOperation tensors{"rotary"};
  octofold::rotary({.x = tensors.input("x", x),
                    .cos = tensors.input("cos", cos),
                    .sin = tensors.input("sin", sin),
                    .inverse = inverse},
                   view_of("rotary", "y", y, "float32, float16 or bfloat16"), stream_of(stream, x));
}

OCTOFOLD_EXPORT(rotary)

}  // namespace octofold::bindings
