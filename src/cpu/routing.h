// Routing on the CPU, on checked matrices. Numbers in index tensors are checked here: what is out
// of range is an Error(kInvalidArgument) that names the argument and its first bad entry.
#pragma once

#include "octofold/routing.h"

namespace octofold::cpu {

/// octofold's functions of these names; the workspace is not looked at.
void top_k(const TopKArguments& arguments, const TopKOptions& options);
void top_k_gradient(const TopKGradientArguments& arguments, const TopKOptions& options);
void sort_by_expert(const TensorView& ids, std::int64_t experts, const SortedSlots& out);
void combine(const CombineArguments& arguments);
void combine_gradient(const CombineGradientArguments& arguments);
void activation_dots(const ActivationDotsArguments& arguments);

}  // namespace octofold::cpu
