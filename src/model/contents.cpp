#include "model/contents.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "octofold/scale_layout.h"

#include "core/check.h"
#include "model/families/comfyui.h"
#include "model/json_text.h"
#include "model/scale_names.h"
#include "model/small_names.h"
#include "model/weights.h"

namespace octofold::model {
namespace {

bool any(const TensorsByName& tensors, const std::function<bool(const CheckpointTensor&)>& holds) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const auto& entry) { return holds(*entry.second); });
}

/// True if bytes of this name are codes of a small format, whoever reads them: two files that have
/// them say nothing else by these names.
bool is_packed(const CheckpointTensor& tensor, std::string_view ending, std::string_view scale,
               const TensorsByName& tensors) {
  if (tensor.dtype != "U8" || !tensor.name.ends_with(ending)) return false;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - ending.size());
  return tensors.contains(stem + std::string(scale));
}

/// The family of a checkpoint whose config says nothing.
const Family* family_by_names(const TensorsByName& tensors) {
  const auto named = [&](std::string_view ending) {
    return any(tensors, [&](const auto& tensor) { return tensor.name.ends_with(ending); });
  };
  if (named("_qdata")) return &kTorchao;
  const auto packed = [&](std::string_view ending, std::string_view scale) {
    return any(tensors, [&](const auto& it) { return is_packed(it, ending, scale, tensors); });
  };
  if (packed(".weight_packed", ".weight_scale")) return &kCompressedTensors;
  if (packed("_blocks", "_scales")) return &kFineGrainedFp8;
  if (any(tensors, [](const auto& tensor) {
        return is_fp8(tensor) && tensor.name.ends_with(".weight_scale");
      })) {
    core::fail(
        ErrorCode::kUnsupported,
        "expected config.json or hf_quant_config.json beside weights with scales in FP8, got "
        "neither: NVFP4 of ModelOpt's and of ComfyUI's have the same names, and scales in "
        "another order");
  }
  if (!any(tensors, is_fp8)) return nullptr;
  if (named("_scale_inv")) {  // of matrices, [N/128, K/128] each, or of more than these
    const bool more = named("activation_scale") || any(tensors, [](const auto& tensor) {
                        return (is_fp8(tensor) && tensor.shape.size() == 3) ||
                               (tensor.name.ends_with("_scale_inv") && tensor.shape.size() < 2);
                      });
    return more ? &kFineGrainedFp8 : &kDeepSeekV3;
  }
  const bool is_of_deepseeks_code = any(tensors, [&](const auto& tensor) {
    constexpr std::string_view kWeight = ".weight";
    const std::size_t rank = tensor.shape.size();
    if (!is_fp8(tensor) || rank < 2 || rank > 3 || !tensor.name.ends_with(kWeight)) return false;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    const auto scale = tensors.find(module + ".scale");
    return scale != tensors.end() &&
           granularity_of(kDeepSeekV3, tensor.shape, scale->second->shape);
  });
  if (is_of_deepseeks_code) return &kDeepSeekV3;
  // [N, 1] and blocks [N/128, K/128], against [N] and blocks [N/128, 1, K/128, 1].
  const auto scaled = [&](auto has_shape) {
    return any(tensors, [&](const auto& tensor) {
      return tensor.name.ends_with("weight_scale") && has_shape(tensor.shape);
    });
  };
  if (scaled([](const auto& shape) { return shape.size() == 2; })) return &kCompressedTensors;
  const bool is_modelopt = scaled(
      [](const auto& shape) { return shape.size() == 4 || (shape.size() == 1 && shape[0] > 1); });
  return is_modelopt ? &kModelOpt : &kComfyUi;
}

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? quote(value.get<std::string>()) : value.dump();
}

/// Names that only tensors of quantized weights have, in formats other than FP8.
void require_high_precision(const TensorsByName& tensors) {
  constexpr std::string_view kEndings[] = {".weight_scale",  ".weight_scale_inv", ".weight_scale_2",
                                           ".weight_packed", ".qweight",          ".qzeros"};
  for (const auto& [name, tensor] : tensors) {
    for (const std::string_view ending : kEndings) {
      if (!name.ends_with(ending)) continue;
      core::fail(ErrorCode::kUnsupported,
                 "{}: expected weights in FP8 or in high precision, got the tensor {} of weights "
                 "that are quantized in another way",
                 tensor->file.string(), quote(name));
    }
  }
}

