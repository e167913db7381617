#include "plan/routing.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/backend.h"
#include "cuda/group_check.h"
#include "cuda/params.h"
#include "cuda/views.h"

namespace octofold::cuda {
namespace {

int* ints_of(const MutableTensorView& tensor) { return static_cast<int*>(tensor.data); }
const int* ints_of(const TensorView& tensor) { return static_cast<const int*>(tensor.data); }
float* floats_of(const MutableTensorView& tensor) { return static_cast<float*>(tensor.data); }
const float* floats_of(const TensorView& tensor) { return static_cast<const float*>(tensor.data); }

// True if rows can be accessed in vectors of so many elements.
template <typename View>
bool holds_vectors(const View& matrix, int vector) {
  return is_aligned(matrix, std::int64_t{vector} * size_of(matrix.dtype));
}

}  // namespace

config::TopKParams params_of(const TopKArguments& arguments, const TopKOptions& options) {
  const TensorView& logits = arguments.logits;
  return {.logits = logits.data,
          .logits_stride = logits.strides[0],
          .bias = floats_of(arguments.bias),
          .tokens = logits.shape[0],
          .experts = static_cast<int>(logits.shape[1]),
          .slots = static_cast<int>(arguments.ids.shape[1]),
          .normalize = options.normalize,
          .groups = static_cast<int>(options.groups),
          .top_groups = static_cast<int>(options.top_groups),
          .scale = options.scaling_factor,
          .ids = ints_of(arguments.ids),
          .weights = floats_of(arguments.weights),
          .weights_stride = arguments.weights.strides[0]};
}

void top_k(Device& device, const TopKArguments& arguments, const TopKOptions& options,
           Stream stream) {
  const TensorView& logits = arguments.logits;
  const plan::TopKProblem problem{.tokens = logits.shape[0],
                                  .experts = logits.shape[1],
                                  .slots = arguments.ids.shape[1],
                                  .groups = options.groups,
                                  .in = logits.dtype,
                                  .scoring = options.scoring,
                                  .biased = arguments.bias.has_value()};
  const config::TopKParams params = params_of(arguments, options);
  device.prepared(problem, [&] { return plan::plan_top_k(problem, device.gpu()); })
      .launch(stream, &params);
}

config::TopKGradientParams params_of(const TopKGradientArguments& arguments,
                                     const TopKOptions& options) {
  const TensorView& logits = arguments.logits;
  return {.gradient = floats_of(arguments.gradient),
          .gradient_stride = arguments.gradient.strides[0],
          .logits = logits.data,
          .logits_stride = logits.strides[0],
          .ids = ints_of(arguments.ids),
          .ids_stride = arguments.ids.strides[0],
          .tokens = logits.shape[0],
          .experts = static_cast<int>(logits.shape[1]),
          .slots = static_cast<int>(arguments.ids.shape[1]),
          .normalize = options.normalize,
          .scale = options.scaling_factor,
          .logits_gradient = arguments.logits_gradient.data,
          .logits_gradient_stride = arguments.logits_gradient.strides[0]};
}

void top_k_gradient(Device& device, const TopKGradientArguments& arguments,
                    const TopKOptions& options, Stream stream) {
  const TensorView& logits = arguments.logits;
  check_range(device, "top_k_gradient", "ids", arguments.ids, -1, logits.shape[1] - 1, stream);
  const plan::TopKGradientProblem problem{.tokens = logits.shape[0],
                                          .experts = logits.shape[1],
                                          .slots = arguments.ids.shape[1],
                                          .in = logits.dtype,
                                          .scoring = options.scoring};
  const config::TopKGradientParams params = params_of(arguments, options);
  device.prepared(problem, [&] { return plan::plan_top_k_gradient(problem, device.gpu()); })
      .launch(stream, &params);
}

config::SortParams params_of(const TensorView& ids, std::int64_t experts, const SortedSlots& out) {
  const std::int64_t slots = ids.element_count();
  return {.ids = ints_of(ids),
          .ids_stride = ids.strides[0],
          .slots = static_cast<int>(slots),
          .slots_per_token = static_cast<int>(std::max<std::int64_t>(ids.shape[1], 1)),
          .experts = static_cast<int>(experts),
          .span = static_cast<int>(config::slots_per_span(slots)),
          .spans = static_cast<int>(config::slot_spans(slots)),
          .histogram = ints_of(out.workspace),
          .offsets = ints_of(out.offsets),
          .sources = ints_of(out.sources),
          .positions = ints_of(out.positions)};
}

void sort_by_expert(Device& device, const TensorView& ids, std::int64_t experts,
                    const SortedSlots& out, Stream stream) {
  check_range(device, "sort_by_expert", "ids", ids, -1, experts - 1, stream);
  const plan::SortProblem problem{.slots = ids.element_count(), .experts = experts};
  const config::SortParams params = params_of(ids, experts, out);
  device.prepared(problem, [&] { return plan::plan_sort(problem, device.gpu()); })
      .launch(stream, &params);
}

config::CombineParams params_of(const CombineArguments& arguments) {
  const TensorView& y = arguments.y;
  const MutableTensorView& out = arguments.out;
  return {.y = y.data,
          .y_stride = y.strides[0],
          .rows = y.shape[0],
          .positions = ints_of(arguments.positions),
          .positions_stride = arguments.positions.strides[0],
          .weights = floats_of(arguments.weights),
          .weights_stride = stride_of(arguments.weights),
          .slots = static_cast<int>(arguments.positions.shape[1]),
          .c = arguments.c ? arguments.c->data : nullptr,
          .c_stride = stride_of(arguments.c),
          .out = out.data,
          .out_stride = out.strides[0],
          .cols = out.shape[1]};
}

void combine(Device& device, const CombineArguments& arguments, Stream stream) {
  const TensorView& y = arguments.y;
  const MutableTensorView& out = arguments.out;
  check_range(device, "combine", "positions", arguments.positions, -1, y.shape[0] - 1, stream);
  plan::CombineProblem problem{.tokens = out.shape[0],
                               .cols = out.shape[1],
                               .in = y.dtype,
                               .out = out.dtype,
                               .weighted = arguments.weights.has_value(),
                               .adds = arguments.c.has_value()};
  const int vector = config::shared_vector(y.dtype, out.dtype);
  problem.is_aligned = holds_vectors(y, vector) && holds_vectors(out, vector) &&
                       (!arguments.c || holds_vectors(*arguments.c, vector));
  const config::CombineParams params = params_of(arguments);
  device.prepared(problem, [&] { return plan::plan_combine(problem, device.gpu()); })
      .launch(stream, &params);
}

config::CombineGradientParams params_of(const CombineGradientArguments& arguments) {
  const TensorView &gradient = arguments.gradient, &y = arguments.y;
  return {.gradient = gradient.data,
          .gradient_stride = gradient.strides[0],
          .y = y.data,
          .y_stride = y.strides[0],
          .rows = y.shape[0],
          .positions = ints_of(arguments.positions),
          .positions_stride = arguments.positions.strides[0],
          .slots = static_cast<int>(arguments.positions.shape[1]),
          .cols = gradient.shape[1],
          .weights_gradient = floats_of(arguments.weights_gradient),
          .weights_gradient_stride = arguments.weights_gradient.strides[0]};
}

void combine_gradient(Device& device, const CombineGradientArguments& arguments, Stream stream) {
  const TensorView &gradient = arguments.gradient, &y = arguments.y;
  check_range(device, "combine_gradient", "positions", arguments.positions, -1, y.shape[0] - 1,
              stream);
  plan::CombineGradientProblem problem{.tokens = gradient.shape[0],
                                       .cols = gradient.shape[1],
                                       .gradient = gradient.dtype,
                                       .in = y.dtype};
  const int vector = config::shared_vector(gradient.dtype, y.dtype);
  problem.is_aligned = holds_vectors(gradient, vector) && holds_vectors(y, vector);
  const config::CombineGradientParams params = params_of(arguments);
  device.prepared(problem, [&] { return plan::plan_combine_gradient(problem, device.gpu()); })
      .launch(stream, &params);
}

config::ActivationDotsParams params_of(const ActivationDotsArguments& arguments) {
  const TensorView &gradient = arguments.gradient, &x = arguments.x;
  const TensorView& positions = arguments.positions;
  return {.gradient = gradient.data,
          .gradient_stride = gradient.strides[0],
          .x = x.data,
          .x_stride = x.strides[0],
          .rows = x.shape[0],
          .cols = gradient.shape[1],
          .positions = ints_of(positions),
          .positions_stride = positions.strides[0],
          .tokens = positions.shape[0],
          .slots = static_cast<int>(positions.shape[1]),
          .c = floats_of(arguments.c),
          .c_stride = stride_of(arguments.c),
          .dots = floats_of(arguments.dots),
          .dots_stride = arguments.dots.strides[0]};
}

void activation_dots(Device& device, const ActivationDotsArguments& arguments, Stream stream) {
  const TensorView &gradient = arguments.gradient, &x = arguments.x;
  const TensorView& positions = arguments.positions;
  check_range(device, "activation_dots", "positions", positions, -1, x.shape[0] - 1, stream);
  plan::ActivationDotsProblem problem{.slots = positions.element_count(),
                                      .cols = gradient.shape[1],
                                      .in = x.dtype,
                                      .activation = arguments.activation};
  const int vector = config::ActivationDotsConfig{.in = x.dtype}.vector();
  problem.is_aligned = holds_vectors(gradient, vector) && holds_vectors(x, vector);
  const config::ActivationDotsParams params = params_of(arguments);
  device.prepared(problem, [&] { return plan::plan_activation_dots(problem, device.gpu()); })
      .launch(stream, &params);
}

config::ExpertSumsParams params_of(const ExpertSumsArguments& arguments) {
  const TensorView &gradient = arguments.gradient, &weights = arguments.weights;
  const MutableTensorView& sums = arguments.sums;
  return {.gradient = gradient.data,
          .gradient_stride = gradient.strides[0],
          .x = arguments.x ? arguments.x->data : nullptr,
          .x_stride = stride_of(arguments.x),
          .rows = weights.element_count(),
          .cols = gradient.shape[1],
          .offsets = ints_of(arguments.offsets),
          .sources = ints_of(arguments.sources),
          .weights = floats_of(weights),
          .weights_stride = weights.strides[0],
          .slots = static_cast<int>(std::max<std::int64_t>(weights.shape[1], 1)),
          .sums = floats_of(sums),
          .sums_stride = sums.strides[0]};
}

void expert_sums(Device& device, const ExpertSumsArguments& arguments, Stream stream) {
  const TensorView& gradient = arguments.gradient;
  const config::ExpertSumsParams params = params_of(arguments);
  const std::int64_t experts = arguments.sums.shape[0];
  check_offsets(device, "expert_sums", "offsets", params.offsets, experts + 1, params.rows, 1,
                stream);
  plan::ExpertSumsProblem problem{
      .experts = experts, .cols = gradient.shape[1], .in = gradient.dtype};
  if (arguments.x) problem.activation = arguments.activation;
  const int vector = config::ExpertSumsConfig{.in = gradient.dtype}.vector();
  problem.is_aligned =
      holds_vectors(gradient, vector) && (!arguments.x || holds_vectors(*arguments.x, vector));
  device.prepared(problem, [&] { return plan::plan_expert_sums(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
