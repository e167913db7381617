// NVIDIA's run-time compiler, opened at run time. It needs no toolkit and no GPU.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "octofold/info.h"

#include "jit/program.h"

namespace octofold::jit {

/// Further files to look for NVRTC in, tried before the system's: where a wheel has put it.
void set_nvrtc_candidates(std::vector<std::string> paths);

/// The newest CUDA whose kernels are of use, by its major version: a driver loads none of a later
/// one (https://docs.nvidia.com/deploy/cuda-compatibility/), so that NVRTC of such a one is passed
/// over. Whoever opens a driver says so; before, none is too new.
void set_newest_cuda(int major);
int newest_cuda();

/// The CUDA that compile()'s kernels are of, by its major version. Throws as compiler_identity()
/// does.
int compiler_cuda();

/// "NVRTC 13.0 (libnvrtc.so.13)", or why there is none.
Component probe_nvrtc();

/// The identity of the compiler, for cache keys: NVRTC's build, else its version, and options. If
/// the first file to try has a build ID, NVRTC is not opened, which takes longer than to read a
/// kernel from disk. Throws Error(kUnavailable) if it has to be opened and there is none, or one
/// that is too old, saying where was looked and how to get one.
std::string compiler_identity();

/// Compiles one kernel. Thread safe. Throws Error(kInternal) that names the kernel and has the
/// first lines of the compiler's log; the whole log goes to the log handler.
Binary compile(const Program& program, std::span<const Header> headers);

}  // namespace octofold::jit
