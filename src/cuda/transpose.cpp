#include "cuda/transpose.h"

#include "cuda/cast_views.h"
#include "kernels/cast/config/transpose.h"
#include "plan/small.h"

namespace octofold::cuda {
namespace {

// The tiles of the problem; an empty one has none to be counted.
config::TransposeTiles tiles_of(const plan::TransposeProblem& problem) {
  if (problem.rows == 0 || problem.cols == 0) return {};
  return config::TransposeTiles::of(problem.rows, problem.cols);
}

}  // namespace

void transpose(Device& device, const TensorView& x, const MutableTensorView& out,
               std::int64_t matrices, Stream stream) {
  constexpr int kBytes = config::TransposeConfig::kVector;
  const plan::TransposeProblem problem{.matrices = matrices,
                                       .rows = matrices == 0 ? 0 : x.shape[0] / matrices,
                                       .cols = x.shape[1],
                                       .x_is_aligned = is_aligned(x, kBytes),
                                       .out_is_aligned = is_aligned(out, kBytes)};
  const config::TransposeParams params{.x = static_cast<const unsigned char*>(x.data),
                                       .x_stride = x.strides[0],
                                       .out = static_cast<unsigned char*>(out.data),
                                       .out_stride = out.strides[0],
                                       .rows = problem.rows,
                                       .cols = problem.cols,
                                       .tiles = tiles_of(problem)};
  device.prepared(problem, [&] { return plan::plan_transpose(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
