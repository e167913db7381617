// The plan of what each tensor of a checkpoint becomes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/checkpoint.h"

#include "model/families/family.h"

namespace octofold::model {

/// One tensor of the input that is copied, or one weight.
struct Step {
  enum class Kind : std::uint8_t {
    kCopy,        ///< as it is
    kWiden,       ///< FP8 values without scales, to BF16
    kQuantize,    ///< a weight in high precision, to FP8
    kKeep,        ///< a weight in FP8: its codes, and its scales in other words
    kRequantize,  ///< a weight in FP8 or a small format, cast anew
  };
  Kind kind;
  std::string name;         ///< of the weight, or of the tensor
  CheckpointTensor values;  ///< what is copied, or cast; codes, with the shape of their values
  std::optional<CheckpointTensor> scale{};
  std::optional<CheckpointTensor> input_scale{};
  Granularity from = Granularity::kTensor;
  Granularity to = Granularity::kTensor;
  bool full_precision = false;
  std::optional<CheckpointWeight> small{};  ///< of kRequantize, in a small format

  bool is_weight() const { return kind != Kind::kCopy && kind != Kind::kWiden; }
};

struct RewritePlan {
  const Family* family;
  std::vector<Step> steps;           ///< by file of the input, in the order of their data
  std::vector<std::string> dropped;  ///< tensors that the family has no place for
  /// Weights that could have been FP8, and why they are not.
  std::vector<LeftAlone> left_alone{};
  /// The dtype that the model computes in, as safetensors spells it.
  std::string dtype = "BF16";
  bool of_diffusers = false;  ///< config.json is one of Diffusers
  LoadedModel loaded{};
};

/// Throws what quantize_checkpoint() throws of what a checkpoint holds. Warns in the log of
/// patterns that match nothing.
RewritePlan plan_quantization(const CheckpointContents& contents,
                              const QuantizeCheckpointOptions& options);

/// Throws what convert_checkpoint() throws of what a checkpoint holds.
RewritePlan plan_conversion(const CheckpointContents& contents,
                            const ConvertCheckpointOptions& options);

/// The description of the checkpoint that the plan makes.
Description describe(const RewritePlan& plan);

}  // namespace octofold::model
