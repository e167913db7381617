// Every granularity that there is.
#pragma once

#include "octofold/vocabulary.h"

#include "support/test.h"

namespace octofold::test {

inline constexpr auto kGranularities = [] {
  std::array<Granularity, std::size(kGranularityTable)> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kGranularityTable[i].granularity;
  return all;
}();

}  // namespace octofold::test
