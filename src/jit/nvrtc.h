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

/// "NVRTC 13.0 (libnvrtc.so.13)", or why there is none.
Component probe_nvrtc();

/// The version, as it enters cache keys: "13.0". Throws Error(kUnavailable) without NVRTC or with
/// one that is too old, saying where was looked and how to get one.
std::string nvrtc_version();

/// Compiles one kernel. Thread safe. Throws Error(kInternal) that names the kernel and has the
/// first lines of the compiler's log; the whole log goes to the log handler.
Binary compile(const Program& program, std::span<const Header> headers);

}  // namespace octofold::jit
