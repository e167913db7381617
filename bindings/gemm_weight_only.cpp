// Products with FP8 weights and wide activations, of one matrix and of groups, and the dot product.
#include "octofold/gemm_weight_only.h"

#include <cstdint>
#include <optional>
#include <tvm/ffi/function.h>

#include "octofold/dot.h"
#include "octofold/grouped_gemm_weight_only.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

std::optional<MutableTensorView> workspace_of(const CastOperation& operation,
                                              const OptionalTensor& workspace) {
  if (!workspace) return {};
  return view_of(operation.name, "workspace", *workspace, "float32");
}

// Gathered where there are sources.
RowsOfGroups rows_of_groups(const CastOperation& operation, std::string_view argument,
                            const tvm::ffi::TensorView& x, const OptionalTensor& sources,
                            const OptionalTensor& factors, int64_t slots) {
  const TensorView rows = view_of(operation.name, argument, x, "float16 or bfloat16");
  if (!sources) return rows;
  return GatheredRows{.x = rows,
                      .sources = view_of(operation.name, "sources", *sources, "int32"),
                      .slots = slots,
                      .factors = operation.optional("factors", factors, "float32")};
}

}  // namespace

void gemm_weight_only(tvm::ffi::TensorView x, OptionalTensor x_scale, tvm::ffi::TensorView w,
                      tvm::ffi::TensorView w_scale, OptionalTensor bias, tvm::ffi::TensorView out,
                      OptionalTensor workspace, OptionalText x_granularity,
                      tvm::ffi::String w_granularity, bool batch_invariant, OptionalStream stream) {
  constexpr CastOperation kOperation{"gemm_weight_only"};
  octofold::gemm_weight_only(
      {.x = operand_of(kOperation.name, "x", x, x_scale, x_granularity),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .out = view_of(kOperation.name, "out", out, "float32, float16 or bfloat16"),
       .bias = kOperation.optional("bias", bias, "that of 'out' or float32"),
       .workspace = workspace_of(kOperation, workspace),
       .batch_invariant = batch_invariant},
      stream_of(stream, out));
}

void gemm_weight_only_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView w,
                               tvm::ffi::TensorView w_scale, tvm::ffi::TensorView out,
                               OptionalTensor workspace, tvm::ffi::String w_granularity,
                               bool batch_invariant, OptionalStream stream) {
  constexpr CastOperation kOperation{"gemm_weight_only_gradient"};
  octofold::gemm_weight_only_gradient(
      {.gradient = view_of(kOperation.name, "gradient", gradient, "float16 or bfloat16"),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .out = view_of(kOperation.name, "out", out, "that of 'gradient' or float32"),
       .workspace = workspace_of(kOperation, workspace),
       .batch_invariant = batch_invariant},
      stream_of(stream, out));
}

int64_t weight_only_workspace_size(int64_t rows, int64_t columns, int64_t depth) {
  return octofold::weight_only_workspace_size(rows, columns, depth);
}

void grouped_gemm_weight_only(tvm::ffi::TensorView x, OptionalTensor sources,
                              OptionalTensor factors, tvm::ffi::TensorView w,
                              tvm::ffi::TensorView w_scale, tvm::ffi::TensorView numbers,
                              OptionalTensor bias, tvm::ffi::TensorView out, int64_t slots,
                              tvm::ffi::String w_granularity, tvm::ffi::String groups,
                              tvm::ffi::Optional<int64_t> expected_rows, bool batch_invariant,
                              OptionalStream stream) {
  constexpr CastOperation kOperation{"grouped_gemm_weight_only"};
  octofold::grouped_gemm_weight_only(
      {.x = rows_of_groups(kOperation, "x", x, sources, factors, slots),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .groups = groups_of<WeightOnlyGroups>(kOperation, view_of(groups), numbers, expected_rows),
       .out = view_of(kOperation.name, "out", out, "that of 'x' or float32"),
       .bias = kOperation.optional("bias", bias, "that of 'out' or float32"),
       .batch_invariant = batch_invariant},
      stream_of(stream, out));
}

void grouped_gemm_weight_only_gradient(tvm::ffi::TensorView gradient, OptionalTensor sources,
                                       OptionalTensor factors, tvm::ffi::TensorView w,
                                       tvm::ffi::TensorView w_scale, tvm::ffi::TensorView numbers,
                                       tvm::ffi::TensorView out, int64_t slots,
                                       tvm::ffi::String w_granularity, tvm::ffi::String groups,
                                       tvm::ffi::Optional<int64_t> expected_rows,
                                       bool batch_invariant, OptionalStream stream) {
  constexpr CastOperation kOperation{"grouped_gemm_weight_only_gradient"};
  octofold::grouped_gemm_weight_only_gradient(
      {.gradient = rows_of_groups(kOperation, "gradient", gradient, sources, factors, slots),
       .w = kOperation.scaled_input("w", w, w_scale, w_granularity),
       .groups = groups_of<WeightOnlyGroups>(kOperation, view_of(groups), numbers, expected_rows),
       .out = view_of(kOperation.name, "out", out, "that of 'gradient' or float32"),
       .batch_invariant = batch_invariant},
      stream_of(stream, out));
}

OCTOFOLD_EXPORT(gemm_weight_only)
OCTOFOLD_EXPORT(gemm_weight_only_gradient)
OCTOFOLD_EXPORT(grouped_gemm_weight_only)
OCTOFOLD_EXPORT(grouped_gemm_weight_only_gradient)
OCTOFOLD_EXPORT(weight_only_workspace_size)

void dot(tvm::ffi::TensorView a, OptionalTensor a_scale, tvm::ffi::TensorView b,
         OptionalTensor b_scale, tvm::ffi::TensorView out, tvm::ffi::TensorView workspace,
         OptionalText a_granularity, OptionalText b_granularity, OptionalStream stream) {
  octofold::dot({.a = operand_of("dot", "a", a, a_scale, a_granularity),
                 .b = operand_of("dot", "b", b, b_scale, b_granularity),
                 .out = view_of("dot", "out", out, "float32"),
                 .workspace = view_of("dot", "workspace", workspace, "float32")},
                stream_of(stream, a));
}

OCTOFOLD_EXPORT(dot)

}  // namespace octofold::bindings
