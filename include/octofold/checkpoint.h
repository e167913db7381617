// FP8 checkpoints on disk: inspecting them, quantizing to them, converting between families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/export.h"
#include "octofold/types.h"

namespace octofold {

// clang-format off
/// Whose conventions name, shape and describe FP8 weights and their scales.
///
/// | family             | scales of a layer's `weight`                             | granularities                   |
/// |--------------------|----------------------------------------------------------|---------------------------------|
/// | kDeepSeekV3        | `weight_scale_inv`                                       | 128x128                         |
/// | kFineGrainedFp8    | `weight_scale_inv`, `activation_scale`                   | 128x128, tensor                 |
/// | kCompressedTensors | `weight_scale`, `input_scale`                            | channel, tensor, 128x128, 1x128 |
/// | kModelOpt          | `weight_scale`, `input_scale`                            | channel, tensor, 128x128        |
/// | kTorchao           | `_weight_qdata`, `_weight_scale`, metadata of the header | channel, tensor, 128x128        |
/// | kComfyUi           | `weight_scale`, `input_scale`, or none at all            | tensor                          |
///
/// Every scale is a multiplier. docs/checkpoints.md says which programs read and write each.
/// Three are also read, and not written, with weights in formats that are not FP8:
///
/// | family             | format | codes                      | scales                                |
/// |--------------------|--------|----------------------------|---------------------------------------|
/// | kFineGrainedFp8    | mxfp4  | `X_blocks` [E, N, K/32, 16] | `X_scales` (gpt-oss)                 |
/// | kCompressedTensors | nvfp4  | `weight_packed` [N, K/2]   | `weight_scale`, `weight_global_scale` |
/// |                    | mxfp4  | `weight_packed` [N, K/2]   | `weight_scale`                        |
/// |                    | mxfp8  | `weight` [N, K]            | `weight_scale`                        |
/// | kModelOpt          | nvfp4  | `weight` [N, K/2]          | `weight_scale`, `weight_scale_2`      |
/// |                    | mxfp4  | `weight` [N, K/2]          | `weight_scale`                        |
/// |                    | mxfp8  | `weight` [N, K]            | `weight_scale`                        |
// clang-format on
enum class CheckpointFamily : std::uint8_t {
  kDeepSeekV3,
  kFineGrainedFp8,
  kCompressedTensors,
  kModelOpt,
  kTorchao,
  kComfyUi,
};

/// "deepseek-v3", "finegrained-fp8", "compressed-tensors", "modelopt", "torchao", "comfyui".
/// Throws Error(kInvalidArgument) for a number that is none of the enumerators.
OCTOFOLD_API std::string_view name(CheckpointFamily family);
/// The inverse. Throws Error(kInvalidArgument) that lists the names there are.
OCTOFOLD_API CheckpointFamily parse_checkpoint_family(std::string_view text);
OCTOFOLD_API const std::vector<CheckpointFamily>& checkpoint_families();

/// A tensor, as bytes in a file.
struct CheckpointTensor {
  std::string name;
  std::string dtype;  ///< as safetensors spells it: "BF16", "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::filesystem::path file;
  std::int64_t offset = 0;  ///< of the first byte, from the file's beginning
  std::int64_t bytes = 0;
};

/// The format of a weight's numbers (OCP Microscaling Formats 1.0; NVFP4: nvidia-modelopt). In the
/// three behind FP8 some values of a row share a scale: 32 in MX formats, with E8M0 scales, 16 in
/// NVFP4, with e4m3 scales and a second one for all. Codes of four bits are e2m1, two in a byte,
/// the first in its low half; those of MXFP8 are e4m3.
enum class WeightFormat : std::uint8_t { kFp8, kMxfp4, kNvfp4, kMxfp8 };

/// "fp8", "mxfp4", "nvfp4", "mxfp8".
OCTOFOLD_API std::string_view name(WeightFormat format);
/// How many values of a row share a scale; 0 for kFp8, of which a Granularity says it.
OCTOFOLD_API std::int64_t values_per_scale(WeightFormat format);

/// A weight in FP8 or one of the small formats: a matrix [N, K], or a stack of them [experts, N,
/// K].
struct CheckpointWeight {
  std::string name;  ///< of the layer's parameter: "model.layers.0.mlp.up_proj.weight"
  std::vector<std::int64_t> shape;  ///< of its values, which is that of the codes of kFp8
  CheckpointTensor codes;
  std::optional<CheckpointTensor> scale{};  ///< unset: the codes are the values
  std::optional<CheckpointTensor> input_scale{};
  Granularity granularity = Granularity::kTensor;  ///< of kFp8
  WeightFormat format = WeightFormat::kFp8;
  std::optional<CheckpointTensor> second_scale{};  ///< of kNvfp4
  bool second_scale_divides = false;               ///< it is the inverse of a multiplier
  /// True if the checkpoint asks that this layer multiply in high precision.
  bool full_precision = false;
};

struct CheckpointContents {
  std::optional<CheckpointFamily> family{};  ///< unset: nothing is quantized
  std::vector<CheckpointWeight> weights{};   ///< by file, then in the order of their data
  std::vector<CheckpointTensor> others{};    ///< all that is neither a weight nor a part of one
  std::vector<std::filesystem::path> files{};
  std::int64_t bytes = 0;  ///< of all tensors
};

/// Reads the headers of a checkpoint: a `.safetensors` file, a `*.safetensors.index.json`, or a
/// folder with either. config.json (or hf_quant_config.json) beside it names its family; without
/// one, the names of the tensors tell.
/// Throws Error: kBadFormat for files that are not valid, for tensors that contradict their config
/// or each other, and for scales that are missing or have no known shape; kUnsupported for
/// quantizations other than those of WeightFormat, keys of a config that may change numbers and are
/// not known, and folders that functions of Octofold's wrote and read; kIo if a file cannot be
/// read.
OCTOFOLD_API CheckpointContents inspect_checkpoint(const std::filesystem::path& input);

/// A weight that could be FP8 by its shape and type, and is not.
struct LeftAlone {
  std::string name;
  std::string reason;
};

/// The change that a cast from codes to other codes made to a weight.
struct WeightChange {
  std::int64_t changed = 0;    ///< values that are others now
  std::int64_t values = 0;     ///< how many it has
  double largest_error = 0.0;  ///< the largest |new - old| / |old| of those that are numbers
};

struct CheckpointReport {
  std::vector<std::string> quantized;           ///< names of the weights in FP8
  std::vector<std::string> copied;              ///< names of all other tensors
  std::vector<std::string> requantized;         ///< weights that were cast anew, with other values
  std::map<std::string, WeightChange> changes;  ///< of each of these
  std::vector<std::string> not_finite;          ///< weights with codes or scales of NaN or infinity
  std::vector<std::string> dropped;   ///< tensors and settings for which the family has no place
  std::vector<LeftAlone> left_alone;  ///< among those copied; by quantize_checkpoint()
  std::int64_t input_bytes = 0;       ///< tensor data read
  std::int64_t output_bytes = 0;      ///< tensor data written
  std::vector<std::filesystem::path> files;  ///< what was written
};

/// Called at the start (with 0) and after each piece, with the bytes of tensor data done so far and
/// in all. An exception that it throws ends the run, and nothing is left behind.
using CheckpointProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// The modules that a library makes of a checkpoint's tensors as it loads them. Without an entry,
/// a module has its name in the files, and matrices `*.weight` are of layers that families know.
struct LoadedModel {
  /// Its linear layers and experts that have another name there, or no weight of their own in the
  /// files, by their name in the files, or their own.
  std::map<std::string, std::string> modules{};
  std::map<std::string, std::string> unreadable{};  ///< weights that it has no FP8 layer for; why
};

struct QuantizeCheckpointOptions {
  /// Glob patterns (`*`, `?`, `[…]`, as in fnmatch): tensors whose names match are copied
  /// unchanged, beside those of default_skip_patterns().
  std::vector<std::string> skip{};
  bool use_default_skips = true;
  CheckpointFamily family = CheckpointFamily::kDeepSeekV3;
  /// Unset: the first of the family's.
  std::optional<Granularity> granularity{};
  Rule rule = Rule::kDeepGemm;
  /// Round scales to powers of two. Unset: as the rule does by itself.
  std::optional<bool> power_of_two{};
  LoadedModel loaded{};
  CheckpointProgress progress{};
};

/// Patterns for embeddings, routers, output heads, and weights that models read past their layers.
OCTOFOLD_API const std::vector<std::string>& default_skip_patterns();

/// Rewrites a safetensors checkpoint with its linear weights in FP8, as the family has them: each
/// 2-D F64, F32, F16 or BF16 `*.weight` that no skip pattern matches, and fused 3-D experts where
/// the family has such. Everything else is copied. A weight that the libraries of the family would
/// read wrong is left alone, with a reason: matrices stored as [in, out] (transformers' Conv1D),
/// experts with biases or stored so, sizes that blocks of 128 do not divide where they have to.
///
/// input: a `.safetensors` file, a `*.safetensors.index.json` of a sharded checkpoint, or a folder
/// with either. output: a path of the same kind, which must not exist yet. An index, or a folder,
/// goes into a folder that does not exist or is empty. All files that lie beside the weights, in
/// folders below too, are copied into it, except weights in other formats, which are logged.
/// config.json gets a `quantization_config`, which names what was left as it is.
/// Memory use does not grow with the checkpoint. The output appears whole or not at all.
/// Weights with NaN or infinity are logged and reported, not refused.
/// Throws Error: kBadFormat for a file that is not valid safetensors; kIo where the system refuses
/// (a full disk …); kInvalidArgument for wrong paths and patterns, for a checkpoint that is
/// quantized already, where no weight would be quantized, for pipelines of Diffusers, for adapters,
/// and for models that the libraries of the family would not load.
/// Format: https://github.com/huggingface/safetensors (README, "Format").
OCTOFOLD_API CheckpointReport quantize_checkpoint(const std::filesystem::path& input,
                                                  const std::filesystem::path& output,
                                                  const QuantizeCheckpointOptions& options = {});

struct ConvertCheckpointOptions {
  CheckpointFamily family = CheckpointFamily::kDeepSeekV3;
  /// The granularity of the weights. Unset, of those in FP8: their own where the family has it,
  /// else the finest of the family's that can repeat their scales, else the family's first.
  std::optional<Granularity> granularity{};
  LoadedModel loaded{};  ///< of which what is unreadable is logged
  CheckpointProgress progress{};
};

/// Converts from one family to another; input, output and errors are those of
/// quantize_checkpoint(). Codes stay what they are, and scales become FP32 in the family's shapes,
/// wherever these can say the same. Other weights (128x128 scales in a family of channels) are cast
/// anew from their values by the rule of Rule::kDeepGemm, logged and reported.
///
/// Weights in small formats are cast with scales of powers of two (times their second scale), by
/// which most or all values stay what they are: `changes` has those that do not. Without a
/// granularity they get the first of 128x128, channel, 1x128 and tensor that the family has and by
/// which all values stay, else the one by which most do; one for all weights in a family that
/// cannot mix. Such weights are read once more for each that is tried. kBadFormat where scales make
/// values that are NaN or infinite. Static scales of FP4 inputs are dropped.
///
/// Scales of
/// inputs are kept where the family has them, else dropped, logged and reported. Scales that are
/// NaN, infinite, negative or zero are logged, and kBadFormat where all of a weight, of inputs or
/// of caches are.
OCTOFOLD_API CheckpointReport convert_checkpoint(const std::filesystem::path& input,
                                                 const std::filesystem::path& output,
                                                 const ConvertCheckpointOptions& options);

}  // namespace octofold
