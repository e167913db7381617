#include <cstdint>
#include <tvm/ffi/function.h>

#include "octofold/norm.h"
#include "octofold/norm_gradient.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {

Normed normed_of(Reader& reads, Reader& more) {
  Normed norm{.x = reads.tensor("x")};
  norm.operands.weight = reads.optional("weight");
  norm.operands.bias = reads.optional("bias");
  norm.residual = reads.optional("residual");
  norm.operands.ada_scale = reads.optional("ada_scale");
  norm.operands.ada_shift = reads.optional("ada_shift");
  norm.sum = more.optional("sum");
  norm.rstd = more.tensor("rstd", "float32");
  norm.mean = more.optional("mean", "float32");
  norm.kind = parse_norm(view_of(more.take<tvm::ffi::String>()));
  norm.epsilon = static_cast<float>(more.take<double>());
  return norm;
}

void norm(const Call& call) {
  require_count(call, 13);
  Reader reads{{"norm"}, call, 0}, more{{"norm"}, call, 7};
  const Normed source = normed_of(reads, more);
  octofold::norm(source, reads.tensor("y"), more.stream());
}

void norm_gradient(const Call& call) {
  require_count(call, 17);
  Reader read{{"norm_gradient"}, call};
  NormGradientArguments arguments{.gradient = read.tensor("gradient"),
                                  .x = read.tensor("x"),
                                  .rstd = read.tensor("rstd"),
                                  .mean = read.optional("mean"),
                                  .operands = {.weight = read.optional("weight"),
                                               .bias = read.optional("bias"),
                                               .ada_scale = read.optional("ada_scale"),
                                               .ada_shift = read.optional("ada_shift")},
                                  .residual_gradient = read.optional("residual_gradient")};
  const NormGradients gradients{.dx = read.tensor("dx"),
                                .dweight = read.optional("dweight"),
                                .dbias = read.optional("dbias"),
                                .d_ada_scale = read.optional("d_ada_scale"),
                                .d_ada_shift = read.optional("d_ada_shift"),
                                .workspace = read.optional("workspace")};
  arguments.kind = parse_norm(view_of(read.take<tvm::ffi::String>()));
  octofold::norm_gradient(arguments, gradients, read.stream());
}

int64_t norm_workspace_rows(int64_t cols, int64_t batches) {
  return octofold::norm_workspace_rows(cols, batches);
}

OCTOFOLD_EXPORT(norm)
OCTOFOLD_EXPORT(norm_gradient)
OCTOFOLD_EXPORT(norm_workspace_rows)

}  // namespace octofold::bindings
