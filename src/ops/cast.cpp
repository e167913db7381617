#include "octofold/cast.h"

#include <variant>

#include "core/check.h"
#include "cpu/cast.h"
#include "cuda/cast.h"
#include "ops/backend.h"
#include "ops/cast_sources.h"
#include "ops/cast_targets.h"

namespace octofold {

void cast(const CastSource& given, const CastTargets& given_targets, Stream stream) {
  const core::Arguments check("cast");
  const ops::CheckedSource source = ops::checked_source(check, given);
  const CastTargets targets =
      ops::checked_targets(check, given_targets,
                           {.shape = source.shape,
                            .inputs = source.inputs,
                            .is_plain = std::holds_alternative<TensorView>(given)});
  const config::CastFormat format = ops::format_of(check, targets, source.dtype);
  const Device device = source.inputs.front().view.device;
  if (!ops::has_memory(device)) return;
  if (ops::is_on_cpu(device)) return cpu::cast(source.source, targets, format);
  cuda::cast(ops::gpu("cast", device), source.source, targets, format, stream);
}

}  // namespace octofold
