#include "model/folder_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/log.h"
#include "model/checkpoint_source.h"
#include "model/json_text.h"
#include "model/staged_output.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kIndex = ".safetensors.index.json";

bool ends_with_any(const std::string& name, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// The same weights once more, as other frameworks have them.
bool is_in_other_format(const std::string& name) {
  constexpr std::array<std::string_view, 9> kEndings = {
      ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt"};
  return ends_with_any(name, kEndings);
}

bool is_cache(const std::string& folder) {
  constexpr std::array<std::string_view, 5> kNames = {".git", ".cache", ".huggingface", ".locks",
                                                      "__pycache__"};
  return std::find(kNames.begin(), kNames.end(), folder) != kNames.end();
}

/// Folders of sentence-transformers' modules, whose weights nobody has but they.
std::set<std::string> modules_in(const fs::path& folder) {
  constexpr std::string_view kModules = "modules.json";
  std::set<std::string> paths;
  std::error_code ignored;
  if (!fs::exists(folder / kModules, ignored)) return paths;
  const std::string text = core::File::open_for_reading(folder / kModules).read_text();
  const nlohmann::json modules = nlohmann::json::parse(text, nullptr, false);
  if (!modules.is_array()) return paths;
  for (const nlohmann::json& module : modules) {
    if (!module.is_object()) continue;
    const auto path = module.find("path");
    if (path != module.end() && path->is_string()) paths.insert(path->get<std::string>());
  }
  paths.erase("");
  return paths;
}

class Walk {
 public:
  Walk(const fs::path& folder, const fs::path& target, const std::set<std::string>& weights)
      : folder_(folder), target_(target), weights_(weights), modules_(modules_in(folder)) {}

  std::vector<fs::path> run() {
    visit("");
    if (!left_.empty()) {
      core::log(LogLevel::kWarning, "{} other files of weights are left behind: {}", left_.size(),
                quoted(left_));
    }
    return std::move(copied_);
  }

 private:
  void visit(const fs::path& below) {
    std::vector<fs::directory_entry> entries;
    std::error_code error;
    for (fs::directory_iterator entry(folder_ / below, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(*entry);
    }
    if (error) core::fail_io("open", folder_ / below, error.value());
    std::sort(entries.begin(), entries.end());
    for (const fs::directory_entry& entry : entries) {
      const fs::path path = below / entry.path().filename();
      if (entry.is_directory(error)) {
        if (!entry.is_symlink(error) && comes_along(entry)) visit(path);
      } else if (entry.is_regular_file(error)) {
        take(entry, path);
      }
    }
  }

  bool comes_along(const fs::directory_entry& folder) const {
    const std::string name = folder.path().filename();
    std::error_code ignored;
    return !is_cache(name) && !is_staged_name(name) &&
           !fs::equivalent(folder.path(), target_, ignored);
  }

  void take(const fs::directory_entry& entry, const fs::path& path) {
    const std::string name = path.filename();
    if (is_staged_name(name)) return;
    const bool top = !path.has_parent_path();
    if (top) {
      if (name == kConfigName || name == "hf_quant_config.json" || weights_.contains(name)) return;
      if (name.ends_with(kIndex)) return;
    }
    const bool is_own = !top && modules_.contains(path.begin()->string());
    std::error_code error;
    // An adapter is for the model, in FP8 or not, and its config asks for it.
    const bool is_adapter = (name == "adapter_model.safetensors" || name == "adapter_model.bin") &&
                            fs::exists(entry.path().parent_path() / "adapter_config.json", error);
    // Records of layers by octofold.models.save() are not true of other weights.
    if ((top && !is_adapter && (name.ends_with(kSafetensors) || name == "octofold.json")) ||
        (!is_own && !is_adapter && is_in_other_format(name))) {
      left_.push_back(path.string());
      return;
    }
    fs::create_directories((target_ / path).parent_path(), error);
    if (!error) fs::copy_file(entry.path(), target_ / path, error);
    if (error) core::fail_io("copy", entry.path(), error.value());
    copied_.push_back(path);
  }

  fs::path folder_;
  fs::path target_;
  const std::set<std::string>& weights_;
  std::set<std::string> modules_;
  std::vector<fs::path> copied_;
  std::vector<std::string> left_;
};

/// Folders in a pipeline that hold weights.
std::vector<std::string> models_in(const fs::path& pipeline) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(pipeline, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->is_directory(error)) continue;
    for (fs::directory_iterator file(entry->path(), error); !error && file != end;
         file.increment(error)) {
      if (!file->path().filename().string().ends_with(kSafetensors)) continue;
      names.push_back(entry->path().filename());
      break;
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void require_one_model(std::string_view operation, const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "model_index.json", ignored)) return;
  const std::vector<std::string> models = models_in(folder);
  core::fail_argument(
      operation, "input",
      core::format("the folder of one model. Take the models of a pipeline one by one, each into a "
                   "folder of its own ({}), with the family torchao for those of Diffusers, and "
                   "put the results in their places in a copy of the pipeline",
                   models.empty() ? "transformer, text_encoder" : quoted(models)),
      core::format("'{}', a pipeline of Diffusers (it has a model_index.json)", folder.string()));
}

std::vector<fs::path> copy_along(const fs::path& folder, const fs::path& target,
                                 const std::set<std::string>& weights) {
  return Walk(folder, target, weights).run();
}

}  // namespace octofold::model
