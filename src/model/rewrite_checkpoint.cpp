// The two operations that write checkpoints: the checks of where to, and the files that a plan
// makes.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "octofold/checkpoint.h"

#include "core/check.h"
#include "core/log.h"
#include "model/checkpoint_source.h"
#include "model/contents.h"
#include "model/output_files.h"
#include "model/rewrite_plan.h"
#include "model/rewriter.h"

namespace octofold::model {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view operation, std::string_view expected, const fs::path& got,
                       std::string_view what = "") {
  core::fail_argument(operation, "output", expected, core::format("'{}'{}", got.string(), what));
}

/// The folder that publishing replaces as a whole.
fs::path new_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) core::fail_io("open", folder, error.value());
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

void check_folder(std::string_view operation, const fs::path& output, const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (!fs::is_directory(folder, error) || !fs::is_empty(folder, error)) {
    if (error) core::fail_io("open", folder, error.value());
    fail(operation, "a path in a folder that does not exist yet or is empty", output);
  }
  if (fs::equivalent(folder, fs::current_path(error), error)) {
    fail(operation, "a path in a folder other than the current one, which would be replaced",
         output);
  }
}

std::string indented(const nlohmann::json& value) { return value.dump(2) + "\n"; }

/// The steps of each file of the input, by its name.
std::vector<std::pair<const Shard*, std::vector<const Step*>>> by_file(
    const CheckpointSource& source, const RewritePlan& plan) {
  std::vector<std::pair<const Shard*, std::vector<const Step*>>> files;
  for (const Shard& shard : source.shards()) {
    std::vector<const Step*> steps;
    for (const Step& step : plan.steps) {
      if (step.values.file.filename() == shard.name) steps.push_back(&step);
    }
    if (!steps.empty()) files.emplace_back(&shard, std::move(steps));
  }
  return files;
}

/// The input's config.json with what the family says of the weights; nothing where it has none.
std::optional<nlohmann::json> config_of(const CheckpointSource& source, const RewritePlan& plan) {
  if (!source.config()) return std::nullopt;
  nlohmann::json config = *source.config();
  config.erase("quantization_config");
  config.erase("compression_config");
  if (const auto said = plan.family->config(describe(plan))) {
    config["quantization_config"] = *said;
  }
  return config;
}

CheckpointReport write_folder(const CheckpointSource& source, const RewritePlan& plan,
                              Rewriter& rewriter, const fs::path& folder,
                              const std::string& index_name) {
  const auto config = config_of(source, plan);  // which may refuse
  StagedFolder staged(folder);
  std::vector<fs::path> files;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& [shard, steps] : by_file(source, plan)) {
    for (const std::string& tensor :
         rewriter.write(steps, shard->metadata, staged.path() / shard->name)) {
      weight_map[tensor] = shard->name;
    }
    files.push_back(folder / shard->name);
  }
  CheckpointReport report = rewriter.finish();
  const auto add = [&](const std::string& name, const nlohmann::json& content) {
    core::write_text_file(staged.path() / name, indented(content));
    files.push_back(folder / name);
  };
  if (config) add(kConfigName, *config);
  for (const SideFile& file : plan.family->side_files(describe(plan))) {
    add(file.name, file.content);
  }
  if (!index_name.empty()) {
    nlohmann::json metadata = source.index_metadata();
    metadata["total_size"] = report.output_bytes;
    add(index_name, {{"metadata", std::move(metadata)}, {"weight_map", std::move(weight_map)}});
  }
  const fs::path input = source.folder().empty() ? fs::path(".") : source.folder();
  std::set<std::string> weights;
  for (const Shard& shard : source.shards()) weights.insert(shard.name);
  for (const fs::path& path : copy_along(input, staged.path(), weights)) {
    files.push_back(folder / path);
  }
  staged.publish();
  report.files = std::move(files);
  return report;
}

CheckpointReport write_file(const CheckpointSource& source, const RewritePlan& plan,
                            Rewriter& rewriter, const fs::path& output) {
  const auto files = by_file(source, plan);
  const std::optional<nlohmann::json> config = config_of(source, plan);
  const fs::path config_path = output.parent_path() / kConfigName;
  std::error_code error;
  const bool is_taken = fs::exists(fs::symlink_status(config_path, error));
  std::optional<StagedFile> staged;
  if (config && !is_taken) {
    staged.emplace(config_path);
    core::write_text(staged->file(), indented(*config));
  }
  rewriter.write(files.front().second, files.front().first->metadata, output);
  CheckpointReport report = rewriter.finish();
  report.files = {output};
  if (staged) {
    try {
      staged->publish();
    } catch (...) {  // both or neither
      fs::remove(output, error);
      throw;
    }
    report.files.push_back(config_path);
  } else if (config) {
    core::log(LogLevel::kWarning,
              "'{}' is left as it is, and does not say that '{}' is FP8: to write both, name a "
              "folder",
              config_path.string(), output.string());
  }
  return report;
}

