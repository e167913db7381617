// Random numbers of a test: others in each run, and the same again where a seed is given.
#pragma once

#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>

namespace octofold::test {

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

}  // namespace octofold::test
