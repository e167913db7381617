#include "octofold/linear.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "octofold/cast.h"
#include "octofold/cast_targets.h"
#include "octofold/convert_dtype.h"
#include "octofold/gemm.h"
#include "octofold/scale_layout.h"
#include "octofold/tensor.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "core/scale_layout.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "plan/capability.h"
#include "plan/tma.h"

namespace octofold {
namespace {

// The casts that forward keeps for backward, as far as they are wanted.
struct KeptCasts {
  std::optional<CastTarget> x_transposed, weight_transposed;
  std::int64_t bytes = 0;
};

// The operands that forward multiplies.
struct ForwardCasts {
  CastTarget x;
  std::optional<CastTarget> weight;
  std::int64_t bytes = 0;
};

// The operands that backward multiplies.
struct BackwardCasts {
  std::optional<CastTarget> dy, dy_transposed;
  std::optional<MutableTensorView> sums;  ///< float32 [out], where the bias has another type
  std::optional<MutableTensorView> sums_workspace;
  std::int64_t bytes = 0;
};

// Hands out memory from its beginning, each part at a multiple of 256 bytes from there. Where there
// is no memory the addresses count its bytes, and are not to be followed.
class Parts {
 public:
  Parts(std::byte* memory, Device device)
      : begin_(reinterpret_cast<std::uintptr_t>(memory)), end_(begin_), device_(device) {}

  CastTarget cast(std::int64_t rows, std::int64_t cols, const Format& format) {
    const ScaleLayout scales = scale_layout(format.granularity, rows, cols, device_.type);
    const std::int64_t stride = core::code_row_stride(cols, device_.type);
    return {.data = matrix(take(rows * stride), format.dtype, rows, cols, stride, device_),
            .scale = scales.view(take(scales.extent() * size_of(DType::kFloat32)), device_),
            .format = format};
  }
  MutableTensorView numbers(std::int64_t rows, std::int64_t cols) {
    return matrix(take(rows * cols * size_of(DType::kFloat32)), DType::kFloat32, rows, cols, -1,
                  device_);
  }
  MutableTensorView numbers(std::int64_t count) {
    return vector(take(count * size_of(DType::kFloat32)), DType::kFloat32, count, device_);
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(end_ - begin_); }

 private:
  void* take(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 256;
    void* const part = reinterpret_cast<void*>(end_);
    end_ += static_cast<std::uintptr_t>(core::ceil_divide(bytes, kAlignment) * kAlignment);
    return part;
  }

