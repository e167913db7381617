// A program of the build: compiles the kernels of plan/precompiled.h into one file, which becomes a
// part of the library (cmake/precompiled_kernels.cmake).
//
//   octofold_pack FILE       OCTOFOLD_NVRTC, OCTOFOLD_CACHE_DIR and OCTOFOLD_NUM_THREADS as ever
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "octofold/error.h"

#include "cuda/device.h"
#include "cuda/kernel_headers.h"
#include "jit/kernel_cache.h"
#include "jit/kernel_pack.h"
#include "jit/nvrtc.h"
#include "plan/precompiled.h"

namespace octofold {
namespace {

std::string packed() {
  std::vector<jit::Program> programs;
  for (const plan::Gpu& gpu : plan::kPrecompiledFor) {
    for (const plan::KernelPlan& kernel : plan::precompiled_kernels(gpu)) {
      programs.push_back(cuda::program_of(kernel, gpu));
    }
  }
  jit::compile_all(programs, cuda::kernel_headers());
  std::vector<jit::PackedKernel> kernels;
  for (const jit::Program& program : programs) {
    kernels.push_back({program, jit::compile_cached(program, cuda::kernel_headers())});
  }
  const std::string bytes =
      jit::pack_of(kernels, jit::digest(cuda::kernel_headers()), jit::compiler_cuda());
  std::printf("%zu precompiled kernels, %.1f MB\n", kernels.size(),
              static_cast<double>(bytes.size()) / 1e6);
  return bytes;
}

}  // namespace
}  // namespace octofold

int main(int count, char** arguments) try {
  if (count != 2) {
    std::fprintf(stderr, "usage: octofold_pack FILE\n");
    return 2;
  }
  std::string bytes;
  try {
    bytes = octofold::packed();
  } catch (const octofold::Error& error) {  // none, or one that is too old: all else goes on
    if (error.code() != octofold::ErrorCode::kUnavailable) throw;
    std::fprintf(stderr, "octofold_pack: no precompiled kernels: %s\n", error.what());
  }
  std::ofstream file(arguments[1], std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return 0;
  std::fprintf(stderr, "octofold_pack: cannot write '%s'\n", arguments[1]);
  return 1;
} catch (const octofold::Error& error) {
  std::fprintf(stderr, "octofold_pack: %s\n", error.what());
  return 1;
}
