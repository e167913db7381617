#include "octofold/convert_dtype.h"

#include <initializer_list>

#include "core/check.h"
#include "core/flatten.h"
#include "cpu/convert.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/inputs.h"
#include "ops/unscaled_output.h"

namespace octofold {
namespace {

// The dtypes that convert_dtype() takes: all but integers.
constexpr std::initializer_list<DType> kComputable = {DType::kFloat32, DType::kFloat16,
                                                      DType::kBFloat16, DType::kE4M3, DType::kE5M2};

}  // namespace

void convert_dtype(const TensorView& x, const MutableTensorView& out, Overflow overflow,
                   Stream stream) {
  const core::Arguments check("convert_dtype");
  check.require_enumerator("overflow", overflow);
  const TensorView source = core::flatten(check, "x", x);
  check.require_input_matrix("x", source);
  check.require_dtype("x", source, kComputable);
  const MutableTensorView target = ops::checked_output(check, out, ops::shape_of(x), source);
  check.require_dtype("out", target, kComputable);
  if (!ops::has_memory(x.device)) return;
  if (ops::is_on_cpu(x.device)) return cpu::convert_dtype(source, target, overflow);
  cuda::convert_dtype(ops::gpu("convert_dtype", x.device), source, target, overflow, stream);
}

}  // namespace octofold
