#pragma once

#include <functional>
#include <map>
#include <string_view>

#include "octofold/checkpoint.h"

namespace octofold::model {

using TensorsByName = std::map<std::string_view, const CheckpointTensor*>;

/// A tensor beside codes [..., N, K] that looks like their scales, whatever it is called; nullptr
/// if there is none. Beside them are the other tensors of their module (M.* of M.weight), those
/// that go on from its name (M_*) and from that of the codes (M.weight.*).
///
/// It looks so by its name, if that speaks of a scale or a largest magnitude and the shape is one
/// of scales (a number; the codes' dimensions, some of them left out, in blocks of a power of two);
/// or by its shape alone, if that is [..., N/128, K/128] and more than one number. What is in FP8
/// itself does not, nor what is known to be something else.
const CheckpointTensor* scales_beside(const CheckpointTensor& codes, const TensorsByName& tensors,
                                      const std::function<bool(const CheckpointTensor&)>& known);

}  // namespace octofold::model
