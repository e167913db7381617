// Exact here, but for the rounding.
#pragma once

#include <cmath>

namespace octofold::ptx {

inline float exp2(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

}  // namespace octofold::ptx
