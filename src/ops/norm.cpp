#include "octofold/norm.h"

#include <variant>

#include "core/check.h"
#include "cpu/norms.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/cast_sources.h"
#include "ops/norm_checks.h"

namespace octofold {

void norm(const Normed& given, const MutableTensorView& given_y, Stream stream) {
  const core::Arguments check("norm");
  const ops::CheckedSource checked = ops::checked_source(check, given);
  const auto& source = std::get<Normed>(checked.source);
  const MutableTensorView y = ops::checked_like(check, "y", given_y, given.x);
  check.require_matrix("y", y);
  ops::require_apart(check, "y", y, checked.inputs);
  const Device device = source.x.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::normalize(source, y);
  cuda::norm(ops::gpu("norm", device), source, y, stream);
}

}  // namespace octofold
