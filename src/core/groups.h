// The products of groups as all rooms below the checks see them: one product of matrices, and where
// its groups lie in them.
#pragma once

#include <cstdint>

#include "octofold/gemm.h"

namespace octofold::core {

struct Groups {
  std::int64_t count = 0;
  const std::int32_t* numbers = nullptr;  ///< offsets [count + 1] or counts [count], on the device
  std::int64_t scale_stride = 0;          ///< elements from b's scales of a group to the next one's
  std::int64_t expected_rows = 0;         ///< of a group; where K is in groups: columns of one
  std::int64_t most_rows = 0;             ///< where offsets may end, or what counts may be
};

/// Of `product` the groups' a, out and c lie one below another (K in groups: out and c), so do
/// their b, [count · N, K], and bias, [count · N]. b.scale is that of the first group.
struct GroupedProduct {
  GemmArguments product;
  Groups groups;
};

}  // namespace octofold::core
