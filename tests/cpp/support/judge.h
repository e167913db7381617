// How products are judged (docs/numerics.md): by the norm of all errors, and element by element, as
// a norm does not see a few elements that are wrong.
#pragma once

#include "octofold/types.h"

#include "support/test.h"

namespace octofold::test {

/// A floating-point format that results are rounded to.
struct Format {
  int mantissa_bits;      // stored ones
  int smallest_exponent;  // of normal numbers
};

inline Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {10, -14};
    case DType::kBFloat16: return {7, -126};
    default: return {23, -126};
  }
}

/// Half the distance of a value from its neighbours.
inline double half_ulp(double value, DType dtype) {
  const auto [mantissa_bits, smallest_exponent] = format_of(dtype);
  const int exponent = value == 0 ? smallest_exponent : std::ilogb(value);
  return std::ldexp(1.0, std::max(exponent, smallest_exponent) - mantissa_bits - 1);
}

/// Takes the elements of a product one by one.
class Judge {
 public:
  explicit Judge(DType dtype) : dtype_(dtype) {}

  /// `terms`: the sum of the magnitudes that the element sums.
  void see(double actual, double expected, double terms) {
    ++count_;
    const double error = std::abs(actual - expected);
    const double excess = error / (half_ulp(actual, dtype_) + kAccumulation * terms);
    if (!(excess <= worst_excess_)) {  // NaN too
      worst_excess_ = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
      worst_ = "element " + std::to_string(count_ - 1) + ": " + std::to_string(actual) +
               ", expected " + std::to_string(expected);
    }
    errors_ += error * error;
    values_ += expected * expected;
    terms_ += terms * terms;
  }

  /// Returns what is wrong; empty if nothing is.
  std::string verdict() const {
    if (worst_excess_ > 1) {
      return worst_ + ", " + std::to_string(worst_excess_) + " times the limit";
    }
    const double error = std::sqrt(errors_);
    if (error <= allowed_norm()) return "";
    return "norm of the errors " + std::to_string(error) + ", allowed " +
           std::to_string(allowed_norm());
  }

 private:
  static constexpr double kAccumulation = 3e-4;
  static constexpr std::int64_t kFew = 4096;

  // Many roundings average; a few alone may each be half an ulp off, and one whose terms cancel may
  // make up the norm. Where results are subnormal their ulp is that of the smallest normal number.
  double allowed_norm() const {
    const bool few = count_ < kFew;
    double limit = kAccumulation;
    if (dtype_ == DType::kBFloat16) limit = few ? 0x1p-8 + kAccumulation : 2.5e-3;
    if (dtype_ == DType::kFloat16) limit = few ? 0x1p-11 + kAccumulation : 4e-4;
    return limit * std::sqrt(values_) + (few ? kAccumulation * std::sqrt(terms_) : 0) +
           half_ulp(0, dtype_) * std::sqrt(static_cast<double>(count_));
  }

  DType dtype_;
  std::int64_t count_ = 0;
  double errors_ = 0, values_ = 0, terms_ = 0;  // squares
  double worst_excess_ = 0;
  std::string worst_;
};

}  // namespace octofold::test
