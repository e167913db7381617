// GEMM on a GPU.
#pragma once

#include <string_view>

#include "octofold/gemm.h"

#include "core/groups.h"
#include "cuda/device.h"
#include "kernels/sm90/config/gemm.h"

namespace octofold::cuda {

/// octofold::gemm() on checked arguments that lie on `device`. Queues one kernel; the first call of
/// a problem also plans it and loads its kernel. Throws Error where the GPU has no kernel for it.
void gemm(Device& device, const GemmArguments& arguments, Stream stream);

/// The same by the candidate of this name (plan/gemm.h), planned at each call: for tests and
/// tuning.
void gemm(Device& device, const GemmArguments& arguments, Stream stream,
          std::string_view candidate);

/// What the kernel of this configuration is given. Of a gated product B has the rows of gates and
/// ups, `out` the codes of H, and the scales of these are left to the caller. An A that is cast is
/// what it is cast from, without scales. `groups`: where the configuration has some.
config::Sm90GemmParams gemm_params(const Device& device, const GemmArguments& arguments,
                                   const config::Sm90GemmConfig& config,
                                   const core::Groups& groups = {.count = 1});

}  // namespace octofold::cuda