/// Throws for Octofold's own folders, whose layers nobody but their own functions makes again.
void require_others(const CheckpointSource& source) {
  const auto config = source.quantization();
  const bool is_of_config = config && text_at(*config, "quant_method") == "octofold";
  const bool is_kept =
      !source.shards().empty() && source.shards()[0].name == "octofold.safetensors";
  if (!is_of_config && !is_kept) return;
  core::fail(ErrorCode::kUnsupported,
             "{}: expected a checkpoint of another library's or in high precision, got one that {}",
             source.folder().string(),
             is_kept
                 ? "octofold.models.save() wrote: octofold.models.load() reads it"
                 : "transformers wrote with OctofoldConfig: its from_pretrained() reads it after "
                   "`import octofold.integrations.transformers`");
}

const Family* family_in(const CheckpointSource& source, const TensorsByName& tensors) {
  require_others(source);
  if (const auto config = source.quantization()) {
    for (const Family* family : families()) {
      if (!family->recognizes(*config)) continue;
      const auto is_code = [&](const CheckpointTensor& tensor) {
        return is_fp8(tensor) || (tensor.dtype == "U8" && !family->small.empty());
      };
      if (!any(tensors, is_code)) {
        core::fail(ErrorCode::kBadFormat,
                   "{}: expected a checkpoint of the family {}, which its config names, got one "
                   "without FP8 tensors",
                   source.folder().string(), family->name);
      }
      return family;
    }
    const auto method = config->find("quant_method");
    core::fail(ErrorCode::kUnsupported,
               "{}: expected a quant_method that is FP8 (fp8, compressed-tensors, fbgemm_fp8, "
               "modelopt, torchao) or mxfp4, got {}",
               source.folder().string(), method == config->end() ? "none" : text_of(*method));
  }
  return family_by_names(tensors);
}

/// Collects the tensors of weights, and says which are left.
class Reader {
 public:
  Reader(const CheckpointSource& source, const Family& family, const TensorsByName& tensors)
      : family_(family), tensors_(tensors), hints_(source) {
    if (const auto config = source.quantization()) formats_ = family.formats(*config);
    // Before all codes in FP8, for which scales of NVFP4 could be taken.
    for (const auto& [name, tensor] : tensors) {
      auto small = small_weight(family, formats_, *tensor, tensors);
      if (!small) continue;
      for (const auto* part : {&small->scale, &small->second_scale, &small->input_scale}) {
        if (*part) take((*part)->name);
      }
      add(*small);
      small_.emplace(name, std::move(*small));
    }
  }

  /// Throws where a tensor beside those of weights makes other numbers of them: zero points, an
  /// order of columns, scales of another kind.
  void require_nothing_more(const CheckpointTensor& tensor) {
    hints_.require_dtype(tensor);
    if (tensor.name.ends_with("_g_idx"))
      fail_tensor(tensor, "columns in order", "an order of their own");
    if (is_zero_point(tensor.name)) {
      std::vector<std::byte> bytes = data_.read(tensor);
      // The sign of a zero says nothing.
      if (is_fp8(tensor) || (is_scale(tensor) && tensor.dtype != "F8_E8M0")) {
        const std::size_t size = tensor.dtype.starts_with("F8") ? 1 : tensor.dtype == "F32" ? 4 : 2;
        for (std::size_t i = size - 1; i < bytes.size(); i += size) bytes[i] &= std::byte{0x7F};
      }
      if (std::count(bytes.begin(), bytes.end(), std::byte{}) != std::ssize(bytes)) {
        fail_tensor(tensor, "zeros, as codes stand for numbers around zero", "others");
      }
    }
    const auto weight = weights_.find(tensor.name);
    if (weight != weights_.end()) require_no_scales_beside(weight->second);
    const auto cache = kv_scale_in(kCompressedTensors, tensor.name);
    if (cache && !caches_.emplace(*cache, tensor).second) require_same(tensor, caches_.at(*cache));
  }

  /// The weight that these codes are of; nothing if they are but a tensor in FP8.
  std::optional<CheckpointWeight> weight(const CheckpointTensor& codes) {
    const auto small = small_.find(codes.name);
    if (small != small_.end()) return small->second;
    if (taken_.contains(codes.name)) return std::nullopt;
    const auto name = weight_spelled(family_.spelling().codes, codes.name);
    if (is_zero_point(codes.name)) return std::nullopt;
    const bool matrix = (codes.shape.size() == 2 || codes.shape.size() == 3) &&
                        !family_.granularities_of(codes.shape).empty();
    if (!name || !is_fp8(codes)) return std::nullopt;
    CheckpointWeight weight{
        .name = *name, .shape = codes.shape, .codes = codes, .full_precision = hints_.of(*name)};
    weight.scale = scale_of(*name, &Spelling::scale);
    weight.input_scale = scale_of(*name, &Spelling::input_scale);
    if (!weight.scale) {
      if (family_.unscaled) require_no_scales_beside(codes);
      if (family_.unscaled) return matrix ? std::optional(weight) : std::nullopt;
      fail_without_scale(weight);
    }
    if (!matrix) fail_tensor(codes, "a matrix", shape_text(codes.shape));
    if (!is_scale(*weight.scale)) {
      fail_tensor(*weight.scale, "scales of F32, BF16, F16 or F8_E8M0", weight.scale->dtype);
    }
    const auto granularity = granularity_of(family_, codes.shape, weight.scale->shape);
    if (!granularity) {
      fail_tensor(*weight.scale, core::format("scales of codes {}", shape_text(codes.shape)),
                  shape_text(weight.scale->shape));
    }
    weight.granularity = *granularity;
    add(weight);
    return weight;
  }