/// Throws Error(kInvalidArgument) for an output that is of another kind than the input, the input
/// itself, there already, or in a folder that has something in it; for the input where it is a
/// pipeline of Diffusers.
void check_output(std::string_view operation, const fs::path& input, const fs::path& output) {
  const InputKind kind = kind_of(operation, "input", input);
  require_path(operation, "output", output);
  std::error_code ignored;
  if (fs::equivalent(input, output, ignored)) {
    fail(operation, "a path other than the input", output);
  }
  const bool is_file = output.filename().string().ends_with(kFileEnding);
  const bool is_index = output.filename().string().ends_with(kIndexEnding);
  const bool fits = kind == InputKind::kFile    ? is_file
                    : kind == InputKind::kIndex ? is_index
                                                : !is_file && !is_index;
  if (!fits) {
    fail(operation,
         kind == InputKind::kFile    ? "a *.safetensors path, as the input is"
         : kind == InputKind::kIndex ? "a *.safetensors.index.json path, as the input is"
                                     : "a folder, as the input is",
         output);
  }
  if (kind == InputKind::kFolder) {
    require_one_model(operation, input);
    check_folder(operation, output, new_folder(output));
    return;
  }
  if (fs::exists(fs::symlink_status(output, ignored))) {
    fail(operation, "a path that does not exist yet", output, ", which exists");
  }
  if (kind == InputKind::kIndex) {
    check_folder(operation, output, new_folder(fs::absolute(output, ignored).parent_path()));
  }
}

/// Carries out a plan: all of a checkpoint, whole or not at all.
CheckpointReport write_checkpoint(const CheckpointSource& source, const RewritePlan& plan,
                                  const Format& format, const CheckpointProgress& progress,
                                  const fs::path& output) {
  Rewriter rewriter(plan, format, progress, source.bytes());
  switch (source.kind()) {
    case InputKind::kFile: return write_file(source, plan, rewriter, output);
    case InputKind::kIndex:
      return write_folder(source, plan, rewriter, new_folder(fs::absolute(output).parent_path()),
                          output.filename());
    case InputKind::kFolder: break;
  }
  return write_folder(source, plan, rewriter, new_folder(output), source.index_name().value_or(""));
}

bool of_diffusers(const CheckpointSource& source) {
  return source.config() && source.config()->contains("_diffusers_version");
}

/// Throws where config.json names a library that does not know the family: it would refuse the
/// folder, or take codes for weights where the family says nothing in config.json.
void require_owner(std::string_view operation, const CheckpointSource& source,
                   CheckpointFamily family) {
  if (source.kind() == InputKind::kFile || !source.config()) return;
  const bool of_transformers = source.config()->contains("architectures");
  if (of_diffusers(source) && family != CheckpointFamily::kTorchao) {
    core::fail_argument(
        operation, "family",
        "torchao, which Diffusers loads (comfyui takes the model's file instead of its folder)",
        name(family));
  }
  if (of_transformers && family == CheckpointFamily::kComfyUi) {
    core::fail_argument(operation, "family",
                        "one that transformers loads, whose folder this is (comfyui takes the "
                        "model's file instead)",
                        name(family));
  }
}

/// Throws where the checkpoint is what it is to become: names and a method that a family reads and
/// does not write are a reason to convert within it.
void require_another(const CheckpointSource& source, const CheckpointContents& contents,
                     const ConvertCheckpointOptions& options) {
  if (contents.family != options.family || options.granularity) return;
  const Family& family = family_of(options.family);
  for (const CheckpointWeight& weight : contents.weights) {
    const std::string own = spelled(family.spelling().scale, weight.name);
    if (weight.format != WeightFormat::kFp8 || (weight.scale && weight.scale->name != own)) return;
  }
  const auto said = source.quantization(), own = family.config({});
  constexpr const char* kMethod = "quant_method";
  if (said && own && text_at(*said, kMethod) != text_at(*own, kMethod)) return;
  core::fail_argument("convert_checkpoint", "family",
                      "another family than the input's, or a granularity beside it", family.name);
}

/// Names what the config said of caches and inputs and no tensor tells the new one.
void drop_unsaid(const CheckpointSource& source, RewritePlan& plan) {
  const nlohmann::json config = source.quantization().value_or(nlohmann::json::object());
  const bool has_caches = describe(plan).has_kv_scales;
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo", "activation_scale_ub"}) {
    const bool is_said = has_caches && std::string_view(key).starts_with("kv_");
    if (is_said || config.value(key, nlohmann::json()).is_null()) continue;
    plan.dropped.push_back(core::format("quantization_config.{}", key));
  }
}

}  // namespace
}  // namespace octofold::model

namespace octofold {

namespace fs = std::filesystem;

CheckpointReport quantize_checkpoint(const fs::path& input, const fs::path& output,
                                     const QuantizeCheckpointOptions& options) {
  model::check_output("quantize_checkpoint", input, output);
  const model::CheckpointSource source("quantize_checkpoint", input);
  model::require_owner("quantize_checkpoint", source, options.family);
  model::RewritePlan plan = model::plan_quantization(model::read_contents(source), options);
  plan.of_diffusers = model::of_diffusers(source);
  return model::write_checkpoint(source, plan,
                                 {.rule = options.rule, .power_of_two = options.power_of_two},
                                 options.progress, output);
}

CheckpointReport convert_checkpoint(const fs::path& input, const fs::path& output,
                                    const ConvertCheckpointOptions& options) {
  model::check_output("convert_checkpoint", input, output);
  const model::CheckpointSource source("convert_checkpoint", input);
  model::require_owner("convert_checkpoint", source, options.family);
  const CheckpointContents contents = model::read_contents(source);
  model::require_another(source, contents, options);
  model::RewritePlan plan = model::plan_conversion(contents, options);
  plan.of_diffusers = model::of_diffusers(source);
  model::drop_unsaid(source, plan);
  return model::write_checkpoint(source, plan, {}, options.progress, output);
}

}  // namespace octofold