  std::uintptr_t begin_, end_;
  Device device_;
};

KeptCasts kept_casts(const LinearProblem& problem, std::byte* memory) {
  Parts parts(memory, problem.device);
  KeptCasts kept;
  if (problem.grad_input && !problem.weight_is_cast) {
    kept.weight_transposed =
        parts.cast(problem.in_features, problem.out_features, problem.recipe.grad_input.b);
  }
  if (problem.grad_weight) {
    kept.x_transposed =
        parts.cast(problem.in_features, problem.tokens, problem.recipe.grad_weight.b);
  }
  kept.bytes = parts.bytes();
  return kept;
}

ForwardCasts forward_casts(const LinearProblem& problem, std::byte* memory) {
  Parts parts(memory, problem.device);
  const LinearProduct& output = problem.recipe.output;
  ForwardCasts casts;
  casts.x = parts.cast(problem.tokens, problem.in_features, output.a);
  if (!problem.weight_is_cast) {
    casts.weight = parts.cast(problem.out_features, problem.in_features, output.b);
  }
  casts.bytes = parts.bytes();
  return casts;
}

BackwardCasts backward_casts(const LinearProblem& problem, std::byte* memory) {
  Parts parts(memory, problem.device);
  const std::int64_t tokens = problem.tokens, out = problem.out_features;
  BackwardCasts casts;
  if (problem.grad_input) casts.dy = parts.cast(tokens, out, problem.recipe.grad_input.a);
  if (problem.grad_weight) {
    casts.dy_transposed = parts.cast(out, tokens, problem.recipe.grad_weight.a);
  }
  if (problem.grad_bias) {
    casts.sums = parts.numbers(out);
    casts.sums_workspace = parts.numbers(column_workspace_rows(tokens, true, false), out);
  }
  casts.bytes = parts.bytes();
  return casts;
}

// Up to so many tokens a product casts x itself, where backward wants nothing of it: it saves a
// kernel, and each 64 features that the layer puts out cast all tokens again. Measured on an H200,
// six N,K (docs/notes/layers.md): at 8 it wins 7 % over cast and product apart, at 16 it loses 6 %.
constexpr std::int64_t kFewTokens = 8;

void require_problem(const core::Arguments& check, const LinearProblem& problem) {
  constexpr int kBits = 28;  // bytes of two of them, several times
  check.require_size("tokens", problem.tokens, 0, kBits);
  check.require_size("in_features", problem.in_features, 1, kBits);
  check.require_size("out_features", problem.out_features, 1, kBits);
  check.require_enumerator("device", problem.device.type);
  if (problem.grad_bias && !problem.grad_input && !problem.grad_weight) {
    check.fail("grad_bias", "false where neither of the others is wanted, whose cast sums dY",
               "true");
  }
}

// The matrix of so many rows and columns that a tensor with leading dimensions is.
template <typename View>
View matrix_of(const core::Arguments& check, std::string_view argument, const View& given,
               const LinearProblem& problem, std::int64_t rows, std::int64_t cols) {
  const View flat = core::flatten(check, argument, given);
  check.require_shape(argument, flat, {rows, cols});
  check.require_same_device(argument, flat, problem.device);
  check.require_dtype(argument, flat, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  return flat;
}

void require_codes(const core::Arguments& check, std::string_view argument,
                   const ScaledTensorView& given, const Format& format) {
  if (given.data.dtype == format.dtype && given.granularity == format.granularity) return;
  check.fail(argument,
             core::format("{} with scales of {}", name(format.dtype), name(format.granularity)),
             core::format("{} with scales of {}", name(given.data.dtype), name(given.granularity)));
}

// Adds to what is used of the call's memory what the layer uses of these bytes.
void add_memory(const core::Arguments& check, std::string_view argument,
                std::span<const std::byte> given, std::int64_t bytes, bool is_written,
                Device device, ops::Inputs& inputs) {
  constexpr std::uintptr_t kAlignment = 16;
  if (static_cast<std::int64_t>(given.size()) < bytes) {
    check.fail(argument, core::format("at least {} bytes", bytes),
               core::format("{}", given.size()));
  }
  if (bytes > 0 && reinterpret_cast<std::uintptr_t>(given.data()) % kAlignment != 0) {
    check.fail(argument, core::format("memory at a multiple of {} bytes", kAlignment),
               "another address");
  }
  inputs.add(argument, vector(given.data(), DType::kE4M3, bytes, device), "", is_written);
}

// Throws unless a tensor is there exactly where the problem wants it.
void require_wanted(const core::Arguments& check, std::string_view argument, bool wanted,
                    bool given) {
  if (wanted == given) return;
  check.fail(
      argument,
      wanted ? "a tensor, which the problem wants" : "it to be omitted, as the problem has it",
      wanted ? "none" : "one");
}

bool product_casts(const LinearProblem& problem, const ScaledTensorView& weight) {
  const LinearProduct& output = problem.recipe.output;
  return problem.device.type == DeviceType::kCuda && !problem.grad_weight &&
         problem.tokens <= kFewTokens && output.a.granularity == Granularity::kBlock1x128 &&
         output.b.granularity == Granularity::kBlock128x128 &&
         plan::tma_obstacle(weight.data) == nullptr &&
         plan::why_not(plan::Operation::kDynamicProduct,
                       ops::gpu("linear_forward", problem.device).gpu())
             .empty();
}

void multiply(const LinearProduct& product, const ScaledTensorView& a, const ScaledTensorView& b,
              const MutableTensorView& out, std::optional<TensorView> c, Stream stream) {
  gemm({.a = a,
        .b = b,
        .out = out,
        .c = c,
        .fast_accumulation = product.fast_accumulation,
        .batch_invariant = product.batch_invariant},
       stream);
}

}  // namespace

LinearMemory linear_memory(const LinearProblem& problem) {
  require_problem(core::Arguments("linear_memory"), problem);
  return {.kept = kept_casts(problem, nullptr).bytes,
          .forward = forward_casts(problem, nullptr).bytes,
          .backward = backward_casts(problem, nullptr).bytes};
}

void linear_forward(const LinearProblem& problem, const LinearForward& given, Stream stream) {
  const core::Arguments check("linear_forward");
  require_problem(check, problem);
  const std::int64_t tokens = problem.tokens, in = problem.in_features, out = problem.out_features;
  const LinearProduct& output = problem.recipe.output;
  const TensorView x = matrix_of(check, "x", given.x, problem, tokens, in);
  const MutableTensorView y = matrix_of(check, "y", given.y, problem, tokens, out);
  const auto* const numbers = std::get_if<TensorView>(&given.weight);
  if (problem.weight_is_cast == (numbers != nullptr)) {
    check.fail("weight", problem.weight_is_cast ? "its cast" : "numbers, which are cast here",
               problem.weight_is_cast ? "numbers" : "its cast");
  }
  const KeptCasts kept = kept_casts(problem, given.kept.data());
  const ForwardCasts casts = forward_casts(problem, given.workspace.data());
  ops::Inputs inputs(check);
  add_memory(check, "kept", given.kept, kept.bytes, true, problem.device, inputs);
  add_memory(check, "workspace", given.workspace, casts.bytes, true, problem.device, inputs);
  inputs.add("x", x);
  inputs.add("y", y, "", true);
  TensorView matrix;
  ScaledTensorView weight;
  if (numbers != nullptr) {
    matrix = matrix_of(check, "weight", *numbers, problem, out, in);
    inputs.add("weight", matrix);
  } else {
    weight = std::get<ScaledTensorView>(given.weight);
    require_codes(check, "weight", weight, output.b);
    check.require_scaled_input("weight", weight);
    inputs.add("weight", weight);
  }
  if (given.bias) {
    check.require_vector("bias", *given.bias);
    inputs.add("bias", *given.bias);
  }
  inputs.require_all_apart();
  if (numbers != nullptr) {
    cast(matrix, {.rows = casts.weight, .transposed = kept.weight_transposed}, stream);
    weight = *casts.weight;
  }
  GemmArguments product{.a = ScaledTensorView(casts.x),
                        .b = weight,
                        .out = y,
                        .bias = given.bias,
                        .fast_accumulation = output.fast_accumulation,
                        .batch_invariant = output.batch_invariant};
  if (product_casts(problem, weight)) {
    product.a = CastOperand{.data = x, .format = output.a};
  } else {
    cast(x, {.rows = casts.x, .transposed = kept.x_transposed}, stream);
  }
  gemm(product, stream);
}

void linear_backward(const LinearProblem& problem, const LinearBackward& given, Stream stream) {
  const core::Arguments check("linear_backward");
  require_problem(check, problem);
  const std::int64_t tokens = problem.tokens, in = problem.in_features, out = problem.out_features;
  const LinearRecipe& recipe = problem.recipe;
  require_wanted(check, "dx", problem.grad_input, given.dx.has_value());
  require_wanted(check, "dw", problem.grad_weight, given.dw.has_value());
  require_wanted(check, "db", problem.grad_bias, given.db.has_value());
  require_wanted(check, "weight_transposed", problem.grad_input && problem.weight_is_cast,
                 given.weight_transposed.has_value());
  const TensorView dy = matrix_of(check, "dy", given.dy, problem, tokens, out);
  MutableTensorView dx, dw;
  if (given.dx) dx = matrix_of(check, "dx", *given.dx, problem, tokens, in);
  if (given.dw) dw = matrix_of(check, "dw", *given.dw, problem, out, in);
  const KeptCasts kept = kept_casts(problem, given.kept.data());
  const BackwardCasts casts = backward_casts(problem, given.workspace.data());
  ops::Inputs inputs(check);
  add_memory(check, "kept", given.kept, kept.bytes, false, problem.device, inputs);
  add_memory(check, "workspace", given.workspace, casts.bytes, true, problem.device, inputs);
  inputs.add("dy", dy);
  if (given.weight_transposed) {
    require_codes(check, "weight_transposed", *given.weight_transposed, recipe.grad_input.b);
    check.require_scaled_input("weight_transposed", *given.weight_transposed);
    inputs.add("weight_transposed", *given.weight_transposed);
  }
  if (given.dx) inputs.add("dx", dx, "", true);
  if (given.dw) inputs.add("dw", dw, "", true);
  if (given.db) {
    check.require_vector("db", *given.db);
    inputs.add("db", *given.db, "", true);
  }
  inputs.require_all_apart();
  const bool is_converted = given.db && given.db->dtype != DType::kFloat32;
  cast(dy,
       {.rows = casts.dy,
        .transposed = casts.dy_transposed,
        .columns = {.sums = is_converted ? casts.sums : given.db,
                    .workspace = casts.sums_workspace}},
       stream);
  if (is_converted) convert_dtype(*casts.sums, *given.db, Overflow::kSaturate, stream);
  if (given.dx) {
    const ScaledTensorView weight = given.weight_transposed
                                        ? *given.weight_transposed
                                        : ScaledTensorView(*kept.weight_transposed);
    multiply(recipe.grad_input, *casts.dy, weight, dx, std::nullopt, stream);
  }
  if (given.dw) {
    std::optional<TensorView> held;
    if (given.adds_to_dw) held = dw;
    multiply(recipe.grad_weight, *casts.dy_transposed, *kept.x_transposed, dw, held, stream);
  }
}

}  // namespace octofold
