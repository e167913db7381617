#include "octofold/routing.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "kernels/routing/config/routing.h"
#include "ops/backend.h"
#include "ops/inputs.h"

namespace octofold {
namespace {

constexpr std::initializer_list<DType> kWide = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::initializer_list<DType> kFloat = {DType::kFloat32};
constexpr std::initializer_list<DType> kIndex = {DType::kInt32};

// The tensors of an operation, as matrices: the first one has the tokens, [..., cols], the others
// as many and its device; what is written lies apart from all that came before.
class Tokens {
 public:
  Tokens(std::string_view operation, std::string_view argument, const TensorView& first)
      : check(operation), first_(first), inputs_(check) {
    check.require_sizes(argument, first);
  }

  // [tokens, cols] of the first one's leading dimensions.
  TensorView input(std::string_view argument, const TensorView& given,
                   std::initializer_list<DType> dtypes, std::optional<std::int64_t> cols = {}) {
    const TensorView matrix = checked(argument, given, dtypes, cols);
    inputs_.add(argument, matrix);
    return matrix;
  }

  MutableTensorView output(std::string_view argument, const MutableTensorView& given,
                           std::initializer_list<DType> dtypes,
                           std::optional<std::int64_t> cols = {}) {
    const MutableTensorView matrix = checked(argument, given, dtypes, cols);
    check.require_matrix(argument, matrix);
    inputs_.add_output(argument, matrix);
    return matrix;
  }

  // The same without gaps between rows.
  MutableTensorView index_output(std::string_view argument, const MutableTensorView& given,
                                 std::int64_t cols) {
    const MutableTensorView matrix = output(argument, given, kIndex, cols);
    if (matrix.shape[0] > 1 && matrix.strides[0] != cols) {
      check.fail(argument, "a contiguous tensor", core::describe(matrix));
    }
    return matrix;
  }

  // [rows, cols] of any number of rows.
  TensorView rows(std::string_view argument, const TensorView& given, std::int64_t cols) {
    check.require_input_matrix(argument, given);
    return rows(argument, given, {given.shape[0], cols}, kWide);
  }

  TensorView rows(std::string_view argument, const TensorView& given,
                  std::initializer_list<std::int64_t> shape, std::initializer_list<DType> dtypes) {
    check.require_input_matrix(argument, given);
    check.require_shape(argument, given, shape);
    check.require_dtype(argument, given, dtypes);
    check.require_same_device(argument, given, first_.device);
    inputs_.add(argument, given);
    return given;
  }

  void rows_output(std::string_view argument, const MutableTensorView& given,
                   std::initializer_list<std::int64_t> shape) {
    check.require_matrix(argument, given);
    check.require_shape(argument, given, shape);
    check.require_dtype(argument, given, kFloat);
    check.require_same_device(argument, given, first_.device);
    inputs_.add_output(argument, given);
  }

  TensorView vector(std::string_view argument, const TensorView& given,
                    std::initializer_list<DType> dtypes, std::int64_t size) {
    ops::check_vector(check, argument, given, dtypes, size, first_.device);
    inputs_.add(argument, given);
    return given;
  }

  void vector_output(std::string_view argument, const MutableTensorView& given, std::int64_t size) {
    ops::check_vector(check, argument, given, kIndex, size, first_.device);
    inputs_.add_output(argument, given);
  }

  const core::Arguments check;

 private:
  template <typename View>
  View checked(std::string_view argument, const View& given, std::initializer_list<DType> dtypes,
               std::optional<std::int64_t> cols) const {
    check.require_sizes(argument, given);
    if (given.rank < 1) check.fail(argument, "at least 1 dimension", core::describe(given));
    TensorView expected = first_;
    expected.shape[expected.rank - 1] = cols.value_or(given.shape[given.rank - 1]);
    check.require_shape(argument, given, ops::shape_of(expected));
    check.require_dtype(argument, given, dtypes);
    check.require_same_device(argument, given, first_.device);
    const View matrix = core::flatten(check, argument, given);
    check.require_input_matrix(argument, matrix);
    return matrix;
  }

