#include "model/kv_scales.h"

namespace octofold::model {
namespace {

struct KvScale {
  std::string_view attention;  ///< with the dot behind it
  char letter;                 ///< k or v
};

std::optional<KvScale> parsed(std::string_view tensor) {
  constexpr std::string_view kEnding = "k_scale";
  if (tensor.size() < kEnding.size()) return std::nullopt;
  const std::string_view ending = tensor.substr(tensor.size() - kEnding.size());
  if (ending != kEnding && ending != "v_scale") return std::nullopt;
  const char letter = ending.front();
  std::string_view attention = tensor.substr(0, tensor.size() - kEnding.size());
  if (!attention.ends_with('.')) return std::nullopt;
  const std::string projection = std::string(1, letter) + "_proj.";
  if (attention.ends_with(projection)) attention.remove_suffix(projection.size());
  return KvScale{attention, letter};
}

}  // namespace

bool is_kv_scale(std::string_view tensor) { return parsed(tensor).has_value(); }

std::optional<std::string> kv_scale_in(const Family& family, std::string_view tensor) {
  const auto scale = parsed(tensor);
  if (!scale || family.kv_scales == KvScales::kNone) return std::nullopt;
  std::string name(scale->attention);
  if (family.kv_scales == KvScales::kOfProjections) name.append({scale->letter}).append("_proj.");
  return name.append({scale->letter}).append("_scale");
}

}  // namespace octofold::model
