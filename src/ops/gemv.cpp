#include "octofold/gemv.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "cpu/gemv.h"
#include "cuda/gemv.h"
#include "ops/backend.h"
#include "ops/dot_operand.h"
#include "ops/inputs.h"
#include "ops/product.h"
#include "ops/weights.h"

namespace octofold {
namespace {

// Matrices all: leading dimensions are one.
GemvArguments checked(const GemvArguments& given) {
  const core::Arguments check("gemv");
  ops::Inputs inputs(check);
  GemvArguments arguments = given;
  arguments.x = ops::flat_operand(check, "x", "x.scale", given.x, inputs);
  if (arguments.x.data.shape[0] > kMostGemvRows) {
    check.fail("x", core::format("at most {} vectors", kMostGemvRows),
               core::format("{}", arguments.x.data.shape[0]));
  }
  ops::check_weights(check, given.w, arguments.x.data.device, inputs);
  ops::require_depth(check, "x", arguments.x.data, "w", given.w.data);
  ops::require_shape_of_result(check, "out", given.out, given.x.data, given.w.data.shape[0]);
  arguments.out = core::flatten(check, "out", given.out);
  ops::check_output(check, arguments.out, inputs.all());
  return arguments;
}

}  // namespace

void gemv(const GemvArguments& given, Stream stream) {
  const GemvArguments arguments = checked(given);
  const Device device = arguments.out.device;
  if (arguments.out.element_count() == 0) return;
  if (ops::is_on_cpu(device)) return cpu::gemv(arguments);
  cuda::gemv(ops::gpu("gemv", device), arguments, stream);
}

}  // namespace octofold
