// FP8 checkpoints on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octofold/export.h"
#include "octofold/types.h"

namespace octofold {

struct QuantizeCheckpointOptions {
  /// Glob patterns (`*`, `?`, `[…]`, as in fnmatch) on tensor names to copy unchanged, beside
  /// default_skip_patterns().
  std::vector<std::string> skip{};
  bool use_default_skips = true;
  CastProfile profile = CastProfile::kDeepGemm;
  /// Round scales to powers of two. Unset: the profile's own default.
  std::optional<bool> power_of_two{};
  /// Called at the start (0) and after each piece with bytes of tensor data converted so far and in
  /// all. What it throws ends the run: nothing is left behind.
  std::function<void(std::int64_t done, std::int64_t total)> progress{};
};

struct QuantizeCheckpointReport {
  std::vector<std::string> quantized;        ///< names of the weights that are FP8 now
  std::vector<std::string> copied;           ///< names of all other tensors
  std::int64_t input_bytes = 0;              ///< tensor data read
  std::int64_t output_bytes = 0;             ///< tensor data written
  std::vector<std::filesystem::path> files;  ///< what was written
};

/// Embeddings, routers and output heads: what DeepSeek-V3's own FP8 checkpoint leaves unquantized.
OCTOFOLD_API const std::vector<std::string>& default_skip_patterns();

/// Rewrites a safetensors checkpoint with its linear weights in DeepSeek-V3's FP8 layout: each
/// 2-D F32, F16 or BF16 `*.weight` that no skip pattern matches becomes F8_E4M3 with an F32
/// `*.weight_scale_inv` [ceil(N/128), ceil(K/128)] (the multiplier); all else is copied.
///
/// input: a `.safetensors` file, or a `*.safetensors.index.json` of a sharded checkpoint.
/// output: a path of the same kind, which must not exist yet. A sharded output goes into a folder
/// that does not exist or is empty; a config.json beside a sharded input is written there too,
/// with its `quantization_config`.
/// Memory use does not grow with the file. The output appears whole or not at all.
/// Throws Error: kBadFormat for a file that is not valid safetensors, kIo for what the system
/// refuses (a full disk …), kInvalidArgument for paths and patterns and for a checkpoint that is
/// quantized already: one with `*.weight_scale_inv` of a weight to quantize, or a config.json with
/// a `quantization_config`.
/// Format: https://github.com/huggingface/safetensors (README, "Format").
OCTOFOLD_API QuantizeCheckpointReport
quantize_checkpoint(const std::filesystem::path& input, const std::filesystem::path& output,
                    const QuantizeCheckpointOptions& options = {});

}  // namespace octofold
