#include "octofold/transpose.h"

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/transpose.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/unscaled_output.h"

namespace octofold {

void transpose(const TensorView& x, const MutableTensorView& out, Stream stream) {
  const core::Arguments check("transpose");
  const TensorView source = core::flatten(check, "x", x);
  if (x.rank < 2) check.fail("x", "at least 2 dimensions", core::describe(x));
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, {DType::kE4M3, DType::kE5M2});
  std::array<std::int64_t, kMaxRank> shape = x.shape;
  std::swap(shape[x.rank - 2], shape[x.rank - 1]);
  const MutableTensorView target = ops::checked_output(
      check, out, std::span(shape.data(), static_cast<std::size_t>(x.rank)), source);
  check.require_dtype("out", target, {source.dtype});
  if (!ops::has_memory(x.device)) return;
  std::int64_t matrices = 1;
  for (std::int32_t i = 0; i < x.rank - 2; ++i) matrices *= x.shape[i];
  if (ops::is_on_cpu(x.device)) return cpu::transpose(source, target, matrices);
  cuda::transpose(ops::gpu("transpose", x.device), source, target, matrices, stream);
}

}  // namespace octofold
