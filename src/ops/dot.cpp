#include "octofold/dot.h"

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "cpu/backend.h"
#include "cuda/dot.h"
#include "kernels/dot/config/dot.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "ops/product.h"

namespace octofold {
namespace {

// The operand as a matrix of one row.
DotOperand checked(const core::Arguments& check, std::string_view argument, const DotOperand& given,
                   ops::Inputs& inputs) {
  const DotOperand operand = ops::flat_operand(check, argument, given, inputs);
  if (operand.data.shape[0] != 1) {
    check.fail(argument, "a vector [K]", core::describe(given.data));
  }
  return operand;
}

}  // namespace

std::int64_t dot_workspace_size(std::int64_t size) {
  core::Arguments("dot_workspace_size").require_size("size", size);
  return config::dot_parts(size);
}

void dot(const DotArguments& given, Stream stream) {
  const core::Arguments check("dot");
  ops::Inputs inputs(check);
  DotArguments arguments = given;
  arguments.a = checked(check, "a", given.a, inputs);
  arguments.b = checked(check, "b", given.b, inputs);
  const std::int64_t size = arguments.a.data.shape[1];
  const Device device = arguments.a.data.device;
  check.require_same_device("b", arguments.b.data, device);
  if (arguments.b.data.shape[1] != size) {
    check.fail("b", core::format("K = {}, as 'a' has", size),
               core::format("K = {}", arguments.b.data.shape[1]));
  }
  check.require_sizes("out", given.out);
  if (given.out.element_count() != 1) {
    check.fail("out", "one element", core::describe(given.out));
  }
  arguments.out = vector(given.out.data, given.out.dtype, 1, given.out.device);
  check.require_vector("out", arguments.out);
  check.require_vector("workspace", given.workspace);
  check.require_shape("workspace", given.workspace, {dot_workspace_size(size)});
  for (const auto& [argument, view] :
       {std::pair<std::string_view, TensorView>{"out", arguments.out},
        {"workspace", given.workspace}}) {
    check.require_dtype(argument, view, {DType::kFloat32});
    check.require_same_device(argument, view, device);
    inputs.add_output(argument, view);
  }
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::dot(arguments);
  cuda::dot(ops::gpu("dot", device), arguments, stream);
}

}  // namespace octofold
