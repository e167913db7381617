// Calls that are refused, as a table: each row spoils what is valid in one place.
#pragma once

#include "support/test.h"

namespace octofold::test {

/// A change that spoils the arguments, and what is said of them then, or a part of that.
template <typename... Given>
struct Refusal {
  std::function<void(Given&...)> spoil;
  std::string says;
};
template <typename... Given>
using Refusals = std::vector<Refusal<Given...>>;

/// Returns a check of a table. error(spoil) is the text of a call whose arguments spoil() has
/// spoiled: each row of the table has to give its text, and without a change there is none.
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
