#include "cuda/rotary.h"

#include <cstdint>

#include "kernels/rotary/config/rotary.h"
#include "plan/small.h"

namespace octofold::cuda {
namespace {

// True if each run of the last dimension begins at a multiple of 16 bytes.
bool has_aligned_runs(const TensorView& tensor) {
  constexpr std::int64_t kBytes = 16;
  for (std::int32_t i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] * size_of(tensor.dtype) % kBytes != 0)
      return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % kBytes == 0;
}

config::RotaryTable table_of(const TensorView& table) {
  return {.data = table.data,
          .batch_stride = table.shape[0] == 1 ? 0 : table.strides[0],
          .token_stride = table.strides[1]};
}

}  // namespace

void rotary(Device& device, const RotaryArguments& arguments, const MutableTensorView& y,
            Stream stream) {
  const TensorView& x = arguments.x;
  const plan::RotaryProblem problem{
      .tokens = x.shape[0] * x.shape[1],
      .heads = x.shape[2],
      .head_size = x.shape[3],
      .type = x.dtype,
      .is_aligned = has_aligned_runs(x) && has_aligned_runs(arguments.cos) &&
                    has_aligned_runs(arguments.sin) && has_aligned_runs(y)};
  // Truncated only where the planner refuses the problem.
  const config::RotaryParams params{.x = x.data,
                                    .x_batch_stride = x.strides[0],
                                    .x_token_stride = x.strides[1],
                                    .x_head_stride = x.strides[2],
                                    .cos = table_of(arguments.cos),
                                    .sin = table_of(arguments.sin),
                                    .y = y.data,
                                    .all_tokens = static_cast<unsigned>(problem.tokens),
                                    .tokens = static_cast<unsigned>(x.shape[1]),
                                    .heads = static_cast<int>(x.shape[2]),
                                    .half = static_cast<int>(x.shape[3] / 2),
                                    .inverse = arguments.inverse};
  device.prepared(problem, [&] { return plan::plan_rotary(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