  /// True if a tensor is neither codes nor scales nor a note on them.
  bool is_other(const CheckpointTensor& tensor) const {
    return !taken_.contains(tensor.name) && !is_note(tensor.name);
  }

  /// Throws where a weight that is not FP8 has scales, or scales have no weight. Of these
  /// ComfyUI's files have some, to no effect.
  void require_no_scale_of(const CheckpointTensor& tensor) const {
    if (family_.unscaled || taken_.contains(tensor.name)) return;
    const Spelling& spelling = family_.spelling();
    const auto name = weight_spelled(spelling.codes, tensor.name);
    if (name && module_of(*name) != *name && tensors_.contains(spelled(spelling.scale, *name))) {
      fail_tensor(tensor,
                  core::format("FP8 codes, because there are scales in {}",
                               quote(spelled(spelling.scale, *name))),
                  tensor.dtype);
    }
    for (const SmallSpelling& small : family_.small) {
      const auto of = weight_spelled(small.scale, tensor.name);
      if (!small.in_blocks || tensor.dtype != "U8" || !of) continue;
      fail_tensor(tensor, core::format("codes in {}", quote(spelled(small.codes, *of))), "none");
    }
    constexpr std::string_view kScaleOfWeight = "weight_scale";
    const bool is_orphan = tensor.name.find(kScaleOfWeight) != std::string::npos &&
                           spelled(spelling.scale, module_of_scale(tensor.name)) == tensor.name;
    if (is_orphan) {
      fail_tensor(tensor,
                  core::format("a weight in {}, whose scale it is",
                               quote(spelled(spelling.codes, module_of_scale(tensor.name)))),
                  "none");
    }
  }

 private:
  void add(const CheckpointWeight& weight) {
    if (!formats_.empty() && !formats_.contains(weight.format)) {
      std::string said;
      for (const WeightFormat format : formats_) {
        said.append(said.empty() ? "" : ", ").append(octofold::name(format));
      }
      fail_tensor(weight.codes, core::format("a weight in {}, as the config says", said),
                  octofold::name(weight.format));
    }
    const std::string_view name = tensors_.find(weight.codes.name)->second->name;
    taken_.insert(name);
    weights_[name] = values_of(weight);
  }

