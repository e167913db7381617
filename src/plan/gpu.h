// What a plan needs to know of a GPU.
#pragma once

#include <string>

namespace octofold::plan {

struct Gpu {
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  ///< bytes, at most
};

/// The H200 and H100 (SXM): for plans made without a GPU.
inline constexpr Gpu kHopper{.compute_major = 9,
                             .compute_minor = 0,
                             .multiprocessors = 132,
                             .shared_memory_per_block = 227 * 1024};

/// "sm_90a": what the kernels for this GPU are compiled for.
std::string architecture(const Gpu& gpu);

}  // namespace octofold::plan
