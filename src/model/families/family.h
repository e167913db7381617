// A checkpoint family as a value: how FP8 weights are named, shaped and described.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"

namespace octofold::model {

/// How the tensors of a weight are named, `module.parameter` being its own name. What follows the
/// last dot of a tensor's name has `*` for the parameter ("weight", "gate_up_proj"), and `?` for it
/// and a "_", or nothing where it is "weight": ?input_scale is input_scale, down_proj_input_scale.
/// Empty: there is no such tensor.
struct Spelling {
  std::string_view codes;
  std::string_view scale;
  std::string_view input_scale;
};

/// The same for weights in a small format, which are read alone.
struct SmallSpelling {
  WeightFormat format;
  std::string_view codes;
  std::string_view scale;
  std::string_view input_scale;
  std::string_view second_scale{};
  bool second_scale_divides = false;
  bool in_blocks =
      false;  ///< codes [..., N, blocks, bytes of a block], not [..., N, bytes of a row]
};

/// The name of a tensor of the weight `name` by one of the patterns.
std::string spelled(std::string_view pattern, std::string_view name);
/// The inverse, of a pattern with `*`; nothing where the tensor is not named so.
std::optional<std::string> weight_spelled(std::string_view pattern, std::string_view tensor);

/// The place where a family keeps the scales of key-value caches.
enum class KvScales : std::uint8_t {
  kNone,
  kOfAttention,    ///< self_attn.k_scale, self_attn.v_scale
  kOfProjections,  ///< self_attn.k_proj.k_scale, self_attn.v_proj.v_scale
};

/// The description of a checkpoint in FP8, from which its config is written.
struct Description {
  struct Weight {
    std::string name;
    std::vector<std::string> modules;  ///< what the layer is called in the file, and by a loader
    std::vector<std::int64_t> shape;
    Granularity granularity;
    bool static_input;
    bool full_precision;
    std::string dtype;  ///< of its values, as safetensors spells it
  };
  std::vector<Weight> weights;
  std::vector<std::string> others;   ///< names of all other tensors
  std::vector<std::string> skipped;  ///< modules whose matrices are not FP8, without ".weight"
  bool of_diffusers = false;         ///< config.json is one of Diffusers
  bool has_kv_scales = false;        ///< of key-value caches in FP8
};

/// A JSON file to be written beside the weights.
struct SideFile {
  std::string name;
  nlohmann::json content;
};

/// The defaults that most families have.
bool any_sizes(Granularity granularity, std::int64_t rows, std::int64_t cols);
std::set<WeightFormat> fp8_alone(const nlohmann::json& config);
std::vector<SideFile> no_side_files(const Description& checkpoint);
std::map<std::string, std::string> no_metadata(const Description& checkpoint);
/// scale_shape() of the public API, with [] for a tensor's.
std::vector<std::int64_t> plain_scale_shape(Granularity granularity, std::int64_t rows,
                                            std::int64_t cols);

/// Fields that a family leaves out have the values of most families.
struct Family {
  CheckpointFamily id;
  std::string_view name;
  std::span<const Spelling> spellings;         ///< all that are read; the first is written
  std::span<const SmallSpelling> small{};      ///< of one format each
  std::span<const Granularity> granularities;  ///< of weights, the first where nobody chose
  /// The granularities that weights [experts, N, K] are written with; none: it has no such weights.
  std::span<const Granularity> of_stacks{};
  /// The granularities of experts in a matrix each that whoever loads the family can load.
  std::span<const Granularity> of_experts;
  bool unscaled = false;  ///< reads codes without scales as values
  bool mixes = false;     ///< can say of each weight which granularity it has
  /// Static scales of inputs go with scales of tensors, and neither without the other.
  bool tensor_needs_input = false;
  KvScales kv_scales = KvScales::kNone;
  /// The warning where experts' matrices have other scales; empty: nothing.
  std::string_view about_experts{};
  /// Why weights that are renamed as they are loaded would not load; empty: they load.
  std::string_view about_names{};
  /// True if such scales of a matrix of these sizes are read right, whoever reads them.
  bool (*takes_sizes)(Granularity granularity, std::int64_t rows, std::int64_t cols) = any_sizes;
  /// True if matrices of other sizes are left as they are.
  bool leaves_other_sizes = true;
  /// The warning where matrices of other sizes are not left as they are; empty: nothing.
  std::string_view about_sizes{};
  /// Shape of the scales of one matrix.
  std::vector<std::int64_t> (*scale_shape)(Granularity granularity, std::int64_t rows,
                                           std::int64_t cols) = plain_scale_shape;
  /// True if a `quantization_config` is one of this family's. Throws Error(kUnsupported) for one
  /// that is, but not FP8 as Octofold has it.
  bool (*recognizes)(const nlohmann::json& config);
  /// The formats that weights may have by a `quantization_config` that is recognized.
  std::set<WeightFormat> (*formats)(const nlohmann::json& config) = fp8_alone;
  /// The `quantization_config` of config.json; none: nothing is said there.
  std::optional<nlohmann::json> (*config)(const Description& checkpoint);
  /// Further files beside the weights.
  std::vector<SideFile> (*side_files)(const Description& checkpoint) = no_side_files;
  /// The entries for `__metadata__` in the header of each file, beside those it had before.
  std::map<std::string, std::string> (*metadata)(const Description& checkpoint) = no_metadata;

  const Spelling& spelling() const { return spellings.front(); }
  /// The granularities that a weight of this shape may have; none: the family has no such weights.
  std::span<const Granularity> granularities_of(std::span<const std::int64_t> shape) const;
};

extern const Family kDeepSeekV3;
extern const Family kFineGrainedFp8;
extern const Family kCompressedTensors;
extern const Family kModelOpt;
extern const Family kTorchao;
extern const Family kComfyUi;

/// In the order of the enumerators.
std::span<const Family* const> families();
const Family& family_of(CheckpointFamily id);

/// The shape that a family gives to a scale of this shape that is one number, as those of inputs
/// and of caches are; any other as it is.
std::vector<std::int64_t> one_scale_of(const Family& family, std::span<const std::int64_t> shape);

/// Throws Error(kUnsupported): "<family>: expected <expected>, got <got>".
[[noreturn]] void fail_unsupported(const Family& family, std::string_view expected,
                                   std::string_view got);

/// Throws Error(kUnsupported) that names the first key of a `quantization_config` by which numbers
/// may be others than those of the codes, scales and casts that are known. null, [] and {} say
/// nothing, nor do false, 0 and "" of other keys. `known` is a JSON object: each key that is known
/// ("*": any) with the values that it may have in an array, with such an object of its own keys, or
/// with null for any value.
void require_known(const Family& family, const nlohmann::json& object, const nlohmann::json& known,
                   const std::string& path = "quantization_config.");

/// The text that an object has under a name; "" if there is none.
std::string text_at(const nlohmann::json& object, const char* key);

/// True if every weight has a static scale of its input.
bool all_static(const Description& checkpoint);
/// True if a module in FP8 has a name with this ending, by which libraries would leave it out.
bool names_fp8(const Description& checkpoint, std::string_view ending);
/// The ending of a module's name that it has with and without the prefix of its base model.
std::string ending_of(const std::string& module);
/// The name of a weight's module, or of the parameter itself where that is not called "weight".
std::string module_of(std::string_view weight);

}  // namespace octofold::model
