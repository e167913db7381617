#include "octofold/info.h"

#include "octofold/error.h"

#include "core/format.h"
#include "core/options.h"
#include "cpu/blas.h"
#include "cuda/probe.h"
#include "jit/nvrtc.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

Component backend_of(const GpuInfo& info, const Component& nvrtc) {
  const plan::Gpu gpu{.compute_major = info.compute_major,
                      .compute_minor = info.compute_minor,
                      .multiprocessors = info.multiprocessors};
  try {
    plan::require_gemm_support(gpu);
  } catch (const Error& error) {
    return {.available = false, .detail = error.what()};
  }
  if (!nvrtc.available) return {.available = false, .detail = nvrtc.detail};
  return {
      .available = true,
      .detail = core::format("casts and products, compiled for {} when a shape first needs them",
                             plan::architecture(gpu))};
}

}  // namespace

Info info() {
  cuda::DriverProbe probe = cuda::probe_driver();
  Component nvrtc = jit::probe_nvrtc();
  for (GpuInfo& gpu : probe.gpus) gpu.backend = backend_of(gpu, nvrtc);
  return {.version = OCTOFOLD_VERSION,
          .cpu_threads = core::options().num_threads,
          .cpu = {.available = true, .detail = cpu::blas_description()},
          .driver = std::move(probe.driver),
          .nvrtc = std::move(nvrtc),
          .gpus = std::move(probe.gpus)};
}

}  // namespace octofold
