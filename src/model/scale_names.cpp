#include "model/scale_names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "octofold/scale_layout.h"

namespace octofold::model {
namespace {

using Shape = std::span<const std::int64_t>;

/// True if `count` blocks of some power of two make up `size`.
bool is_in_blocks(std::int64_t size, std::int64_t count) {
  while (size > count && size > 1) size -= size / 2;
  return size == count;
}

/// True if there are codes for each of these numbers, in order.
bool may_scale(Shape codes, Shape scale) {
  std::size_t next = 0;
  for (const std::int64_t count : scale) {
    if (count == 1) continue;
    while (next < codes.size() && !is_in_blocks(codes[next], count)) ++next;
    if (next++ == codes.size()) return false;
  }
  return true;
}

bool has_shape_of_blocks(Shape codes, Shape scale) {
  if (scale.size() != codes.size()) return false;
  const MatrixSizes sizes(codes);
  const auto blocks = scale_shape(Granularity::kBlock128x128, sizes.rows, sizes.cols);
  return std::equal(codes.begin(), codes.end() - 2, scale.begin()) &&
         std::equal(blocks.begin(), blocks.end(), scale.end() - 2) && blocks[0] * blocks[1] > 1;
}

/// Not of those that an input is divided by, nor of tables that shift and scale (of modulations).
bool speaks_of_scales(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto has = [&](std::string_view word) { return lower.find(word) != std::string::npos; };
  return (has("scal") || has("amax") || has("absmax")) && !has("input") && !has("shift");
}

/// The name, beside the codes, of a tensor whose name begins as the codes' module. Empty: it is not
/// beside the codes.
std::string_view name_beside(std::string_view name, std::string_view module,
                             std::string_view parameter) {
  name.remove_prefix(module.size());
  if (!module.empty()) {
    if (name.empty() || (name.front() != '.' && name.front() != '_')) return {};
    name.remove_prefix(1);
  }
  if (name.size() > parameter.size() && name.starts_with(parameter) &&
      name[parameter.size()] == '.') {
    name.remove_prefix(parameter.size() + 1);
  }
  return name.find('.') == std::string_view::npos ? name : std::string_view();
}

}  // namespace

bool is_fp8(const CheckpointTensor& tensor) {
  return tensor.dtype == "F8_E4M3" || tensor.dtype == "F8_E5M2";
}

bool is_scale(const CheckpointTensor& tensor) {
  return tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16" ||
         tensor.dtype == "F8_E8M0";
}

const CheckpointTensor* scales_beside(const CheckpointTensor& codes, const TensorsByName& tensors,
                                      const std::function<bool(const CheckpointTensor&)>& known) {
  if (codes.shape.size() < 2) return nullptr;
  const std::string_view whole = codes.name;
  const std::size_t dot = whole.rfind('.');
  const std::string_view module = dot == std::string_view::npos ? "" : whole.substr(0, dot);
  const std::string_view parameter = whole.substr(dot + 1);
  for (auto at = tensors.lower_bound(module); at != tensors.end() && at->first.starts_with(module);
       ++at) {
    const std::string_view name = name_beside(at->first, module, parameter);
    if (name.empty() || is_fp8(*at->second) || known(*at->second)) continue;
    const Shape shape = at->second->shape;
    if ((speaks_of_scales(name) && may_scale(codes.shape, shape)) ||
        has_shape_of_blocks(codes.shape, shape)) {
      return at->second;
    }
  }
  return nullptr;
}

namespace {

struct KvScale {
  std::string_view attention;  ///< with the dot behind it
  char letter;                 ///< k or v
};

std::optional<KvScale> parsed(std::string_view tensor) {
  const std::size_t dot = tensor.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  std::string_view attention = tensor.substr(0, dot + 1);
  const std::string_view last = tensor.substr(dot + 1);
  for (const char letter : {'k', 'v'}) {
    const std::string own = std::string(1, letter) + "_scale";
    const std::string projection = std::string(1, letter) + "_proj.";
    const bool is_projection = attention.ends_with(projection);
    if (last != own && !(is_projection && last == "output_scale")) continue;
    if (is_projection) attention.remove_suffix(projection.size());
    if (attention.ends_with(".qkv_proj.")) attention.remove_suffix(9);
    return KvScale{attention, letter};
  }
  return std::nullopt;
}

}  // namespace

bool is_kv_scale(std::string_view tensor) { return parsed(tensor).has_value(); }

bool is_zero_point(std::string_view tensor) { return tensor.ends_with("zero_point"); }

bool is_other_calibration(const CheckpointTensor& tensor) {
  static const std::set<std::string_view> names = {"q_scale",
                                                   "p_scale",
                                                   "prob_scale",
                                                   "kv_scale",
                                                   "output_scale",
                                                   "input_scale_ub",
                                                   "kv_cache_scaling_factor"};
  const std::string_view name = tensor.name;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  const bool is_one = std::all_of(tensor.shape.begin(), tensor.shape.end(),
                                  [](std::int64_t size) { return size == 1; });
  return is_zero_point(name) || (is_one && names.contains(last) && !is_kv_scale(name));
}

std::optional<std::string> kv_scale_in(const Family& family, std::string_view tensor) {
  const auto scale = parsed(tensor);
  if (!scale || family.kv_scales == KvScales::kNone) return std::nullopt;
  std::string name(scale->attention);
  if (family.kv_scales == KvScales::kOfProjections) name.append({scale->letter}).append("_proj.");
  return name.append({scale->letter}).append("_scale");
}

}  // namespace octofold::model
