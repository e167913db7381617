// Whether tests that compile kernels may be left out.
#pragma once

#include "core/options.h"
#include "jit/nvrtc.h"

namespace octofold::test {

/// Not where OCTOFOLD_NVRTC names a library, as `make test-cpp` does: there they have to run.
inline bool nvrtc_is_missing() {
  return core::options().nvrtc_library.empty() && !jit::probe_nvrtc().available;
}

}  // namespace octofold::test
