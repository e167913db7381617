#include "model/small_names.h"

#include <algorithm>

#include "core/check.h"
#include "model/json_text.h"
#include "model/small_weights.h"

namespace octofold::model {

std::string shape_text(std::span<const std::int64_t> shape) { return nlohmann::json(shape).dump(); }

void fail_tensor(const CheckpointTensor& tensor, std::string_view expected, std::string_view got) {
  core::fail(ErrorCode::kBadFormat, "{}: tensor {}: expected {}, got {}", tensor.file.string(),
             quote(tensor.name), expected, got);
}

CheckpointTensor values_of(const CheckpointWeight& weight) {
  CheckpointTensor values = weight.codes;
  values.shape = weight.shape;
  return values;
}

namespace {

/// The shape of the values that such codes stand for.
std::vector<std::int64_t> shape_of(const SmallSpelling& small, const CheckpointTensor& codes) {
  const WeightFormatRow& format = row_of(small.format);
  const std::int64_t values_per_byte = 8 / format.bits;
  std::vector<std::int64_t> shape = codes.shape;
  if (small.in_blocks) {
    const std::int64_t block = format.values_per_scale / values_per_byte;
    if (shape.size() < 3 || shape.back() != block) {
      fail_tensor(codes, core::format("codes [..., N, K/{}, {}]", format.values_per_scale, block),
                  shape_text(codes.shape));
    }
    shape.pop_back();
    shape.back() *= block;
  }
  const bool is_empty = std::ranges::count(shape, 0) != 0;
  if ((shape.size() != 2 && shape.size() != 3) || is_empty ||
      shape.back() * values_per_byte % format.values_per_scale != 0) {
    fail_tensor(codes,
                core::format("a matrix, or a stack, of rows of blocks of {} values in {}",
                             format.values_per_scale, format.name),
                core::format("{} bytes", shape_text(codes.shape)));
  }
  shape.back() *= values_per_byte;
  return shape;
}

std::optional<CheckpointTensor> find(const TensorsByName& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? std::nullopt : std::optional(*found->second);
}

CheckpointTensor second_scale_of(const SmallSpelling& small, const CheckpointWeight& weight,
                                 const TensorsByName& tensors) {
  const std::string name = spelled(small.second_scale, weight.name);
  const auto found = find(tensors, name);
  if (!found) fail_tensor(weight.codes, core::format("a second scale in {}", quote(name)), "none");
  std::int64_t count = 1;
  for (const std::int64_t size : found->shape) count *= size;
  const std::int64_t matrices = MatrixSizes(weight.shape).matrices;
  if (found->dtype != "F32" || (count != 1 && count != matrices)) {
    fail_tensor(*found, core::format("F32 and one number or {}", matrices),
                core::format("{} {}", found->dtype, shape_text(found->shape)));
  }
  return *found;
}

}  // namespace

std::optional<CheckpointWeight> small_weight(const Family& family,
                                             const std::set<WeightFormat>& said,
                                             const CheckpointTensor& codes,
                                             const TensorsByName& tensors) {
  for (const SmallSpelling& small : family.small) {
    const WeightFormatRow& format = row_of(small.format);
    const auto name = weight_spelled(small.codes, codes.name);
    if (!name || !takes_codes(format, codes.dtype)) continue;
    const bool is_said = said.empty() || said.contains(small.format);
    const auto scale = find(tensors, spelled(small.scale, *name));
    if (!scale) {
      // Bytes may be anything, but not under the name of a weight's.
      const bool is_named = small.codes != "*" || module_of(*name) != *name;
      if (format.bits == 8 || !is_named || !is_said) continue;
      fail_tensor(codes, core::format("scales in {}", quote(spelled(small.scale, *name))), "none");
    }
    if (!takes_scales(format, scale->dtype)) continue;
    CheckpointWeight weight{.name = *name,
                            .shape = shape_of(small, codes),
                            .codes = codes,
                            .scale = scale,
                            .format = small.format,
                            .second_scale_divides = small.second_scale_divides};
    std::vector<std::int64_t> expected = weight.shape;
    expected.back() /= format.values_per_scale;
    const bool fits = scale->shape == expected;
    // Scales in E8M0 are also those of FP8.
    if (format.bits == 8 && scale->dtype != "U8" && !(fits && is_said)) continue;
    if (!fits) {
      fail_tensor(
          *scale,
          core::format("scales {} of values {}", shape_text(expected), shape_text(weight.shape)),
          shape_text(scale->shape));
    }
    if (!small.input_scale.empty()) {
      weight.input_scale = find(tensors, spelled(small.input_scale, *name));
    }
    if (format.has_second_scale) weight.second_scale = second_scale_of(small, weight, tensors);
    return weight;
  }
  return std::nullopt;
}

}  // namespace octofold::model
