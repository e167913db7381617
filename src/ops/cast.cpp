#include "octofold/cast.h"

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

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

void cast_many(std::span<const CastJob> jobs, Stream stream) {
  std::vector<cuda::CheckedCast> casts;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string operation = core::format("cast_many: job {}", i);
    const core::Arguments check(operation);
    const auto& [given, given_targets] = jobs[i];
    check.require_same_device("x", given, jobs[0].source.device);
    const ops::CheckedSource source = ops::checked_source(check, given);
    const CastTargets targets = ops::checked_targets(
        check, given_targets, {.shape = source.shape, .inputs = source.inputs, .is_plain = true});
    const config::CastFormat format = ops::format_of(check, targets, source.dtype);
    casts.push_back({std::get<TensorView>(source.source), targets, format});
  }
  if (casts.empty() || !ops::has_memory(jobs[0].source.device)) return;
  if (!ops::is_on_cpu(jobs[0].source.device)) {
    return cuda::cast_many(ops::gpu("cast_many", jobs[0].source.device), casts, stream);
  }
  for (const auto& [source, targets, format] : casts) cpu::cast(source, targets, format);
}

}  // namespace octofold
