#include "octofold/cast.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/check.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/backend.h"
#include "ops/cast_sources.h"
#include "ops/cast_targets.h"

namespace octofold {

namespace {

void cast_checked(const CastSource& source, const CastTargets& targets,
                  const config::CastFormat& format, Device device, Stream stream) {
  if (ops::is_on_cpu(device)) return cpu::cast(source, targets, format);
  cuda::cast(ops::gpu("cast", device), source, targets, format, stream);
}

// True if one kernel makes rows as they are and the transpose times factors.
bool is_one_cast(const CastTargets& targets, Device device) {
  const auto finds_scales = [](const CastTarget& target) {
    return target.scales == ScaleSource::kComputed && !target.amax;
  };
  const Granularity rows = targets.rows->format.granularity;
  const Granularity transposed = targets.transposed->format.granularity;
  return !ops::is_on_cpu(device) && finds_scales(*targets.rows) &&
         finds_scales(*targets.transposed) && rows == Granularity::kBlock1x128 &&
         (transposed == rows || transposed == Granularity::kChannel);
}

// Casts with factors of the transpose alone: one cast or two, as there are kernels.
void cast_gathered(GatheredRows source, const CastTargets& targets,
                   const config::CastFormat& format, Device device, Stream stream) {
  if (targets.rows && targets.transposed && is_one_cast(targets, device)) {
    return cast_checked(source, targets, format, device, stream);
  }
  const std::optional<TensorView> factors = source.transposed_factors;
  source.transposed_factors.reset();
  if (targets.rows) {
    CastTargets rows = targets;
    rows.transposed.reset();
    rows.offsets.reset();
    cast_checked(source, rows, format, device, stream);
  }
  if (!targets.transposed) return;
  CastTargets transposed = targets;
  transposed.rows.reset();
  source.factors = factors;
  const config::CastFormat own = ops::format_of(core::Arguments("cast"), transposed, format.in);
  cast_checked(source, transposed, own, device, stream);
}

}  // namespace

void cast(const CastSource& given, const CastTargets& given_targets, Stream stream) {
  const core::Arguments check("cast");
  const ops::CheckedSource source = ops::checked_source(check, given);
  ops::Inputs memory(check);
  const bool is_plain = std::holds_alternative<TensorView>(given);
  const CastTargets targets =
      ops::checked_targets(check, given_targets, {source.shape, source.inputs, is_plain}, memory);
  memory.require_all_apart();
  const config::CastFormat format = ops::format_of(check, targets, source.dtype);
  const Device device = source.inputs.front().view.device;
  if (!ops::has_memory(device)) return;
  const auto* gathered = std::get_if<GatheredRows>(&source.source);
  if (gathered != nullptr && gathered->transposed_factors) {
    if (targets.columns.sums || targets.columns.amax) {
      check.fail("transposed_factors", "it to be omitted with reductions of columns",
                 core::describe(*gathered->transposed_factors));
    }
    return cast_gathered(*gathered, targets, format, device, stream);
  }
  cast_checked(source.source, targets, format, device, stream);
}

void cast_many(std::span<const CastJob> jobs, Stream stream) {
  std::vector<cuda::CheckedCast> casts;
  const core::Arguments all("cast_many");
  ops::Inputs memory(all);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string operation = core::format("cast_many: job {}", i);
    const core::Arguments check(operation);
    const auto& [given, given_targets] = jobs[i];
    check.require_same_device("x", given, jobs[0].source.device);
    const ops::CheckedSource source = ops::checked_source(check, given);
    memory.begin_job(i);
    const CastTargets targets = ops::checked_targets(
        check, given_targets, {source.shape, source.inputs, /*is_plain=*/true}, memory);
    const config::CastFormat format = ops::format_of(check, targets, source.dtype);
    casts.push_back({std::get<TensorView>(source.source), targets, format});
  }
  memory.require_all_apart();
  if (casts.empty() || !ops::has_memory(jobs[0].source.device)) return;
  if (!ops::is_on_cpu(jobs[0].source.device)) {
    return cuda::cast_many(ops::gpu("cast_many", jobs[0].source.device), casts, stream);
  }
  for (const auto& [source, targets, format] : casts) cpu::cast(source, targets, format);
}

}  // namespace octofold
