// The includes of every test: GoogleTest, what most of them use of the standard library, errors and
// random numbers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "octofold/vocabulary.h"

#include "support/error_of.h"

namespace octofold {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Sizes and places are signed; those of the standard library are not.
constexpr std::size_t as_size(auto value) { return static_cast<std::size_t>(value); }

namespace test {

/// Every granularity that there is.
inline constexpr auto kGranularities = [] {
  std::array<Granularity, std::size(kGranularityTable)> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kGranularityTable[i].granularity;
  return all;
}();

/// OCTOFOLD_TEST_SEED, or a number that is drawn once in a run.
inline unsigned random_seed() {
  static const unsigned value = [] {
    const char* given = std::getenv("OCTOFOLD_TEST_SEED");
    return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                            : std::random_device{}();
  }();
  return value;
}

/// Begins with random_seed(), so that a test alone draws what it draws among others. What fails
/// while it lives says how to repeat it.
class Random : public std::mt19937 {
 public:
  Random()
      : std::mt19937(random_seed()),
        trace_(__FILE__, __LINE__,
               "OCTOFOLD_TEST_SEED=" + std::to_string(random_seed()) +
                   " draws the same numbers again") {}
  Random(const Random&) = delete;
  Random& operator=(const Random&) = delete;

 private:
  testing::ScopedTrace trace_;
};

}  // namespace test
}  // namespace octofold
