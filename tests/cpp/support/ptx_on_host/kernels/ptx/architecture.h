// The architecture as which device code runs here: Hopper's, unless a target says otherwise.
#pragma once

#ifndef OCTOFOLD_HOST_ARCHITECTURE
#define OCTOFOLD_HOST_ARCHITECTURE 900
#endif

namespace octofold::ptx {

inline constexpr int kArchitecture = OCTOFOLD_HOST_ARCHITECTURE;
inline constexpr bool kHasAmpere = kArchitecture >= 800;
inline constexpr bool kHasFp8Conversions = kArchitecture >= 890;
inline constexpr bool kHasFp8Products = kArchitecture >= 890;
inline constexpr bool kHasHopper = kArchitecture >= 900;

constexpr int resident_blocks(int wanted) { return wanted; }

}  // namespace octofold::ptx
