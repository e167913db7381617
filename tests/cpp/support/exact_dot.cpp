#include "support/exact_dot.h"

#include <cstddef>

namespace octofold::test {

ExactSum exact_dot(std::span<const double> x, std::span<const double> y) {
  ExactSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) sum.add(x[i] * y[i]);
  return sum;
}

}  // namespace octofold::test
