// The device code of kernels/, as text. Defined by a generated file: cmake/embed_kernels.cmake.
#pragma once

#include <span>

#include "jit/program.h"

namespace octofold::cuda {

/// The same list at each call, sorted by name.
std::span<const jit::Header> kernel_headers();

}  // namespace octofold::cuda
