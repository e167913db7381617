#include "ops/dense.h"

#include <string>
#include <type_traits>

#include "octofold/cast.h"
#include "octofold/convert_dtype.h"
#include "octofold/gemm.h"
#include "octofold/scale_layout.h"

#include "core/format.h"
#include "core/scale_layout.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/grouped_operands.h"

namespace octofold::ops {

Parts::Parts(std::byte* memory, Device device)
    : begin_(reinterpret_cast<std::uintptr_t>(memory)), end_(begin_), device_(device) {}

CastTarget Parts::cast(std::int64_t rows, std::int64_t cols, const Format& format) {
  const ScaleLayout scales = scale_layout(format.granularity, rows, cols, device_.type);
  const std::int64_t stride = core::code_row_stride(cols, device_.type);
  return {.data = octofold::matrix(take(rows * stride), format.dtype, rows, cols, stride, device_),
          .scale = scales.view(take(scales.extent() * size_of(DType::kFloat32)), device_),
          .format = format};
}

CastTarget Parts::stack(std::int64_t matrices, std::int64_t rows, std::int64_t cols,
                        const Format& format) {
  if (scales_rows(format.granularity)) {
    CastTarget target = cast(matrices * rows, cols, format);
    target.data = stacked(target.data, matrices);
    target.scale = stacked(target.scale, matrices);
    return target;
  }
  const std::int64_t stride = core::code_row_stride(cols, device_.type);
  const ScaleLayout scales = scale_layout(format.granularity, rows, cols, device_.type);
  MutableTensorView codes = octofold::matrix(take(matrices * rows * stride), format.dtype,
                                             matrices * rows, cols, stride, device_);
  MutableTensorView scale = floats(matrices * scales.extent());
  if (format.granularity != Granularity::kTensor) {
    const std::int64_t of_rows = scales.shape[0], of_cols = scales.shape[1];
    scale.rank = 3;
    scale.shape = {matrices, of_rows, of_cols};
    scale.strides = {of_rows * of_cols, of_cols, 1};
  }
  return {.data = stacked(codes, matrices), .scale = scale, .format = format};
}

MutableTensorView Parts::numbers(DType type, std::int64_t rows, std::int64_t cols) {
  return octofold::matrix(take(rows * cols * size_of(type)), type, rows, cols, -1, device_);
}

MutableTensorView Parts::floats(std::int64_t count) {
  return vector(take(count * size_of(DType::kFloat32)), DType::kFloat32, count, device_);
}

MutableTensorView Parts::integers(std::int64_t count) {
  return vector(take(count * size_of(DType::kInt32)), DType::kInt32, count, device_);
}

void* Parts::take(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 256;
  void* const part = reinterpret_cast<void*>(end_);
  end_ += static_cast<std::uintptr_t>(core::ceil_divide(bytes, kAlignment) * kAlignment);
  return part;
}

KeptCasts kept_casts(const LinearProblem& problem, Parts& parts) {
  KeptCasts kept;
  if (problem.grad_input && !problem.weight_is_cast) {
    kept.weight_transposed =
        parts.cast(problem.in_features, problem.out_features, problem.recipe.grad_input.b);
  }
  if (problem.grad_weight) {
    kept.x_transposed =
        parts.cast(problem.in_features, problem.tokens, problem.recipe.grad_weight.b);
  }
  return kept;
}

ForwardCasts forward_casts(const LinearProblem& problem, Parts& parts) {
  const LinearProduct& output = problem.recipe.output;
  ForwardCasts casts;
  casts.x = parts.cast(problem.tokens, problem.in_features, output.a);
  if (!problem.weight_is_cast) {
    casts.weight = parts.cast(problem.out_features, problem.in_features, output.b);
  }
  return casts;
}

BackwardCasts backward_casts(const LinearProblem& problem, Parts& parts) {
  const std::int64_t tokens = problem.tokens, out = problem.out_features;
  BackwardCasts casts;
  // A bias alone has its gradient from a cast as well, whose codes nobody reads.
  if (problem.grad_input || (problem.grad_bias && !problem.grad_weight)) {
    casts.dy = parts.cast(tokens, out, problem.recipe.grad_input.a);
  }
  if (problem.grad_weight) {
    casts.dy_transposed = parts.cast(out, tokens, problem.recipe.grad_weight.a);
  }
  if (problem.grad_bias) {
    casts.sums = parts.floats(out);
    casts.sums_workspace =
        parts.numbers(DType::kFloat32, column_workspace_rows(tokens, true, false), out);
  }
  return casts;
}

namespace {

// True if one read of the source makes both casts: as CastTargets says, and a kernel of a norm
// casts rows as it norms them.
bool share_a_read(const CastSource& source, Granularity rows, Granularity transposed) {
  if (rows == transposed) return true;
  return rows == Granularity::kBlock1x128 && transposed != Granularity::kTensor &&
         !std::holds_alternative<Normed>(source);
}

// The source of a second read: the norm of the sum that the first one has written.
CastSource read_again(const CastSource& source) {
  const auto* const normed = std::get_if<Normed>(&source);
  if (normed == nullptr || !normed->residual) return source;
  Normed again = *normed;
  again.x = *again.sum;
  again.residual.reset();
  again.sum.reset();
  return again;
}

}  // namespace

void cast_operand(const CastSource& source, CastTargets targets, Stream stream) {
  if (!targets.rows && !targets.transposed) return;
  if (!targets.transposed) targets.offsets.reset();
  if (targets.rows && targets.transposed &&
      !share_a_read(source, targets.rows->format.granularity,
                    targets.transposed->format.granularity)) {
    cast(source, {.rows = targets.rows, .matrices = targets.matrices, .used = targets.used},
         stream);
    targets.rows.reset();
    return cast(read_again(source), targets, stream);
  }
  cast(source, targets, stream);
}

void write_values(const CastSource& source, const MutableTensorView& out, Stream stream) {
  if (is_on_cpu(out.device)) return cpu::values(source, out);
  cuda::values(gpu("an activation", out.device), source, out, stream);
}

bool is_gated_product(const LinearProblem& up, Activation activation, DType between,
                      bool has_bias) {
  const LinearProduct& output = up.recipe.output;
  const bool fits_kernel = up.device.type == DeviceType::kCpu ||
                           (up.out_features % (2 * kScaleBlock) == 0 && up.in_features % 16 == 0);
  return is_gated(activation) && !has_bias && fits_kernel && between == DType::kBFloat16 &&
         output.a.granularity == Granularity::kBlock1x128 &&
         output.b.granularity == Granularity::kBlock128x128;
}

ScaledTensorView weight_operand(const Weight& weight, const KeptCasts& kept,
                                const ForwardCasts& casts, Stream stream) {
  if (const auto* const codes = std::get_if<ScaledTensorView>(&weight)) return *codes;
  cast_operand(std::get<TensorView>(weight),
               {.rows = casts.weight, .transposed = kept.weight_transposed}, stream);
  return *casts.weight;
}

void multiply(const LinearProduct& product, const ScaledTensorView& a, const ScaledTensorView& b,
              const MutableTensorView& out, std::optional<TensorView> c,
              std::optional<TensorView> bias, Stream stream) {
  gemm({.a = a,
        .b = b,
        .out = out,
        .c = c,
        .bias = bias,
        .fast_accumulation = product.fast_accumulation,
        .batch_invariant = product.batch_invariant},
       stream);
}

void backward(const LinearProblem& problem, const CastSource& dy, const KeptCasts& kept,
              const BackwardCasts& casts, const DenseGradients& gradients, Stream stream) {
  const LinearRecipe& recipe = problem.recipe;
  const auto& [weight_transposed, dx, dw, db, adds_to_dw] = gradients;
  ColumnTargets columns{.workspace = casts.sums_workspace};
  if (db) columns.sums = floats_for(*db, *casts.sums);
  cast_operand(dy, {.rows = casts.dy, .transposed = casts.dy_transposed, .columns = columns},
               stream);
  if (db) write_floats(*columns.sums, *db, stream);
  if (dx) {
    const ScaledTensorView weight =
        weight_transposed ? *weight_transposed : ScaledTensorView(*kept.weight_transposed);
    multiply(recipe.grad_input, *casts.dy, weight, *dx, {}, {}, stream);
  }
  if (dw) {
    const std::optional<TensorView> held =
        adds_to_dw ? std::optional<TensorView>(*dw) : std::nullopt;
    multiply(recipe.grad_weight, *casts.dy_transposed, *kept.x_transposed, *dw, held, {}, stream);
  }
}

const MutableTensorView& floats_for(const MutableTensorView& out, const MutableTensorView& space) {
  return out.dtype == DType::kFloat32 ? out : space;
}

void write_floats(const MutableTensorView& floats, const MutableTensorView& out, Stream stream) {
  if (out.dtype == DType::kFloat32) return;  // they are there
  convert_dtype(floats, out, Overflow::kSaturate, stream);
}

LayerArguments::LayerArguments(std::string_view operation, Device device)
    : check_(operation), device_(device), inputs_(check_) {}

void LayerArguments::require_problem(const LinearProblem& problem) const {
  constexpr int kBits = 28;  // bytes of two of them, several times
  check_.require_size("tokens", problem.tokens, 0, kBits);
  check_.require_size("in_features", problem.in_features, 1, kBits);
  check_.require_size("out_features", problem.out_features, 1, kBits);
  check_.require_enumerator("device", problem.device.type);
}

void LayerArguments::require_wanted(std::string_view argument, bool wanted, bool given) const {
  if (wanted == given) return;
  check_.fail(
      argument,
      wanted ? "a tensor, which the problem wants" : "it to be omitted, as the problem has it",
      wanted ? "none" : "one");
}

TensorView LayerArguments::matrix_of(std::string_view argument, const TensorView& given, DType type,
                                     std::int64_t rows, std::int64_t cols) {
  const TensorView flat = core::flatten(check_, argument, given);
  check_.require_shape(argument, flat, {rows, cols});
  check_.require_same_device(argument, flat, device_);
  check_.require_dtype(argument, flat, {type});
  check_.require_input_matrix(argument, flat);
  inputs_.add(argument, flat);
  return flat;
}

void LayerArguments::add_vector(std::string_view argument, const std::optional<TensorView>& given) {
  if (!given) return;
  check_.require_vector(argument, *given);
  inputs_.add(argument, *given);
}

void LayerArguments::add_vector(std::string_view argument,
                                const std::optional<MutableTensorView>& given) {
  if (!given) return;
  check_.require_vector(argument, *given);
  inputs_.add(argument, *given, "", true);
}

Weight LayerArguments::weight(std::string_view argument, const Weight& given,
                              const LinearProblem& problem) {
  const auto* const numbers = std::get_if<TensorView>(&given);
  require_kind(argument, numbers == nullptr, problem.weight_is_cast);
  if (numbers != nullptr) {
    return matrix(argument, *numbers, problem.out_features, problem.in_features);
  }
  add_cast(argument, std::get<ScaledTensorView>(given), problem.recipe.output.b);
  return given;
}

Weight LayerArguments::weights(std::string_view argument, const Weight& given,
                               const LinearProblem& problem, std::int64_t matrices) {
  const auto* const numbers = std::get_if<TensorView>(&given);
  require_kind(argument, numbers == nullptr, problem.weight_is_cast);
  const std::int64_t in = problem.in_features, out = problem.out_features;
  if (numbers != nullptr) return matrix(argument, *numbers, matrices * out, in);
  add_stack(argument, std::get<ScaledTensorView>(given), problem.recipe.output.b, matrices, out,
            in);
  return given;
}

void LayerArguments::add_stack(std::string_view argument, const ScaledTensorView& given,
                               const Format& format, std::int64_t matrices, std::int64_t rows,
                               std::int64_t cols) {
  Format either = format;
  if (is_fp8(given.data.dtype)) either.dtype = given.data.dtype;
  require_cast(argument, given, either);
  check_.require_shape(argument, given.data, {matrices, rows, cols});
  check_.require_same_device(argument, given.data, device_);
  const Stack stack = checked_stack(check_, argument, given);
  inputs_.add(argument, stack.flat.data);
  inputs_.add(argument, given.scale, ".scale");
}

DenseGradients LayerArguments::gradients(const LinearProblem& problem, const GradientNames& names,
                                         const DenseGradients& given) {
  const std::int64_t in = problem.in_features, out = problem.out_features;
  const bool is_named = !names.dx.empty();
  if (is_named) require_wanted(names.dx, problem.grad_input, given.dx.has_value());
  require_wanted(names.dw, problem.grad_weight, given.dw.has_value());
  require_wanted(names.db, problem.grad_bias, given.db.has_value());
  const bool reads_cast = problem.grad_input && problem.weight_is_cast;
  require_wanted(names.weight_transposed, reads_cast, given.weight_transposed.has_value());
  if (reads_cast) {
    add_cast(names.weight_transposed, *given.weight_transposed, problem.recipe.grad_input.b);
  }
  add_vector(names.db, given.db);
  return {.weight_transposed = given.weight_transposed,
          .dx = matrix(names.dx, given.dx, problem.tokens, in),
          .dw = matrix(names.dw, given.dw, out, in),
          .db = given.db,
          .adds_to_dw = given.adds_to_dw};
}

void LayerArguments::add_operands(const NormOperands& given) {
  require_wanted("operands.ada_scale", false, given.ada_scale.has_value());
  require_wanted("operands.ada_shift", false, given.ada_shift.has_value());
  add_vector("operands.weight", given.weight);
  add_vector("operands.bias", given.bias);
}

void LayerArguments::require_no_operands(const NormOperands& given) const {
  require_wanted("operands.weight", false, given.weight.has_value());
  require_wanted("operands.bias", false, given.bias.has_value());
}

void LayerArguments::add_memory(std::string_view argument, std::span<const std::byte> given,
                                std::int64_t bytes, bool is_written) {
  constexpr std::uintptr_t kAlignment = 16;
  if (static_cast<std::int64_t>(given.size()) < bytes) {
    check_.fail(argument, core::format("at least {} bytes", bytes),
                core::format("{}", given.size()));
  }
  if (bytes > 0 && reinterpret_cast<std::uintptr_t>(given.data()) % kAlignment != 0) {
    check_.fail(argument, core::format("memory at a multiple of {} bytes", kAlignment),
                "another address");
  }
  inputs_.add(argument, vector(given.data(), DType::kE4M3, bytes, device_), "", is_written);
}

void LayerArguments::add_matrix(std::string_view argument, const TensorView& flat,
                                std::int64_t rows, std::int64_t cols, bool is_written) {
  check_.require_shape(argument, flat, {rows, cols});
  check_.require_same_device(argument, flat, device_);
  check_.require_dtype(argument, flat, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  inputs_.add(argument, flat, "", is_written);
}

void LayerArguments::require_kind(std::string_view argument, bool is_cast, bool wants_cast) const {
  if (is_cast == wants_cast) return;
  check_.fail(argument, wants_cast ? "its cast" : "numbers, which are cast here",
              wants_cast ? "numbers" : "its cast");
}

void LayerArguments::require_cast(std::string_view argument, const ScaledTensorView& given,
                                  const Format& format) const {
  if (given.data.dtype == format.dtype && given.granularity == format.granularity) return;
  check_.fail(
      argument, core::format("{} with scales of {}", name(format.dtype), name(format.granularity)),
      core::format("{} with scales of {}", name(given.data.dtype), name(given.granularity)));
}

void LayerArguments::add_cast(std::string_view argument, const ScaledTensorView& given,
                              const Format& format) {
  require_cast(argument, given, format);
  check_.require_scaled_input(argument, given);
  inputs_.add(argument, given);
}

}  // namespace octofold::ops
