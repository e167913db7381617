#include "octofold/routing.h"

#include <cstdint>
#include <optional>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

constexpr std::string_view kWide = "float32, float16 or bfloat16";

// Views of its tensors, with errors that name it.
struct Operation {
  std::string_view name;

  MutableTensorView wide(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, kWide);
  }
  MutableTensorView floats(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, "float32");
  }
  MutableTensorView index(std::string_view argument, const tvm::ffi::TensorView& tensor) const {
    return view_of(name, argument, tensor, "int32");
  }
};

TopKOptions options_of(const tvm::ffi::String& scoring, bool normalize, std::int64_t groups,
                       std::int64_t top_groups, double scaling_factor) {
  return {.scoring = parse_scoring(view_of(scoring)),
          .normalize = normalize,
          .groups = groups,
          .top_groups = top_groups,
          .scaling_factor = static_cast<float>(scaling_factor)};
}

}  // namespace

void top_k(tvm::ffi::TensorView logits, OptionalTensor bias, tvm::ffi::TensorView ids,
           tvm::ffi::TensorView weights, int64_t /*k: that of ids*/, tvm::ffi::String scoring,
           bool normalize, int64_t groups, int64_t top_groups, double scaling_factor,
           OptionalStream stream) {
  const Operation operation{"top_k"};
  TopKArguments arguments{.logits = operation.wide("logits", logits),
                          .ids = operation.index("ids", ids),
                          .weights = operation.floats("weights", weights)};
  if (bias) arguments.bias = operation.floats("bias", *bias);
  octofold::top_k(arguments, options_of(scoring, normalize, groups, top_groups, scaling_factor),
                  stream_of(stream, logits));
}

void top_k_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView logits,
                    tvm::ffi::TensorView ids, tvm::ffi::TensorView logits_gradient,
                    tvm::ffi::String scoring, bool normalize, double scaling_factor,
                    OptionalStream stream) {
  const Operation operation{"top_k_gradient"};
  octofold::top_k_gradient({.gradient = operation.floats("gradient", gradient),
                            .logits = operation.wide("logits", logits),
                            .ids = operation.index("ids", ids),
                            .logits_gradient = operation.wide("logits_gradient", logits_gradient)},
                           options_of(scoring, normalize, 1, 1, scaling_factor),
                           stream_of(stream, logits));
}

void sort_by_expert(tvm::ffi::TensorView ids, tvm::ffi::TensorView offsets,
                    tvm::ffi::TensorView sources, tvm::ffi::TensorView positions,
                    tvm::ffi::TensorView workspace, int64_t experts, OptionalStream stream) {
  const Operation operation{"sort_by_expert"};
  octofold::sort_by_expert(operation.index("ids", ids), experts,
                           {.offsets = operation.index("offsets", offsets),
                            .sources = operation.index("sources", sources),
                            .positions = operation.index("positions", positions),
                            .workspace = operation.index("workspace", workspace)},
                           stream_of(stream, ids));
}

int64_t sort_workspace_size(int64_t slots, int64_t experts) {
  return octofold::sort_workspace_size(slots, experts);
}

void combine(tvm::ffi::TensorView y, tvm::ffi::TensorView positions, OptionalTensor weights,
             OptionalTensor c, tvm::ffi::TensorView out, OptionalStream stream) {
  const Operation operation{"combine"};
  CombineArguments arguments{.y = operation.wide("y", y),
                             .positions = operation.index("positions", positions),
                             .out = operation.wide("out", out)};
  if (weights) arguments.weights = operation.floats("weights", *weights);
  if (c) arguments.c = operation.wide("c", *c);
  octofold::combine(arguments, stream_of(stream, out));
}

void combine_gradient(tvm::ffi::TensorView gradient, tvm::ffi::TensorView y,
                      tvm::ffi::TensorView positions, tvm::ffi::TensorView weights_gradient,
                      OptionalStream stream) {
  const Operation operation{"combine_gradient"};
  octofold::combine_gradient(
      {.gradient = operation.wide("gradient", gradient),
       .y = operation.wide("y", y),
       .positions = operation.index("positions", positions),
       .weights_gradient = operation.floats("weights_gradient", weights_gradient)},
      stream_of(stream, y));
}

void activation_dots(tvm::ffi::TensorView gradient, tvm::ffi::TensorView x,
                     tvm::ffi::TensorView positions, tvm::ffi::TensorView dots,
                     tvm::ffi::String activation, OptionalStream stream) {
  const Operation operation{"activation_dots"};
  octofold::activation_dots({.gradient = operation.wide("gradient", gradient),
                             .x = operation.wide("x", x),
                             .positions = operation.index("positions", positions),
                             .activation = parse_activation(view_of(activation)),
                             .dots = operation.floats("dots", dots)},
                            stream_of(stream, x));
}

OCTOFOLD_EXPORT(top_k)
OCTOFOLD_EXPORT(top_k_gradient)
OCTOFOLD_EXPORT(sort_by_expert)
OCTOFOLD_EXPORT(sort_workspace_size)
OCTOFOLD_EXPORT(combine)
OCTOFOLD_EXPORT(combine_gradient)
OCTOFOLD_EXPORT(activation_dots)

}  // namespace octofold::bindings
