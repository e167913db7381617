// Integer arithmetic for host and device.
#pragma once

namespace octofold::config {

// value / divisor, rounded up; no intermediate result overflows. value ≥ 0, divisor > 0.
template <typename T, typename Divisor>
constexpr T ceil_divide(T value, Divisor divisor) {
  return value / divisor + (value % divisor != 0);
}

constexpr int round_up(int value, int multiple) { return ceil_divide(value, multiple) * multiple; }

}  // namespace octofold::config
