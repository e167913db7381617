#include "model/kv_scales.h"

#include <algorithm>
#include <set>

namespace octofold::model {
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
