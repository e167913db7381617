// Memory on a GPU. Each call returns when what it did is done.
#pragma once

#include <cstddef>

#include "cuda/device.h"

namespace octofold::cuda {

/// So many bytes of zeros, at an address that is a multiple of 256. Throws Error(kUnavailable)
/// where the GPU has too few left.
void* allocate(const Device& device, std::size_t bytes);

void release(const Device& device, void* memory) noexcept;

/// Copies from anywhere to anywhere: host, this device, another one. One end is on `device`.
void copy(const Device& device, void* to, const void* from, std::size_t bytes);

}  // namespace octofold::cuda
