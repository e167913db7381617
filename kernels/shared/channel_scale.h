// The outer level of two-level scales.
#pragma once

namespace octofold::config {

// A channel's factor as it counts: 1 in place of what has no use as one. That which is, a positive
// normal number, has a finite reciprocal, by which values are multiplied before they are cast.
constexpr float channel_factor(float held) {
  return held >= 0x1p-126f && held <= 0x1.FFFFFEp127f ? held : 1.0f;
}

}  // namespace octofold::config
