#include "cuda/precompiled_kernels.h"

#include "core/log.h"
#include "core/options.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_pack.h"

namespace octofold::cuda {
namespace {

const jit::KernelPack& pack() {
  static const jit::KernelPack instance(
      core::options().uses_precompiled_kernels ? precompiled_kernel_bytes() : "");
  return instance;
}

}  // namespace

std::optional<jit::Binary> precompiled_kernel(const jit::Program& program) {
  if (pack().size() == 0) return std::nullopt;
  static const jit::CacheKey headers = jit::digest(kernel_headers());
  std::optional<jit::Binary> binary = pack().find(program, headers);
  if (binary) core::log(LogLevel::kDebug, "precompiled: {}", program.description);
  return binary;
}

std::vector<jit::CacheEntry> precompiled_kernels() { return pack().entries(); }

}  // namespace octofold::cuda