  TensorView first_;
  ops::Inputs inputs_;
};

void check_options(const core::Arguments& check, const TopKOptions& options, std::int64_t experts,
                   std::int64_t slots) {
  const auto require = [&](bool holds, std::string_view argument, const std::string& expected,
                           const auto& got) {
    if (!holds) check.fail(argument, expected, core::format("{}", got));
  };
  const bool is_softmax = options.scoring == Scoring::kSoftmax;
  require(is_softmax || options.scoring == Scoring::kSigmoid, "scoring", "a Scoring",
          static_cast<int>(options.scoring));
  require(std::isfinite(options.scaling_factor), "scaling_factor", "a finite number",
          options.scaling_factor);
  require(slots >= 1 && slots <= experts, "k", core::format("from 1 to the {} experts", experts),
          slots);
  const std::int64_t groups = options.groups, top_groups = options.top_groups;
  require(groups == 1 || !is_softmax, "groups", "1 for softmax", groups);
  require(groups >= 1 && experts % groups == 0, "groups",
          core::format("a divisor of the {} experts", experts), groups);
  require(groups == 1 || experts / groups >= 2, "groups", "groups of at least 2 experts", groups);
  require(top_groups >= 1 && top_groups <= groups, "top_groups",
          core::format("from 1 to the {} groups", groups), top_groups);
  require(top_groups * (experts / groups) >= slots, "top_groups",
          core::format("so many groups that they hold {} experts", slots), top_groups);
}

std::int64_t last_size(const core::Arguments& check, std::string_view argument,
                       const TensorView& tensor) {
  check.require_sizes(argument, tensor);
  if (tensor.rank < 1) check.fail(argument, "at least 1 dimension", core::describe(tensor));
  return tensor.shape[tensor.rank - 1];
}

}  // namespace

void top_k(const TopKArguments& given, const TopKOptions& options, Stream stream) {
  Tokens tokens("top_k", "logits", given.logits);
  TopKArguments arguments = given;
  arguments.logits = tokens.input("logits", given.logits, kWide);
  const std::int64_t experts = arguments.logits.shape[1];
  if (given.bias) {
    if (options.scoring == Scoring::kSoftmax)
      tokens.check.fail("bias", "it to be omitted for softmax", "one");
    tokens.vector("bias", *given.bias, kFloat, experts);
  }
  const std::int64_t slots = last_size(tokens.check, "ids", given.ids);
  check_options(tokens.check, options, experts, slots);
  arguments.ids = tokens.index_output("ids", given.ids, slots);
  arguments.weights = tokens.output("weights", given.weights, kFloat, slots);
  const Device device = arguments.logits.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::top_k(arguments, options);
  cuda::top_k(ops::gpu("top_k", device), arguments, options, stream);
}

void top_k_gradient(const TopKGradientArguments& given, const TopKOptions& options, Stream stream) {
  Tokens tokens("top_k_gradient", "gradient", given.gradient);
  TopKGradientArguments arguments = given;
  arguments.gradient = tokens.input("gradient", given.gradient, kFloat);
  arguments.logits = tokens.input("logits", given.logits, kWide);
  const std::int64_t experts = arguments.logits.shape[1], slots = arguments.gradient.shape[1];
  check_options(tokens.check, options, experts, slots);
  arguments.ids = tokens.input("ids", given.ids, kIndex, slots);
  arguments.logits_gradient =
      tokens.output("logits_gradient", given.logits_gradient, {arguments.logits.dtype}, experts);
  const Device device = arguments.logits.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::top_k_gradient(arguments, options);
  cuda::top_k_gradient(ops::gpu("top_k_gradient", device), arguments, options, stream);
}

std::int64_t sort_workspace_size(std::int64_t slots, std::int64_t experts) {
  const core::Arguments check("sort_workspace_size");
  check.require_size("slots", slots);
  check.require_size("experts", experts);
  return config::slot_spans(slots) * experts;
}

void sort_by_expert(const TensorView& given, std::int64_t experts, const SortedSlots& given_out,
                    Stream stream) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  Tokens tokens("sort_by_expert", "ids", given);
  const TensorView ids = tokens.input("ids", given, kIndex);
  const std::int64_t slots = ids.element_count();
  if (experts < 0 || experts >= kMost) {
    tokens.check.fail("experts", "a number of at least 0, below 2^31 - 1",
                      core::format("{}", experts));
  }
  if (slots > kMost) {
    tokens.check.fail("ids", "fewer than 2^31 slots", core::format("{}", slots));
  }
  SortedSlots out = given_out;
  tokens.vector_output("offsets", out.offsets, experts + 1);
  tokens.vector_output("sources", out.sources, slots);
  out.positions = tokens.index_output("positions", given_out.positions, ids.shape[1]);
  tokens.vector_output("workspace", out.workspace, sort_workspace_size(slots, experts));
  if (!ops::has_memory(ids.device)) return;
  if (ops::is_on_cpu(ids.device)) return cpu::sort_by_expert(ids, experts, out);
  cuda::sort_by_expert(ops::gpu("sort_by_expert", ids.device), ids, experts, out, stream);
}

