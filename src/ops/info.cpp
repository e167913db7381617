#include "octofold/info.h"

#include <fmt/format.h>

#include "core/options.h"
#include "cpu/blas.h"
#include "cuda/probe.h"
#include "jit/nvrtc.h"

namespace octofold {

Info info() {
  cuda::DriverProbe probe = cuda::probe_driver();
  for (GpuInfo& gpu : probe.gpus) {
    gpu.backend = {.available = false,
                   .detail = fmt::format("no kernels for compute capability {}.{} in this version; "
                                         "the CPU backend is what there is",
                                         gpu.compute_major, gpu.compute_minor)};
  }
  return {.version = OCTOFOLD_VERSION,
          .cpu_threads = core::options().num_threads,
          .cpu = {.available = true, .detail = cpu::blas_description()},
          .driver = std::move(probe.driver),
          .nvrtc = jit::probe_nvrtc(),
          .gpus = std::move(probe.gpus)};
}

}  // namespace octofold
