// Numbers of groups in host memory, which can be checked.
#pragma once

#include <cstdint>
#include <string_view>

namespace octofold::cpu {

/// That argument 'offsets' [groups + 1] begins at 0, never decreases and ends at `most` or before.
/// Throws Error(kInvalidArgument) that names the first entry that does not.
void require_offsets(std::string_view operation, const std::int32_t* offsets, std::int64_t groups,
                     std::int64_t most);

/// That argument 'counts' [groups] is from 0 to `most`.
void require_counts(std::string_view operation, const std::int32_t* counts, std::int64_t groups,
                    std::int64_t most);

}  // namespace octofold::cpu
