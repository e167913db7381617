// Routing on a GPU.
#pragma once

#include "octofold/routing.h"

#include "cuda/device.h"

namespace octofold::cuda {

/// octofold's functions of these names on checked matrices that lie on `device`.
void top_k(Device& device, const TopKArguments& arguments, const TopKOptions& options,
           Stream stream);
void top_k_gradient(Device& device, const TopKGradientArguments& arguments,
                    const TopKOptions& options, Stream stream);
void sort_by_expert(Device& device, const TensorView& ids, std::int64_t experts,
                    const SortedSlots& out, Stream stream);
void combine(Device& device, const CombineArguments& arguments, Stream stream);
void combine_gradient(Device& device, const CombineGradientArguments& arguments, Stream stream);
void activation_dots(Device& device, const ActivationDotsArguments& arguments, Stream stream);

}  // namespace octofold::cuda
