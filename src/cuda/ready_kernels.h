// Kernels that come with the library, compiled when it was built: those of plan/ready.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "jit/cache_entry.h"
#include "jit/program.h"

namespace octofold::cuda {

/// The bytes of a jit::KernelPack, empty where the library was built without one. Defined by
/// no_ready_kernels.cpp, or by a generated file: cmake/ready_kernels.cmake.
std::string_view ready_kernel_bytes();

/// Nothing where the library does not bring the kernel, or OCTOFOLD_READY_KERNELS says not to take
/// it.
std::optional<jit::Binary> ready_kernel(const jit::Program& program);

/// All of them.
std::vector<jit::CacheEntry> ready_kernels();

}  // namespace octofold::cuda
