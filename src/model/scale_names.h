// Scales by their names and shapes: those beside codes, and those of key-value caches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octofold/checkpoint.h"

#include "model/families/family.h"

namespace octofold::model {

/// Rows and columns of a matrix, or of each of a stack; and how many there are.
struct MatrixSizes {
  std::int64_t matrices;
  std::int64_t rows;
  std::int64_t cols;

  explicit MatrixSizes(std::span<const std::int64_t> shape)
      : matrices(shape.size() == 3 ? shape[0] : 1),
        rows(shape[shape.size() - 2]),
        cols(shape[shape.size() - 1]) {}
};

bool is_fp8(const CheckpointTensor& tensor);
/// True if it has a type that scales have.
bool is_scale(const CheckpointTensor& tensor);

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

/// True if a tensor is the scale of an attention's keys or values, in any family's spelling:
/// "layers.0.self_attn.k_scale", "layers.0.self_attn.k_proj.k_scale" or, of older ones,
/// "layers.0.self_attn.k_proj.output_scale".
bool is_kv_scale(std::string_view tensor);

/// True if a tensor is a number of servers' that no family of Octofold's has a place for: a scale
/// of queries, of outputs, of keys and values together, a bound of inputs, a zero point.
bool is_other_calibration(const CheckpointTensor& tensor);
bool is_zero_point(std::string_view tensor);

/// The name that a family has for such a scale; nothing where it has no place for it.
std::optional<std::string> kv_scale_in(const Family& family, std::string_view tensor);

}  // namespace octofold::model
