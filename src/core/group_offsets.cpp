#include "core/group_offsets.h"

#include <limits>

namespace octofold::core {

std::int64_t require_offsets(const Arguments& check, std::string_view argument,
                             const TensorView& offsets, Device device) {
  check.require_vector(argument, offsets);
  check.require_dtype(argument, offsets, {DType::kInt32});
  check.require_same_device(argument, offsets, device);
  if (offsets.shape[0] < 2 || offsets.shape[0] > std::numeric_limits<std::int32_t>::max()) {
    check.fail(argument, "[groups + 1] elements, for at least one group", describe(offsets));
  }
  return offsets.shape[0] - 1;
}

void require_ascending_offsets(const Arguments& check, std::string_view argument,
                               const TensorView& offsets, std::int64_t rows, int unit) {
  const auto* values = static_cast<const std::int32_t*>(offsets.data);
  std::int64_t least = 0, most = 0;  // the first one is 0
  for (std::int64_t i = 0; i < offsets.shape[0]; ++i) {
    if (values[i] < least || values[i] > most || values[i] % unit != 0) {
      check.fail(
          argument,
          core::format("entries that begin at 0, do not decrease and do not exceed {} rows{}", rows,
                       unit == 1 ? "" : core::format(", multiples of {}", unit)),
          core::format("{} at [{}]", values[i], i));
    }
    least = values[i];
    most = rows;
  }
}

void require_counts(const Arguments& check, std::string_view argument, const TensorView& counts,
                    std::int64_t most) {
  const auto* values = static_cast<const std::int32_t*>(counts.data);
  for (std::int64_t i = 0; i < counts.shape[0]; ++i) {
    if (values[i] >= 0 && values[i] <= most) continue;
    check.fail(argument, core::format("entries from 0 to {}", most),
               core::format("{} at [{}]", values[i], i));
  }
}

}  // namespace octofold::core
