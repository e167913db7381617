// The two operations that write checkpoints.
#include "octofold/checkpoint.h"

#include "core/check.h"
#include "model/checkpoint_output.h"
#include "model/checkpoint_source.h"
#include "model/contents.h"
#include "model/rewrite_plan.h"

namespace octofold {
namespace {

namespace fs = std::filesystem;

bool of_diffusers(const model::CheckpointSource& source) {
  return source.config() && source.config()->contains("_diffusers_version");
}

/// Throws where config.json names a library that does not know the family: it would refuse the
/// folder, or take codes for weights where the family says nothing in config.json.
void require_owner(std::string_view operation, const model::CheckpointSource& source,
                   CheckpointFamily family) {
  if (source.kind() == model::InputKind::kFile || !source.config()) return;
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
void require_another(const model::CheckpointSource& source, const CheckpointContents& contents,
                     const ConvertCheckpointOptions& options) {
  if (contents.family != options.family || options.granularity) return;
  const model::Family& family = model::family_of(options.family);
  for (const CheckpointWeight& weight : contents.weights) {
    const std::string own = model::spelled(family.spelling().scale, weight.name);
    if (weight.scale && weight.scale->name != own) return;
  }
  const auto said = source.quantization(), own = family.config({});
  constexpr const char* kMethod = "quant_method";
  if (said && own && model::text_at(*said, kMethod) != model::text_at(*own, kMethod)) return;
  core::fail_argument("convert_checkpoint", "family",
                      "another family than the input's, or a granularity beside it", family.name);
}

/// Names what the config said of caches and inputs and no tensor tells the new one.
void drop_unsaid(const model::CheckpointSource& source, model::RewritePlan& plan) {
  const nlohmann::json config = source.quantization().value_or(nlohmann::json::object());
  const bool has_caches = model::describe(plan).has_kv_scales;
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo", "activation_scale_ub"}) {
    const bool is_said = has_caches && std::string_view(key).starts_with("kv_");
    if (is_said || config.value(key, nlohmann::json()).is_null()) continue;
    plan.dropped.push_back(core::format("quantization_config.{}", key));
  }
}

}  // namespace

CheckpointReport quantize_checkpoint(const fs::path& input, const fs::path& output,
                                     const QuantizeCheckpointOptions& options) {
  model::check_output("quantize_checkpoint", input, output);
  const model::CheckpointSource source("quantize_checkpoint", input);
  require_owner("quantize_checkpoint", source, options.family);
  model::RewritePlan plan = model::plan_quantization(model::read_contents(source), options);
  plan.of_diffusers = of_diffusers(source);
  return model::write_checkpoint(source, plan,
                                 {.rule = options.rule, .power_of_two = options.power_of_two},
                                 options.progress, output);
}

CheckpointReport convert_checkpoint(const fs::path& input, const fs::path& output,
                                    const ConvertCheckpointOptions& options) {
  model::check_output("convert_checkpoint", input, output);
  const model::CheckpointSource source("convert_checkpoint", input);
  require_owner("convert_checkpoint", source, options.family);
  const CheckpointContents contents = model::read_contents(source);
  require_another(source, contents, options);
  model::RewritePlan plan = model::plan_conversion(contents, options);
  plan.of_diffusers = of_diffusers(source);
  drop_unsaid(source, plan);
  return model::write_checkpoint(source, plan, {}, options.progress, output);
}

}  // namespace octofold
