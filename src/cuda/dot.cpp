#include "cuda/dot.h"

#include <cstdint>

#include "core/scale_layout.h"
#include "cuda/cast_views.h"
#include "kernels/dot/config/dot.h"
#include "plan/small.h"

namespace octofold::cuda {
namespace {

bool has_blocks(const DotOperand& operand) {
  return operand.scale && varies_along_k(operand.granularity);
}

core::ScaleAccess<const float> scale_of(const DotOperand& operand) {
  if (!operand.scale) return {};
  return core::scale_access({operand.data, *operand.scale, operand.granularity});
}

}  // namespace

void dot(Device& device, const DotArguments& arguments, Stream stream) {
  const DotOperand &a = arguments.a, &b = arguments.b;
  plan::DotProblem problem{.size = a.data.shape[1],
                           .a = a.data.dtype,
                           .b = b.data.dtype,
                           .a_blocks = has_blocks(a),
                           .b_blocks = has_blocks(b)};
  const int vector = config::DotConfig{.a = problem.a, .b = problem.b}.vector();
  problem.is_aligned = is_aligned(a.data, std::int64_t{vector} * size_of(problem.a)) &&
                       is_aligned(b.data, std::int64_t{vector} * size_of(problem.b));
  const core::ScaleAccess<const float> a_scale = scale_of(a), b_scale = scale_of(b);
  const config::DotParams params{.a = a.data.data,
                                 .b = b.data.data,
                                 .a_scale = a_scale.data,
                                 .b_scale = b_scale.data,
                                 .a_scale_stride = a_scale.col_stride,
                                 .b_scale_stride = b_scale.col_stride,
                                 .a_blocks = problem.a_blocks,
                                 .b_blocks = problem.b_blocks,
                                 .size = problem.size,
                                 .span = config::dot_span(problem.size),
                                 .parts = static_cast<int>(config::dot_parts(problem.size)),
                                 .part_sums = static_cast<float*>(arguments.workspace.data),
                                 .out = static_cast<float*>(arguments.out.data)};
  device.prepared(problem, [&] { return plan::plan_dot(problem, device.gpu()); })
      .launch(stream, &params);
}

}  // namespace octofold::cuda
