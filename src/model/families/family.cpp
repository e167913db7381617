#include "model/families/family.h"

#include <algorithm>
#include <array>

#include "octofold/scale_layout.h"

#include "core/check.h"
#include "model/json_text.h"

namespace octofold::model {
namespace {

constexpr std::array<const Family*, 6> kFamilies = {
    &kDeepSeekV3, &kFineGrainedFp8, &kCompressedTensors, &kModelOpt, &kTorchao, &kComfyUi};

/// Splits a name behind its last dot: what ends with the dot, and what follows.
std::pair<std::string_view, std::string_view> split(std::string_view name) {
  const std::size_t end = name.rfind('.') + 1;  // 0 without a dot
  return {name.substr(0, end), name.substr(end)};
}

}  // namespace

std::string spelled(std::string_view pattern, std::string_view name) {
  const auto [module, parameter] = split(name);
  std::string text(module);
  for (const char c : pattern) {
    if (c == '*') {
      text += parameter;
    } else if (c != '?') {
      text += c;
    } else if (parameter != "weight") {
      text.append(parameter).append("_");
    }
  }
  return text;
}

std::optional<std::string> weight_spelled(std::string_view pattern, std::string_view tensor) {
  const auto [module, last] = split(tensor);
  const std::size_t star = pattern.find('*');
  const std::string_view before = pattern.substr(0, star);
  const std::string_view after = pattern.substr(star + 1);
  if (last.size() <= before.size() + after.size() || !last.starts_with(before) ||
      !last.ends_with(after)) {
    return std::nullopt;
  }
  const std::size_t length = last.size() - before.size() - after.size();
  return std::string(module).append(last.substr(before.size(), length));
}

std::span<const Granularity> Family::granularities_of(std::span<const std::int64_t> shape) const {
  return shape.size() == 3 ? of_stacks : granularities;
}

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(CheckpointFamily id) {
  for (const Family* family : kFamilies) {
    if (family->id == id) return *family;
  }
  core::fail(ErrorCode::kInvalidArgument, "expected a checkpoint family, got the number {}",
             static_cast<int>(id));
}

std::vector<std::int64_t> one_scale_of(const Family& family, std::span<const std::int64_t> shape) {
  const bool is_one =
      std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size == 1; });
  if (!is_one) return {shape.begin(), shape.end()};
  return family.scale_shape(Granularity::kTensor, 1, 1);
}

void fail_unsupported(const Family& family, std::string_view expected, std::string_view got) {
  core::fail(ErrorCode::kUnsupported, "checkpoint of the family {}: expected {}, got {}",
             family.name, expected, got);
}

void require_known(const Family& family, const nlohmann::json& object, const nlohmann::json& known,
                   const std::string& path) {
  for (const auto& [name, value] : object.items()) {
    if (value.empty()) continue;
    const std::string key = path + name;
    const auto found = known.contains(name) ? known.find(name) : known.find("*");
    const std::string got = quote(value.is_string() ? value.get<std::string>() : value.dump());
    if (found == known.end()) {
      if (value == false || value == 0 || value == "") continue;
      fail_unsupported(family, "no keys that may change numbers and are not known",
                       core::format("{} = {}", key, got));
    }
    if (found->is_object() && value.is_object()) {
      require_known(family, value, *found, key + ".");
    } else if (!found->is_null() &&
               std::find(found->begin(), found->end(), value) == found->end()) {
      fail_unsupported(
          family,
          core::format("{} to be {}", key, found->is_object() ? "an object" : found->dump()), got);
    }
  }
}

bool any_sizes(Granularity, std::int64_t, std::int64_t) { return true; }

std::set<WeightFormat> fp8_alone(const nlohmann::json&) { return {WeightFormat::kFp8}; }

std::vector<SideFile> no_side_files(const Description&) { return {}; }

std::map<std::string, std::string> no_metadata(const Description&) { return {}; }

std::vector<std::int64_t> plain_scale_shape(Granularity granularity, std::int64_t rows,
                                            std::int64_t cols) {
  if (granularity == Granularity::kTensor) return {};
  return scale_shape(granularity, rows, cols);
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const nlohmann::json value = object.value(key, nlohmann::json());
  return value.is_string() ? value.get<std::string>() : "";
}

bool all_static(const Description& checkpoint) {
  return !checkpoint.weights.empty() &&
         std::all_of(checkpoint.weights.begin(), checkpoint.weights.end(),
                     [](const Description::Weight& weight) { return weight.static_input; });
}

bool names_fp8(const Description& checkpoint, std::string_view ending) {
  for (const Description::Weight& weight : checkpoint.weights) {
    for (const std::string& module : weight.modules) {
      if (module.ends_with(ending)) return true;
    }
  }
  return false;
}

std::string ending_of(const std::string& module) {
  const std::size_t first = module.find('.');
  const bool has_three_parts =
      first != std::string::npos && module.find('.', first + 1) != std::string::npos;
  return has_three_parts ? module.substr(first + 1) : module;
}

std::string module_of(std::string_view weight) {
  constexpr std::string_view kSuffix = ".weight";
  return std::string(weight.ends_with(kSuffix) ? weight.substr(0, weight.size() - kSuffix.size())
                                               : weight);
}

}  // namespace octofold::model

namespace octofold {

std::string_view name(CheckpointFamily family) { return model::family_of(family).name; }

CheckpointFamily parse_checkpoint_family(std::string_view text) {
  std::string names;
  for (const model::Family* family : model::families()) {
    if (family->name == text) return family->id;
    names.append(names.empty() ? "" : ", ").append(family->name);
  }
  core::fail(ErrorCode::kInvalidArgument, "expected a checkpoint family, one of {}; got '{}'",
             names, text);
}

const std::vector<CheckpointFamily>& checkpoint_families() {
  static const std::vector<CheckpointFamily> all = [] {
    std::vector<CheckpointFamily> ids;
    for (const model::Family* family : model::families()) ids.push_back(family->id);
    return ids;
  }();
  return all;
}

}  // namespace octofold
