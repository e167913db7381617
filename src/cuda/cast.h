// Casts on a GPU.
#pragma once

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

}  // namespace octofold::cuda