  std::optional<CheckpointTensor> take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    taken_.insert(found->second->name);
    return *found->second;
  }

  void require_same(const CheckpointTensor& scale, const CheckpointTensor& other) {
    const auto values = [&](const auto& it) { return floats_of(it.dtype, data_.read(it)); };
    if (!is_scale(scale) || !is_scale(other) || values(scale) != values(other)) {
      fail_tensor(scale, core::format("the numbers of {}", quote(other.name)), "others");
    }
  }

  /// The scale under one of the family's names for it. Under another's name there may be the same.
  std::optional<CheckpointTensor> scale_of(const std::string& weight,
                                           std::string_view Spelling::* part) {
    std::optional<CheckpointTensor> scale;
    for (const Family* family : std::array{&family_, &kDeepSeekV3, &kFineGrainedFp8, &kComfyUi}) {
      for (const Spelling& spelling : family->spellings) {
        const std::string_view pattern = spelling.*part;
        // "scale" is no other family's name: a module's own parameter may be called so.
        if (pattern.empty() || (family != &family_ && (!scale || pattern == "?scale"))) continue;
        const auto found = take(spelled(pattern, weight));
        if (!found) continue;
        if (!scale) scale = found;
        if (found->name == scale->name) continue;
        require_same(*found, *scale);
      }
    }
    return scale;
  }

  /// Throws where codes that would count as values have beside them what looks like their scales.
  void require_no_scales_beside(const CheckpointTensor& codes) const {
    const CheckpointTensor* scales = scales_beside(codes, tensors_, [&](const auto& tensor) {
      return taken_.contains(tensor.name) || is_kv_scale(tensor.name) ||
             is_other_calibration(tensor);
    });
    if (scales == nullptr) return;
    fail_tensor(codes,
                weights_.contains(codes.name)
                    ? "no further scales"
                    : "scales under a name that a family uses (weight_scale, weight_scale_inv, "
                      "scale_weight, or scale for blocks: rename them), or no scales",
                core::format("{} {}", quote(scales->name), shape_text(scales->shape)));
  }

  /// The weight of which a scale of this name would be, if it is one of a `weight`.
  static std::string module_of_scale(std::string_view scale) {
    return std::string(scale.substr(0, scale.rfind('.') + 1)) + "weight";
  }

  [[noreturn]] void fail_without_scale(const CheckpointWeight& weight) const {
    const std::string expected =
        core::format("scales in {}, as the family {} has them",
                     quote(spelled(family_.spelling().scale, weight.name)), family_.name);
    // A spelling that a family writes says more than one of others that it reads.
    for (const bool is_own : {true, false}) {
      for (const Family* other : families()) {
        for (const Spelling& spelling : is_own ? other->spellings.first(1) : other->spellings) {
          const std::string there = spelled(spelling.scale, weight.name);
          if (tensors_.contains(there)) {
            fail_tensor(weight.codes, expected,
                        core::format("{}, as the family {} has them", quote(there), other->name));
          }
        }
      }
    }
    fail_tensor(weight.codes, expected, "none");
  }

  const Family& family_;
  const TensorsByName& tensors_;
  Hints hints_;
  std::unordered_set<std::string_view> taken_;
  std::set<WeightFormat> formats_;  // that the config says; empty: there is none
  std::map<std::string_view, CheckpointWeight> small_;    // by names of codes
  std::map<std::string_view, CheckpointTensor> weights_;  // their values, by names of codes
  std::map<std::string, CheckpointTensor> caches_;        // their scales
  TensorBytes data_;
};

}  // namespace

std::optional<Granularity> granularity_of(const Family& family, std::span<const std::int64_t> codes,
                                          std::span<const std::int64_t> scale) {
  // Dimensions of one say nothing: [N], [N, 1] and [1, N, 1] are the same scales.
  const auto sizes_of = [](std::span<const std::int64_t> shape) {
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : shape) {
      if (size != 1) sizes.push_back(size);
    }
    return sizes;
  };
  // One number is a scale of the whole tensor, also where a block is not smaller.
  const bool is_one = scale.size() < 2 && sizes_of(scale).empty() && codes.size() == 2;
  const auto& known = family.granularities;
  if (is_one && std::find(known.begin(), known.end(), Granularity::kTensor) != known.end()) {
    return Granularity::kTensor;
  }
  const MatrixSizes sizes(codes);
  for (const Granularity granularity : family.granularities) {
    std::vector<std::int64_t> expected = scale_shape(granularity, sizes.rows, sizes.cols);
    if (codes.size() == 3) expected.insert(expected.begin(), sizes.matrices);
    if (sizes_of(expected) == sizes_of(scale)) return granularity;
  }
  return std::nullopt;
}

CheckpointContents read_contents(const CheckpointSource& source) {
  CheckpointContents contents{.bytes = source.bytes()};
  TensorsByName tensors;
  for (const Shard& shard : source.shards()) {
    contents.files.push_back(source.folder() / shard.name);
    for (const CheckpointTensor& tensor : shard.tensors) tensors[tensor.name] = &tensor;
  }
  const Family* family = family_in(source, tensors);
  const auto each_tensor = [&](auto action) {
    for (const Shard& shard : source.shards()) {
      for (const CheckpointTensor& tensor : shard.tensors) action(tensor);
    }
  };
  if (family == nullptr) {
    require_high_precision(tensors);
    const Hints hints(source);
    each_tensor([&](const auto& tensor) {
      hints.require_dtype(tensor);
      contents.others.push_back(tensor);
    });
    return contents;
  }
  contents.family = family->id;
  Reader reader(source, *family, tensors);
  std::unordered_set<std::string_view> weights;
  each_tensor([&](const auto& tensor) {
    if (auto weight = reader.weight(tensor)) {
      weights.insert(tensor.name);
      contents.weights.push_back(std::move(*weight));
    }
  });
  each_tensor([&](const auto& tensor) {
    reader.require_no_scale_of(tensor);
    reader.require_nothing_more(tensor);
    if (!weights.contains(tensor.name) && reader.is_other(tensor)) {
      contents.others.push_back(tensor);
    }
  });
  return contents;
}

}  // namespace octofold::model

namespace octofold {

CheckpointContents inspect_checkpoint(const std::filesystem::path& input) {
  return model::read_contents(model::CheckpointSource("inspect_checkpoint", input));
}

}  // namespace octofold
