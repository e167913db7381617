// Integer arithmetic for host and device.
#pragma once

namespace octofold::config {

// value / divisor, rounded up; no intermediate result overflows. value ≥ 0, divisor > 0.
template <typename T, typename Divisor>
constexpr T ceil_divide(T value, Divisor divisor) {
  return value / divisor + (value % divisor != 0);
}

// Division by a number that is known before the kernel starts (Granlund, Montgomery 1994, "Division
// by invariant integers using multiplication"): exact for values below 2^31.
struct Divisor {
  unsigned multiplier;
  unsigned shift;

  // 1 ≤ divisor < 2^31.
  static constexpr Divisor of(unsigned divisor) {
    unsigned shift = 0;
    while ((1u << shift) < divisor) ++shift;
    const unsigned long long power = 1ull << (31 + shift);
    return {static_cast<unsigned>((power + divisor - 1) / divisor), shift};
  }
  constexpr unsigned quotient(unsigned value) const {
    const unsigned long long product = 2ull * value * multiplier;
    return static_cast<unsigned>(product >> 32) >> shift;
  }
};

constexpr int round_up(int value, int multiple) { return ceil_divide(value, multiple) * multiple; }

}  // namespace octofold::config
