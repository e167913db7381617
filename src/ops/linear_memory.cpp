#include "ops/linear_memory.h"

#include <cstdint>

#include "octofold/cast.h"
#include "octofold/scale_layout.h"

#include "core/scale_layout.h"

namespace octofold::ops {
namespace {

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

}  // namespace

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

}  // namespace octofold::ops
