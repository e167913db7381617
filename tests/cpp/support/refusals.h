// Calls that are refused, as a table: each row spoils what is valid in one place. Targets of casts
// that differ in little.
#pragma once

#include "octofold/cast_targets.h"

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

/// The same of a call with arguments that are `valid`, which each row has a copy of.
template <typename... Given>
auto refused(auto call, const Given&... valid) {
  return refusing<Given...>([=](auto&& spoil) {
    std::tuple<Given...> given{valid...};
    std::apply(spoil, given);
    return error_of([&] { std::apply(call, given); });
  });
}

/// The same targets, cast by the rule, power_of_two and overflow of `format`.
inline CastTargets by(const octofold::Format& format, CastTargets targets) {
  for (auto* target : {&targets.rows, &targets.transposed}) {
    if (!*target) continue;
    octofold::Format& own = (*target)->format;
    own = {own.dtype, own.granularity, format.rule, format.power_of_two, format.overflow};
  }
  return targets;
}

/// The same targets, whose scales are given.
inline CastTargets given(CastTargets targets) {
  for (auto* target : {&targets.rows, &targets.transposed}) {
    if (*target) (*target)->scales = ScaleSource::kGiven;
  }
  return targets;
}

}  // namespace octofold::test
