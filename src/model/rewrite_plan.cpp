#include "model/rewrite_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_set>

#include "core/check.h"
#include "core/log.h"
#include "model/json_text.h"
#include "model/scale_names.h"
#include "model/small_names.h"
#include "model/small_weights.h"
#include "model/weight_selection.h"
#include "model/weights.h"

namespace octofold::model {
namespace {

bool holds(std::span<const Granularity> granularities, Granularity wanted) {
  return std::find(granularities.begin(), granularities.end(), wanted) != granularities.end();
}

/// The floating-point type that most tensors beside the weights in FP8 have.
std::string dtype_of(const CheckpointContents& contents) {
  std::map<std::string, int> counts = {{"BF16", 0}, {"F16", 0}, {"F32", 0}};
  for (const CheckpointTensor& tensor : contents.others) {
    const auto found = counts.find(tensor.dtype);
    if (found != counts.end()) ++found->second;
  }
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

/// Throws where the family writes no such scales of a weight of this shape.
void require_granularity(std::string_view operation, const Family& family,
                         const CheckpointTensor& weight, Granularity wanted) {
  const std::span<const Granularity> granularities = family.granularities_of(weight.shape);
  if (holds(granularities, wanted)) return;
  std::string has;
  for (const Granularity granularity : granularities) {
    has.append(has.empty() ? "" : ", ").append(name(granularity));
  }
  core::fail_argument(
      operation, "granularity",
      core::format("one that the family {} has for {}: {}", family.name, quote(weight.name), has),
      name(wanted));
}

/// Throws where the family's libraries would read other values than are written.
void require_sizes(std::string_view operation, const Family& family, const CheckpointTensor& weight,
                   Granularity wanted) {
  if (weight.shape.size() != 2 || !family.leaves_other_sizes ||
      family.takes_sizes(wanted, weight.shape[0], weight.shape[1])) {
    return;
  }
  core::fail_argument(
      operation, "granularity",
      core::format("one with which {} can be read in the family {} (blocks of 128 do not divide "
                   "{}x{}: take another granularity, or give none, and one is chosen)",
                   quote(weight.name), family.name, weight.shape[0], weight.shape[1]),
      name(wanted));
}

/// True if there is a static scale by which inputs become FP8.
bool has_fp8_input(const CheckpointWeight& weight) {
  return weight.input_scale && weight.format == WeightFormat::kFp8;
}

/// Scales of tensors may want static scales of inputs beside them.
bool lacks_input(const CheckpointWeight& weight, const Family& family, Granularity granularity) {
  return granularity == Granularity::kTensor && family.tensor_needs_input && !has_fp8_input(weight);
}

bool fits(const CheckpointWeight& weight, const Family& family, Granularity granularity) {
  const MatrixSizes sizes(weight.shape);
  // A family with one granularity alone cannot give another to a layer.
  if (family.mixes && !family.takes_sizes(granularity, sizes.rows, sizes.cols)) return false;
  return holds(family.granularities_of(weight.shape), granularity) &&
         !lacks_input(weight, family, granularity);
}

/// The weights' own granularity where the family has it, else the first of the family's that
/// repeats their scales, else the first that fits all of them.
Granularity target_of(std::span<const CheckpointWeight> weights, const Family& family) {
  const auto all = [&](Granularity granularity, auto keeps) {
    return std::all_of(weights.begin(), weights.end(), [&](const CheckpointWeight& weight) {
      return fits(weight, family, granularity) && keeps(weight);
    });
  };
  if (weights.empty()) return family.granularities.front();
  std::vector<Granularity> candidates = {weights.front().granularity};
  candidates.insert(candidates.end(), family.granularities.begin(), family.granularities.end());
  for (const Granularity granularity : candidates) {
    if (all(granularity,
            [&](const auto& weight) { return repeats(weight.granularity, granularity); })) {
      return granularity;
    }
  }
  for (const Granularity granularity : family.granularities) {
    if (all(granularity, [](const auto&) { return true; })) return granularity;
  }
  return family.granularities.front();
}

bool is_small(const CheckpointWeight& weight) { return weight.format != WeightFormat::kFp8; }

/// The values that a granularity would change, as far as that is known before they are cast.
std::int64_t changes_by(const CheckpointWeight& weight, Granularity granularity) {
  if (is_small(weight)) return change_by(weight, granularity).changed;
  return repeats(weight.granularity, granularity) ? 0 : weight.codes.bytes;
}

/// The granularity of weights some of which are in small formats: the first by which no value
/// changes, else the one by which the fewest do.
Granularity exact_target_of(std::span<const CheckpointWeight> weights, const Family& family) {
  std::optional<Granularity> best;
  std::int64_t fewest = 0;
  std::vector<Granularity> candidates;
  for (const Granularity granularity : {Granularity::kBlock128x128, Granularity::kChannel,
                                        Granularity::kBlock1x128, Granularity::kTensor}) {
    if (std::ranges::all_of(weights,
                            [&](const auto& it) { return fits(it, family, granularity); })) {
      candidates.push_back(granularity);
    }
  }
  if (candidates.empty()) return family.granularities.front();
  if (candidates.size() == 1) return candidates.front();
  for (const Granularity granularity : candidates) {
    std::int64_t changed = 0;
    for (const CheckpointWeight& weight : weights) {
      if (best && changed >= fewest) break;
      changed += changes_by(weight, granularity);
    }
    if (!best || changed < fewest) best = granularity, fewest = changed;
    if (fewest == 0) break;
  }
  return *best;
}

/// True if this is a matrix of one expert, whose scales its family's libraries do not load.
bool is_expert_amiss(const Family& family, const Step& step) {
  return step.is_weight() && step.values.shape.size() == 2 &&
         step.name.find(".experts.") != std::string::npos && !holds(family.of_experts, step.to);
}

/// Checkpoints that are right, and that a library cannot load.
void warn_of_experts(const RewritePlan& plan) {
  const auto experts = std::ranges::count_if(
      plan.steps, [&](const Step& step) { return is_expert_amiss(*plan.family, step); });
  if (experts == 0) return;
  core::log(LogLevel::kWarning, "{} weights of experts are written in the family {}: {}", experts,
            plan.family->name, plan.family->about_experts);
}

/// Checkpoints that are right, and that Octofold alone loads.
void warn_of_stacks(const RewritePlan& plan, const LinearLayout& layout) {
  std::map<std::string_view, std::vector<std::string>> weights;
  for (const Step& step : plan.steps) {
    if (!step.is_weight() || step.values.shape.size() != 3) continue;
    const std::string_view objection =
        layout.objection({.name = step.name, .dtype = "", .shape = step.values.shape, .file = {}});
    if (!objection.empty()) weights[objection].push_back(step.name);
  }
  for (const auto& [objection, names] : weights) {
    core::log(LogLevel::kWarning,
              "{} weights can be read by octofold.load_checkpoint() and by no other library, "
              "because of each {}: {}",
              names.size(), objection, quoted(names));
  }
}

/// Checkpoints that are right, and that not everybody reads right.
void warn_of_sizes(const RewritePlan& plan) {
  if (plan.family->about_sizes.empty()) return;
  std::vector<std::string> names;
  for (const Step& step : plan.steps) {
    const std::vector<std::int64_t>& shape = step.values.shape;
    if (step.is_weight() && shape.size() == 2 &&
        !plan.family->takes_sizes(step.to, shape[0], shape[1])) {
      names.push_back(step.name);
    }
  }
  if (names.empty()) return;
  core::log(LogLevel::kWarning, "{} weights have sizes that are no multiples of 128: {}: {}",
            names.size(), plan.family->about_sizes, quoted(names));
}

/// Throws where a library that owns the family would not load what the plan makes.
void require_loadable(std::string_view operation, const RewritePlan& plan) {
  const Family& family = *plan.family;
  std::map<std::string, std::set<bool>> experts;  // whether some are FP8, and some are not
  for (const Step& step : plan.steps) {
    const std::size_t end = step.name.find(".experts.");
    if (end == std::string::npos || step.values.shape.size() != 2) continue;
    std::set<bool>& are = experts[step.name.substr(0, end)];
    are.insert(step.is_weight());
    if (are.size() == 1) continue;
    core::fail_argument(operation, "skip", "all experts of a layer, or none: they are one module",
                        core::format("some beside {}", quote(step.name)));
  }
  for (const Step& step : plan.steps) {
    if (!step.is_weight()) continue;
    if (is_expert_amiss(family, step)) {
      core::fail_argument(
          operation, "granularity",
          core::format("scales with which experts of the family {} can be loaded: {} (or skip "
                       "'*.experts.*', which leaves them as they are, or take the families "
                       "deepseek-v3 and finegrained-fp8, whose 128x128 scales load)",
                       family.name, family.about_experts),
          core::format("{} scales of {}", name(step.to), quote(step.name)));
    }
    // ViT and its kin are renamed, whoever knows the loader.
    const bool is_renamed = plan.loaded.modules.contains(module_of(step.name)) ||
                            step.name.find(".attention.attention.") != std::string::npos;
    if (!is_renamed || family.about_names.empty()) continue;
    core::fail_argument(operation, "family",
                        core::format("one that can be loaded: {}", family.about_names),
                        core::format("{} and {}", family.name, quote(step.name)));
  }
}

/// Throws where nothing is to be quantized, with the reasons there are.
void require_some(std::string_view operation, const RewritePlan& plan) {
  for (const Step& step : plan.steps) {
    if (step.is_weight()) return;
  }
  std::string got = core::format("none among {} tensors", plan.steps.size());
  std::set<std::string> said;
  for (const LeftAlone& weight : plan.left_alone) {
    if (!said.insert(weight.reason).second) continue;
    got.append(core::format("; {}: {}", quote(weight.name), weight.reason));
    if (said.size() == 3) break;
  }
  core::fail_argument(operation, "input",
                      "matrices named *.weight that no pattern skips and the family takes", got);
}

void require_free_names(std::string_view operation, const RewritePlan& plan) {
  std::unordered_set<std::string> names;
  for (const Step& step : plan.steps) {
    if (!step.is_weight()) names.insert(step.name);
  }
  const Spelling& spelling = plan.family->spelling();
  for (const Step& step : plan.steps) {
    if (!step.is_weight()) continue;
    const std::string scale = spelled(spelling.scale, step.name);
    if (!names.contains(scale)) continue;
    core::fail_argument(operation, "input",
                        core::format("no tensor named {}, which is the name for the scales of {}",
                                     quote(scale), quote(step.name)),
                        "one");
  }
}

}  // namespace

RewritePlan plan_quantization(const CheckpointContents& contents,
                              const QuantizeCheckpointOptions& options) {
  constexpr std::string_view kOperation = "quantize_checkpoint";
  if (contents.family) {
    core::fail_argument(kOperation, "input",
                        "a checkpoint that is not quantized (convert_checkpoint takes others)",
                        core::format("one of the family {} with {} weights in FP8",
                                     name(*contents.family), contents.weights.size()));
  }
  require_model(contents);
  const Family& family = family_of(options.family);
  const Granularity granularity = options.granularity.value_or(family.granularities.front());
  if (family.tensor_needs_input && granularity == Granularity::kTensor) {
    core::fail_argument(
        kOperation, "granularity",
        core::format("one that needs no static scales of inputs in the family {}", family.name),
        name(granularity));
  }
  const WeightSelection selection(options, family, granularity, contents.others);
  RewritePlan plan{.family = &family, .steps = {}, .dropped = {}, .loaded = options.loaded};
  for (const CheckpointTensor& tensor : contents.others) {
    bool chosen = selection.is_candidate(tensor);
    if (chosen) {
      std::string reason = selection.reason_against(tensor);
      chosen = reason.empty();
      if (!chosen) plan.left_alone.push_back({tensor.name, std::move(reason)});
    }
    if (chosen) require_granularity(kOperation, family, tensor, granularity);
    plan.steps.push_back({.kind = chosen ? Step::Kind::kQuantize : Step::Kind::kCopy,
                          .name = tensor.name,
                          .values = tensor,
                          .to = granularity});
  }
  require_some(kOperation, plan);
  require_loadable(kOperation, plan);
  warn_of_sizes(plan);
  require_free_names(kOperation, plan);
  return plan;
}

RewritePlan plan_conversion(const CheckpointContents& contents,
                            const ConvertCheckpointOptions& options) {
  constexpr std::string_view kOperation = "convert_checkpoint";
  if (!contents.family) {
    core::fail_argument(
        kOperation, "input",
        "a checkpoint in FP8 or a smaller format (quantize_checkpoint takes others)",
        core::format("{} tensors, none in FP8", contents.others.size()));
  }
  const Family& family = family_of(options.family);
  for (const CheckpointWeight& weight : contents.weights) {
    if (family.granularities_of(weight.shape).empty()) {
      core::fail_argument(
          kOperation, "family", "one that has fused experts: finegrained-fp8",
          core::format("{}, and fused experts in {}", family.name, quote(weight.name)));
    }
    if (!options.granularity) continue;
    const CheckpointTensor values = values_of(weight);
    require_granularity(kOperation, family, values, *options.granularity);
    require_sizes(kOperation, family, values, *options.granularity);
    if (lacks_input(weight, family, *options.granularity)) {
      core::fail_argument(
          kOperation, "granularity",
          core::format("one that needs no static scales of inputs, because {} has none",
                       quote(weight.name)),
          name(*options.granularity));
    }
  }
  RewritePlan plan{.family = &family, .steps = {}, .dropped = {}, .loaded = options.loaded};
  plan.dtype = dtype_of(contents);
  const std::vector<CheckpointWeight>& weights = contents.weights;
  const bool own = family.mixes && !options.granularity;
  const auto target = [&](std::span<const CheckpointWeight> some) {
    const bool any_small = std::ranges::any_of(some, is_small);
    return any_small ? exact_target_of(some, family) : target_of(some, family);
  };
  const Granularity common = options.granularity ? *options.granularity
                             : own               ? family.granularities.front()
                                                 : target(weights);
  const bool all_static = std::ranges::all_of(weights, has_fp8_input);
  for (const CheckpointWeight& weight : weights) {
    const auto amiss = plan.loaded.unreadable.find(weight.name);
    if (amiss != plan.loaded.unreadable.end()) {
      core::log(LogLevel::kWarning, "{}: {}", quote(weight.name), amiss->second);
    }
    const Granularity to = own ? target(std::span(&weight, 1)) : common;
    const bool has_input = has_fp8_input(weight) && !family.spelling().input_scale.empty() &&
                           (family.mixes || all_static) &&
                           (to == Granularity::kTensor || !family.tensor_needs_input);
    const bool same =
        !is_small(weight) && weight.codes.dtype == "F8_E4M3" && repeats(weight.granularity, to);
    plan.steps.push_back({.kind = same ? Step::Kind::kKeep : Step::Kind::kRequantize,
                          .name = weight.name,
                          .values = values_of(weight),
                          .scale = is_small(weight) ? std::nullopt : weight.scale,
                          .input_scale = has_input ? weight.input_scale : std::nullopt,
                          .from = weight.granularity,
                          .to = to,
                          .full_precision = weight.full_precision});
    if (is_small(weight)) plan.steps.back().small = weight;
    if (weight.input_scale && !has_input) plan.dropped.push_back(weight.input_scale->name);
  }
  std::set<std::string> caches;
  for (const CheckpointTensor& tensor : contents.others) {
    const auto there = kv_scale_in(family, tensor.name);
    if (is_other_calibration(tensor) || (is_kv_scale(tensor.name) && !there) ||
        (there && !caches.insert(*there).second)) {  // the same under another name
      plan.dropped.push_back(tensor.name);
      continue;
    }
    if (there) {
      CheckpointTensor scale = tensor;
      scale.shape = one_scale_of(family, tensor.shape);
      plan.steps.push_back({.kind = Step::Kind::kCopy, .name = *there, .values = std::move(scale)});
      continue;
    }
    const bool widen = is_fp8(tensor) && !family.unscaled;
    plan.steps.push_back({.kind = widen ? Step::Kind::kWiden : Step::Kind::kCopy,
                          .name = tensor.name,
                          .values = tensor});
  }
  std::vector<std::string> hinted;
  for (const Step& step : plan.steps) {
    if (step.full_precision) hinted.push_back(step.name);
  }
  if (!hinted.empty() && options.family != CheckpointFamily::kComfyUi) {
    core::log(
        LogLevel::kWarning,
        "{} weights are to be multiplied in high precision, which the family {} cannot express: {}",
        hinted.size(), family.name, quoted(hinted));
  }
  // Weights first, then the rest: sorted again as the files have them.
  std::stable_sort(plan.steps.begin(), plan.steps.end(), [](const Step& a, const Step& b) {
    return std::pair(a.values.file, a.values.offset) < std::pair(b.values.file, b.values.offset);
  });
  warn_of_experts(plan);
  warn_of_stacks(plan, LinearLayout(contents.others));
  warn_of_sizes(plan);
  require_free_names(kOperation, plan);
  return plan;
}

Description describe(const RewritePlan& plan) {
  Description description;
  description.of_diffusers = plan.of_diffusers;
  for (const Step& step : plan.steps) {
    if (step.is_weight()) {
      description.weights.push_back(
          {.name = step.name,
           .modules = {module_of(step.name)},
           .shape = step.values.shape,
           .granularity = step.to,
           .static_input = step.input_scale.has_value(),
           .full_precision = step.full_precision,
           .dtype = step.kind == Step::Kind::kQuantize ? step.values.dtype : plan.dtype});
      const auto& modules = plan.loaded.modules;
      const auto other = modules.find(module_of(step.name));
      if (other != modules.end()) description.weights.back().modules.push_back(other->second);
      if (step.input_scale) {
        description.others.push_back(spelled(plan.family->spelling().input_scale, step.name));
      }
      continue;
    }
    description.others.push_back(step.name);
    description.has_kv_scales = description.has_kv_scales || is_kv_scale(step.name);
    const bool matrix = step.values.shape.size() == 2 || step.values.shape.size() == 3;
    const std::string module = module_of(step.name);
    if (matrix && module != step.name) description.skipped.push_back(module);
    // transformers makes FP8 experts of a module, and knows its name alone.
    if (is_stack_of_experts(step.name)) {
      const std::string experts = step.name.substr(0, step.name.rfind('.'));
      auto& skipped = description.skipped;
      const bool is_new = std::find(skipped.begin(), skipped.end(), experts) == skipped.end();
      if (is_new) skipped.push_back(experts);
    }
  }
  std::set<std::string> in_fp8;
  for (const Description::Weight& weight : description.weights) in_fp8.insert(weight.modules[0]);
  for (const auto& [in_file, in_library] : plan.loaded.modules) {
    if (!in_fp8.contains(in_file)) description.skipped.push_back(in_library);
  }
  // Classes with another head have the layers under names without the prefix, or with one.
  const std::set<std::string> said(description.skipped.begin(), description.skipped.end());
  for (const std::string& module : said) {
    std::string ending = ending_of(module);
    if (said.contains(ending) || names_fp8(description, ending)) continue;
    description.skipped.push_back(std::move(ending));
  }
  // A head tied to the embeddings has no tensor: transformers would take it for an FP8 layer.
  constexpr std::string_view kHead = "lm_head";
  const bool is_skipped =
      std::any_of(description.skipped.begin(), description.skipped.end(),
                  [&](const std::string& module) { return module.ends_with(kHead); });
  if (!is_skipped && !names_fp8(description, kHead)) description.skipped.emplace_back(kHead);
  return description;
}

}  // namespace octofold::model
