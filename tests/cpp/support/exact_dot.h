// The reference of products, which tests spend most of their time in.
#pragma once

#include <cmath>
#include <span>

namespace octofold::test {

/// What an element of a product is in FP64, and the sum of the magnitudes that it sums.
struct ExactSum {
  double value = 0;
  double terms = 0;

  void add(double term) {
    value += term;
    terms += std::abs(term);
  }
};

/// The sum of x[i] · y[i]; as many of one as of the other.
ExactSum exact_dot(std::span<const double> x, std::span<const double> y);

}  // namespace octofold::test
