// Compiled kernels: those that come with the library, and those on disk. Operations keep there what
// they compile; here the cache is listed, cleared, and filled in advance, without a GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "octofold/export.h"
#include "octofold/gemm.h"

namespace octofold {

/// A file of the cache.
struct CachedKernel {
  std::filesystem::path file{};
  std::int64_t bytes = 0;
  std::chrono::system_clock::time_point written{};
  /// Why the file cannot be used: a damaged one, or another version's. It is replaced when its
  /// kernel is next needed. Empty for a usable one; what follows is unset otherwise.
  std::string fault{};
  std::string description{};   ///< "gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, …"
  std::string architecture{};  ///< "sm_90a"
  std::int32_t registers = 0;
};

/// A kernel that comes with the library, compiled when that was built.
struct ReadyKernel {
  std::int64_t bytes = 0;
  std::string description{};   ///< "gemm: a e4m3 1x128, b e4m3 128x128, out bfloat16, …"
  std::string architecture{};  ///< "sm_90a"
  std::int32_t registers = 0;
};

/// All of them, by description; none where the library was built without them, or where
/// OCTOFOLD_READY_KERNELS is 0. Operations take these first: they need neither NVRTC nor the disk.
OCTOFOLD_API std::vector<ReadyKernel> list_ready_kernels();

/// OCTOFOLD_CACHE_DIR, else octofold in XDG_CACHE_HOME, else in ~/.cache. Empty where there is no
/// such place: then nothing is kept.
OCTOFOLD_API std::filesystem::path kernel_cache_folder();

/// All files of the cache, newest first. Throws Error(kIo) if the folder cannot be read.
OCTOFOLD_API std::vector<CachedKernel> list_kernel_cache();

/// Removes what the cache has written, and nothing else. Returns how many kernels went. Throws
/// Error(kIo) where a file cannot be removed.
OCTOFOLD_API int clear_kernel_cache();

struct WarmOptions {
  /// What to compile for: "sm_90a", "sm_89", "sm_120" or "sm_121".
  std::string architecture = "sm_90a";
  /// Of the GPU that the kernels will run on: which tiles fit a problem depends on it. The default
  /// is the H100's (SXM) and the H200's; GpuInfo has that of a GPU at hand.
  std::int32_t multiprocessors = 132;
  /// Called at the start (0) and as kernels are done, by the thread that called. What it throws
  /// ends the run; the kernels so far stay.
  std::function<void(std::int64_t done, std::int64_t total)> progress{};
};

/// Problems share kernels: there are no more kernels than problems, often far fewer.
struct WarmReport {
  std::int64_t compiled = 0;  ///< kernels that the cache did not have
  std::int64_t found = 0;     ///< kernels that it had
  std::int64_t ready = 0;     ///< kernels that come with the library
};

/// Compiles the kernels of these products into the cache, as the first gemm() of each would where
/// no table of measured choices has it, but for those that come with the library: needs NVRTC, no
/// GPU and no driver. The tensors are taken to be contiguous, at addresses that are multiples of 16
/// bytes, as allocators give them; M and N are at least 1.
///
/// All problems are checked before anything is compiled, which OCTOFOLD_NUM_THREADS threads do.
/// Throws Error: kInvalidArgument names the argument of gemm() or the option; kUnsupported: no
/// kernels for the architecture, or sizes near 2^31 and more; kUnavailable: no NVRTC, or no folder
/// to keep kernels in; kIo: kernels cannot be written there. Example:
/// octofold::warm_kernel_cache(std::vector<GemmProblem>{{.m = 64, .n = 7168, .k = 2048}});
OCTOFOLD_API WarmReport warm_kernel_cache(std::span<const GemmProblem> problems,
                                          const WarmOptions& options = {});

/// Further files to look for NVRTC in, before the system's: where a package manager has put it.
/// OCTOFOLD_NVRTC goes before them. Without effect once a kernel has been compiled or looked up.
OCTOFOLD_API void set_nvrtc_candidates(std::vector<std::string> files);

}  // namespace octofold
