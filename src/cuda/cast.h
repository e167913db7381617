// Casts on a GPU.
#pragma once

#include <span>

#include "octofold/cast_sources.h"
#include "octofold/cast_targets.h"
#include "octofold/stream.h"

#include "cuda/device.h"
#include "kernels/cast/config/cast.h"

namespace octofold::cuda {

/// octofold::cast() on checked matrices that lie on `device`: the targets that there are, from one
/// read of the source.
/// Queues one kernel, or four where a scale is worked out that is not known before all of it is
/// read, one before them for the statistics of a norm that they cannot find themselves, and another
/// for what is worked out of columns; the first call of a problem also plans it and loads its
/// kernels.
void cast(Device& device, const CastSource& source, const CastTargets& targets,
          const config::CastFormat& format, Stream stream);

/// A matrix, or a stack of them, and its targets, checked.
struct CheckedCast {
  TensorView source;
  CastTargets targets;
  config::CastFormat format;
};

/// octofold::cast_many() on `device`: casts of one kind by one launch, of each of the kernels that
/// a cast takes, for as many as fit into a kernel's parameters. Casts that cannot share one are
/// queued as by cast().
void cast_many(Device& device, std::span<const CheckedCast> casts, Stream stream);

}  // namespace octofold::cuda
