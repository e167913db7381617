// OCTOFOLD_CHECK_GROUPS=1: offsets, counts and ids are looked through on the GPU before they are
// used, and the next call says what was wrong.
#pragma once

#include <cstdint>
#include <string_view>

#include "octofold/stream.h"
#include "octofold/tensor.h"

#include "core/product.h"
#include "cuda/device.h"

namespace octofold::cuda {

/// Does what look_through_offsets() does if the option is set; else nothing. `numbers` are `count`
/// offsets, which have to begin at 0, never to decrease, to end at `most` at most, and to be
/// multiples of `unit`.
void check_offsets(Device& device, std::string_view operation, std::string_view argument,
                   const std::int32_t* numbers, std::int64_t count, std::int64_t most, int unit,
                   Stream stream);
/// Throws Error(kInvalidArgument) that names the first bad entry that an earlier check on this
/// device has found, if one has, and else queues a kernel that looks for one here. Does not wait.
void look_through_offsets(Device& device, std::string_view operation, std::string_view argument,
                          const std::int32_t* numbers, std::int64_t count, std::int64_t most,
                          int unit, Stream stream);

/// The offsets or counts of a product, if it has groups.
void check_groups(Device& device, std::string_view operation, const core::Groups& groups,
                  Stream stream);

/// The same of a vector or matrix of counts, ids or positions, which have to be from `low` to
/// `high`.
void check_range(Device& device, std::string_view operation, std::string_view argument,
                 const TensorView& numbers, std::int64_t low, std::int64_t high, Stream stream);
void look_through_range(Device& device, std::string_view operation, std::string_view argument,
                        const TensorView& numbers, std::int64_t low, std::int64_t high,
                        Stream stream);

}  // namespace octofold::cuda
