// Attention's checks of keys and values, and of what says which of them belong to a sequence.
#pragma once

#include <cstdint>

#include "octofold/attention.h"

#include "core/check.h"
#include "ops/inputs.h"

namespace octofold::ops {

/// Numbers of a query and key, and of a value, at most.
inline constexpr std::int64_t kMostOfHead = 576, kMostOfValue = 512;

/// The sizes and device that queries prescribe for keys.
struct AttentionQueries {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t head_size;
  Device device;
};

/// Requires of a tensor of any rank a contiguous last dimension, and data where there are elements.
void require_runs(const core::Arguments& check, std::string_view argument,
                  const TensorView& tensor);

/// The size of a head: a multiple of 8 up to `most`.
void require_size_of_head(const core::Arguments& check, std::string_view argument,
                          std::string_view name, std::int64_t size, std::int64_t most);

/// Checks k, v, key_offsets, key_counts and page_table, and adds them to what is read. Returns the
/// size of values.
std::int64_t check_attention_operands(const core::Arguments& check,
                                      const AttentionArguments& arguments,
                                      const AttentionQueries& queries, Inputs& inputs);

}  // namespace octofold::ops
