#include "support/exact_dot.h"

#include <cstddef>

namespace octofold::test {

ExactSum exact_dot(std::span<const double> x, std::span<const double> y) {
  constexpr std::size_t kLanes = 8;  // sums of their own, for the processor to add at one time
  ExactSum lanes[kLanes];
  const std::size_t whole = x.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j].add(x[i + j] * y[i + j]);
  }
  for (std::size_t i = whole; i < x.size(); ++i) lanes[0].add(x[i] * y[i]);
  ExactSum sum;
  for (const ExactSum& lane : lanes) {
    sum.value += lane.value;
    sum.terms += lane.terms;
  }
  return sum;
}

}  // namespace octofold::test