void combine(const CombineArguments& given, Stream stream) {
  Tokens tokens("combine", "positions", given.positions);
  CombineArguments arguments = given;
  arguments.positions = tokens.input("positions", given.positions, kIndex);
  const std::int64_t cols = last_size(tokens.check, "out", given.out);
  tokens.rows("y", given.y, cols);
  if (given.weights) {
    arguments.weights =
        tokens.input("weights", *given.weights, kFloat, arguments.positions.shape[1]);
  }
  arguments.out = tokens.output("out", given.out, kWide, cols);
  if (given.c) {
    arguments.c = tokens.input("c", *given.c, {arguments.out.dtype}, cols);
    const bool is_out = arguments.c->data == arguments.out.data &&
                        arguments.c->strides[0] == arguments.out.strides[0];
    if (!is_out) tokens.check.require_disjoint("out", arguments.out, "c", *arguments.c);
  }
  const Device device = arguments.out.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::combine(arguments);
  cuda::combine(ops::gpu("combine", device), arguments, stream);
}

void combine_gradient(const CombineGradientArguments& given, Stream stream) {
  Tokens tokens("combine_gradient", "positions", given.positions);
  CombineGradientArguments arguments = given;
  arguments.positions = tokens.input("positions", given.positions, kIndex);
  arguments.gradient = tokens.input("gradient", given.gradient, kWide);
  tokens.rows("y", given.y, arguments.gradient.shape[1]);
  arguments.weights_gradient = tokens.output("weights_gradient", given.weights_gradient, kFloat,
                                             arguments.positions.shape[1]);
  const Device device = arguments.positions.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::combine_gradient(arguments);
  cuda::combine_gradient(ops::gpu("combine_gradient", device), arguments, stream);
}

void activation_dots(const ActivationDotsArguments& given, Stream stream) {
  Tokens tokens("activation_dots", "positions", given.positions);
  tokens.check.require_enumerator("activation", given.activation);
  ActivationDotsArguments arguments = given;
  arguments.positions = tokens.input("positions", given.positions, kIndex);
  const std::int64_t cols = last_size(tokens.check, "gradient", given.gradient);
  tokens.rows("gradient", given.gradient, cols);
  const std::int64_t features = is_gated(given.activation) ? 2 * cols : cols;
  tokens.rows("x", given.x, {given.gradient.shape[0], features}, {given.gradient.dtype});
  arguments.dots = tokens.output("dots", given.dots, kFloat, arguments.positions.shape[1]);
  if (given.c) {
    arguments.c = tokens.input("c", *given.c, kFloat, arguments.positions.shape[1]);
    if (!ops::is_same_memory(*arguments.c, arguments.dots)) {
      tokens.check.require_disjoint("dots", arguments.dots, "c", *arguments.c);
    }
  }
  const Device device = arguments.positions.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::activation_dots(arguments);
  cuda::activation_dots(ops::gpu("activation_dots", device), arguments, stream);
}

void expert_sums(const ExpertSumsArguments& given, Stream stream) {
  Tokens tokens("expert_sums", "weights", given.weights);
  tokens.check.require_enumerator("activation", given.activation);
  ExpertSumsArguments arguments = given;
  arguments.weights = tokens.input("weights", given.weights, kFloat);
  const std::int64_t rows = arguments.weights.element_count();
  const Device device = arguments.weights.device;
  const std::int64_t cols = last_size(tokens.check, "gradient", given.gradient);
  std::int64_t width = cols;
  if (given.x) {
    if (is_gated(given.activation)) width = 2 * cols;
    tokens.rows("gradient", given.gradient, {rows, cols}, kWide);
    tokens.rows("x", *given.x, {rows, width}, {given.gradient.dtype});
  } else {
    arguments.gradient = tokens.input("gradient", given.gradient, kWide, cols);
  }
  const std::int64_t experts =
      core::require_offsets(tokens.check, "offsets", given.offsets, device);
  tokens.vector("offsets", given.offsets, kIndex, experts + 1);
  tokens.vector("sources", given.sources, kIndex, rows);
  tokens.rows_output("sums", given.sums, {experts, width});
  if (ops::is_on_cpu(device)) {
    core::require_ascending_offsets(tokens.check, "offsets", given.offsets, rows);
  }
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::expert_sums(arguments);
  cuda::expert_sums(ops::gpu("expert_sums", device), arguments, stream);
}

}  // namespace octofold
