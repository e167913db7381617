// The two operations that write checkpoints.
#include "octofold/checkpoint.h"

#include "model/checkpoint_output.h"
#include "model/checkpoint_source.h"
#include "model/contents.h"
#include "model/rewrite_plan.h"

namespace octofold {

namespace fs = std::filesystem;

CheckpointReport quantize_checkpoint(const fs::path& input, const fs::path& output,
                                     const QuantizeCheckpointOptions& options) {
  model::check_output("quantize_checkpoint", input, output);
  const model::CheckpointSource source("quantize_checkpoint", input);
  const model::RewritePlan plan = model::plan_quantization(model::read_contents(source), options);
  return model::write_checkpoint(source, plan,
                                 {.profile = options.profile, .power_of_two = options.power_of_two},
                                 options.progress, output);
}

CheckpointReport convert_checkpoint(const fs::path& input, const fs::path& output,
                                    const ConvertCheckpointOptions& options) {
  model::check_output("convert_checkpoint", input, output);
  const model::CheckpointSource source("convert_checkpoint", input);
  const model::RewritePlan plan = model::plan_conversion(model::read_contents(source), options);
  return model::write_checkpoint(source, plan, {}, options.progress, output);
}

}  // namespace octofold
