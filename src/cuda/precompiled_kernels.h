// Kernels that come with the library, compiled when it was built: those of plan/precompiled.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "jit/cache_entry.h"
#include "jit/program.h"

namespace octofold::cuda {

/// The bytes of a jit::KernelPack, empty where the library was built without one. Defined by
/// no_precompiled_kernels.cpp, or by a generated file: cmake/precompiled_kernels.cmake.
std::string_view precompiled_kernel_bytes();

/// Nothing where the library does not bring the kernel, the driver is one of an older CUDA than its
/// compiler, or OCTOFOLD_PRECOMPILED_KERNELS says not to take it.
std::optional<jit::Binary> precompiled_kernel(const jit::Program& program);

/// All of them.
std::vector<jit::CacheEntry> precompiled_kernels();

}  // namespace octofold::cuda
