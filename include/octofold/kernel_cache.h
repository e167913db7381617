// Compiled kernels: the precompiled ones of the library, and those on disk, where operations keep
// what they compile. These functions list the cache, clear it, and fill it in advance without a
// GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "octofold/export.h"

namespace octofold {

/// A file of the cache.
struct CachedKernel {
  std::filesystem::path file{};
  std::int64_t bytes = 0;
  std::chrono::system_clock::time_point written{};
  /// Why the file cannot be used: it is damaged, or another version's. It is replaced when its
  /// kernel is next needed. Empty for a usable file; for others the fields below are unset.
  std::string fault{};
  std::string description{};   ///< "gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, …"
  std::string architecture{};  ///< "sm_90a"
  std::int32_t registers = 0;
};

/// A precompiled kernel: it comes with the library, compiled when that was built.
struct PrecompiledKernel {
  std::int64_t bytes = 0;
  std::string description{};   ///< "gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, …"
  std::string architecture{};  ///< "sm_90a"
  std::int32_t registers = 0;
};

/// All precompiled kernels, sorted by description; none if the library was built without them, or
/// if OCTOFOLD_PRECOMPILED_KERNELS is 0. Operations take these first: they need neither NVRTC nor
/// the disk.
OCTOFOLD_API std::vector<PrecompiledKernel> list_precompiled_kernels();

/// The folder of the cache: OCTOFOLD_CACHE_DIR, else octofold in XDG_CACHE_HOME, else in ~/.cache.
/// Empty where there is no such place; then nothing is kept.
OCTOFOLD_API std::filesystem::path kernel_cache_folder();

/// All files of the cache, newest first. A folder that is not used, because others than this user
/// and root may have written to it, stands alone, with the reason. Throws Error(kIo) if it cannot
/// be read.
OCTOFOLD_API std::vector<CachedKernel> list_kernel_cache();

/// Removes what the cache has written, and nothing else. Returns the number of kernels removed.
/// Throws Error(kIo) if a file cannot be removed.
OCTOFOLD_API int clear_kernel_cache();

struct WarmOptions {
  /// The architecture to compile for: "sm_90a", "sm_89", "sm_120" or "sm_121".
  std::string architecture = "sm_90a";
  /// The number of the GPU on which the kernels will run; the best tiles for a problem depend on
  /// it. The default is that of the H100 (SXM) and the H200; GpuInfo has that of a GPU at hand.
  std::int32_t multiprocessors = 132;
  /// Called at the start (with 0) and as kernels are done, by the calling thread. An exception that
  /// it throws ends the run; the kernels so far stay.
  std::function<void(std::int64_t done, std::int64_t total)> progress{};
};

/// Problems share kernels: there are no more kernels than problems, often far fewer.
struct WarmReport {
  std::int64_t compiled = 0;     ///< kernels that the cache did not have
  std::int64_t found = 0;        ///< kernels that it had
  std::int64_t precompiled = 0;  ///< precompiled kernels
};

/// Compiles the kernels of these products, as texts (tuning.h), into the cache, as the first call
/// of each would if no tuned table named another; precompiled kernels are left out. This needs
/// NVRTC, but neither a GPU nor a driver. Of gemm() the kernels are those of rows of codes with and
/// without gaps between them, and of a C that is out as well as one that is not.
///
/// All problems are checked first. Then OCTOFOLD_NUM_THREADS threads compile.
/// Throws Error: kInvalidArgument, which names the phrase of a text or the option; kUnsupported if
/// there are no kernels for the architecture, or sizes are near 2^31 or more; kUnavailable without
/// NVRTC, or without a folder to keep kernels in; kIo if kernels cannot be written there.
/// Example: octofold::warm_kernel_cache(std::vector<std::string>{"gemm: m 64, n 7168, k 2048"});
OCTOFOLD_API WarmReport warm_kernel_cache(std::span<const std::string> problems,
                                          const WarmOptions& options = {});

/// Names further files to try as NVRTC before the system's, such as the one that a package manager
/// has installed. OCTOFOLD_NVRTC goes before them. The call has no effect once a kernel has been
/// compiled or looked up.
OCTOFOLD_API void set_nvrtc_candidates(std::vector<std::string> files);

}  // namespace octofold
