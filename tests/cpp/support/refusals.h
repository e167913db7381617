// Calls that are refused, as a table: each row spoils what is valid in one place.
#pragma once

#include "support/test.h"

namespace octofold::test {

/// What spoils it, and what is said of it then, or a part of that.
template <typename... Given>
struct Refusal {
  std::function<void(Given&...)> spoil;
  std::string says;
};
template <typename... Given>
using Refusals = std::vector<Refusal<Given...>>;

/// What expects of error(spoil), the text of a call whose arguments spoil() has spoiled, that each
/// row of a table gives it, and that there is none without.
template <typename... Given>
auto refusing(auto error) {
  return [error](const Refusals<Given...>& refusals) {
    EXPECT_THAT(error([](Given&...) {}), testing::AnyOf("", "no error"));
    for (const auto& [spoil, says] : refusals) {
      EXPECT_THAT(error(spoil), HasSubstr(says));
    }
  };
}

}  // namespace octofold::test
