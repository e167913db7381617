#include "cpu/groups.h"

#include "core/check.h"

namespace octofold::cpu {

void require_offsets(std::string_view operation, const std::int32_t* offsets, std::int64_t groups,
                     std::int64_t most) {
  const core::Arguments check(operation);
  if (offsets[0] != 0) {
    check.fail("offsets", "a first entry of 0", core::format("{}", offsets[0]));
  }
  for (std::int64_t i = 1; i <= groups; ++i) {
    if (offsets[i] >= offsets[i - 1] && offsets[i] <= most) continue;
    check.fail("offsets",
               core::format("entry {} from {}, the one before, to {}", i, offsets[i - 1], most),
               core::format("{}", offsets[i]));
  }
}

void require_counts(std::string_view operation, const std::int32_t* counts, std::int64_t groups,
                    std::int64_t most) {
  for (std::int64_t i = 0; i < groups; ++i) {
    if (counts[i] >= 0 && counts[i] <= most) continue;
    core::Arguments(operation).fail("counts", core::format("entry {} from 0 to {}", i, most),
                                    core::format("{}", counts[i]));
  }
}

}  // namespace octofold::cpu
