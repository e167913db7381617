#include "octofold/rotary.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "cpu/backend.h"
#include "cuda/rotary.h"
#include "ops/backend.h"
#include "ops/inputs.h"

namespace octofold {
namespace {

// With a batch of 1 in front, where there is none.
template <typename View>
View with_batch(const View& tensor, std::int32_t rank) {
  if (tensor.rank == rank) return tensor;
  View batched = tensor;
  batched.rank = rank;
  batched.shape[0] = 1;
  batched.strides[0] = 0;
  for (std::int32_t i = 1; i < rank; ++i) {
    batched.shape[i] = tensor.shape[i - 1];
    batched.strides[i] = tensor.strides[i - 1];
  }
  return batched;
}

TensorView checked_x(const core::Arguments& check, const TensorView& x) {
  check.require_sizes("x", x);
  if (x.rank != 3 && x.rank != 4) {
    check.fail("x", "[tokens, heads, head_dim] or [batch, tokens, heads, head_dim]",
               core::describe(x));
  }
  check.require_dtype("x", x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
  check.require_enumerator("x", x.device.type);
  const std::int64_t head_size = x.shape[x.rank - 1];
  if (head_size % 2 != 0) check.fail("x", "an even head_dim", core::format("{}", head_size));
  check.require_runs("x", x);
  return with_batch(x, 4);
}

// For x of rank 4.
TensorView checked_table(const core::Arguments& check, std::string_view argument,
                         const TensorView& given, const TensorView& x) {
  check.require_sizes(argument, given);
  const TensorView table = given.rank == 2 ? with_batch(given, 3) : given;
  const std::int64_t batch = x.shape[0], tokens = x.shape[1], head_size = x.shape[3];
  if (table.rank != 3 || (table.shape[0] != 1 && table.shape[0] != batch) ||
      table.shape[1] != tokens || table.shape[2] != head_size) {
    check.fail(argument,
               core::format("[{0}, {1}], [1, {0}, {1}] or [{2}, {0}, {1}], as x has tokens and "
                            "head_dim",
                            tokens, head_size, batch),
               core::describe(given));
  }
  check.require_dtype(argument, given, {x.dtype});
  check.require_same_device(argument, given, x.device);
  check.require_runs(argument, given);
  return table;
}

void require_contiguous(const core::Arguments& check, std::string_view argument,
                        const TensorView& tensor) {
  std::int64_t expected = 1;
  for (std::int32_t i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != expected) {
      check.fail(argument, "a contiguous tensor", core::describe(tensor));
    }
    expected *= tensor.shape[i];
  }
}

}  // namespace

void rotary(const RotaryArguments& given, const MutableTensorView& given_y, Stream stream) {
  const core::Arguments check("rotary");
  RotaryArguments arguments = given;
  arguments.x = checked_x(check, given.x);
  arguments.cos = checked_table(check, "cos", given.cos, arguments.x);
  arguments.sin = checked_table(check, "sin", given.sin, arguments.x);
  check.require_sizes("y", given_y);
  check.require_shape("y", given_y, ops::shape_of(given.x));
  check.require_dtype("y", given_y, {given.x.dtype});
  check.require_same_device("y", given_y, given.x.device);
  if (given_y.element_count() > 0) {
    require_contiguous(check, "y", given_y);
    check.require_data("y", given_y);
    check.require_disjoint("y", given_y, "x", given.x);
    check.require_disjoint("y", given_y, "cos", given.cos);
    check.require_disjoint("y", given_y, "sin", given.sin);
  }
  const MutableTensorView y = with_batch(given_y, 4);
  const Device device = given.x.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::rotary(arguments, y);
  cuda::rotary(ops::gpu("rotary", device), arguments, y, stream);
}

}  // namespace octofold
