// The parameters that kernels are called with, made from checked arguments: by launches here, and
// by tests that run kernels on the host. What the planner or the caller chose (how blocks divide
// the work, a configuration's tiles) is an argument where parameters say it again. Only tensor maps
// take a device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cuda/backend.h"
#include "cuda/device.h"
#include "kernels/attention/config/params.h"
#include "kernels/cast/config/params.h"
#include "kernels/cast/config/transpose.h"
#include "kernels/dot/config/dot.h"
#include "kernels/mma/config/config.h"
#include "kernels/norm/config/norm.h"
#include "kernels/rotary/config/rotary.h"
#include "kernels/routing/config/params.h"
#include "kernels/shared/gemm_params.h"
#include "kernels/sm90/config/checks.h"
#include "kernels/weight_only/config/config.h"
#include "kernels/weight_only_sm90/config/config.h"
#include "plan/attention.h"
#include "plan/cast.h"
#include "plan/norm.h"
#include "plan/weight_only.h"

namespace octofold::cuda {

// ---- Products.

/// Parameters of all architectures' kernels. An A that is cast is what it is cast from, without
/// scales. Of a gated product B has the rows of gates and ups, and `out` are the codes. `swapped`:
/// the instruction's rows are B's.
config::GemmParams gemm_params(const core::Product& product, bool swapped);
config::GemmParams params_of(const Device& device, const core::Product& product,
                             const config::MmaGemmConfig& config);
config::Sm90GemmParams params_of(const Device& device, const core::Product& product,
                                 const config::Sm90GemmConfig& config);

/// `splits`: the blocks that share the depth of a tile.
config::WeightOnlyParams weight_only_params(const core::WeightOnlyProduct& product,
                                            std::int64_t splits);
config::WeightOnlyParams params_of(const Device& device, const core::WeightOnlyProduct& product,
                                   const plan::WeightOnlyWork& work);
config::Sm90WeightOnlyParams params_of(const Device& device, const core::WeightOnlyProduct& product,
                                       const config::Sm90WeightOnlyConfig& config);

config::DotParams params_of(const DotArguments& arguments);
config::AttentionParams params_of(const AttentionArguments& arguments,
                                  const plan::AttentionWork& work);

// ---- Casts.

/// A source that is normed has been read by another kernel, which left statistics and sum.
config::CastParams params_of(const CastSource& source, const CastTargets& targets,
                             const config::CastFormat& format);

/// Casts that share the launch of a kernel, as many as parameters hold.
struct CastBatch {
  config::CastBatchParams params{};
  std::int64_t blocks = 0;
};
CastBatch batch_of(std::span<const CheckedCast> casts, const plan::CastConfig& kernel);

config::TransposeParams params_of(const TensorView& x, const MutableTensorView& out,
                                  std::int64_t matrices);

// ---- Norms, embeddings and routing.

/// The kernel writes statistics and sum, and with `y` or `codes` those too.
config::NormParams params_of(const Normed& source, const MutableTensorView* y,
                             const std::optional<CastTarget>& codes);
config::NormBackwardParams params_of(const NormGradientArguments& arguments,
                                     const NormGradients& gradients, const plan::NormSpans& spans);

config::RotaryParams params_of(const RotaryArguments& arguments, const MutableTensorView& y);
config::TopKParams params_of(const TopKArguments& arguments, const TopKOptions& options);
config::TopKGradientParams params_of(const TopKGradientArguments& arguments,
                                     const TopKOptions& options);
config::SortParams params_of(const TensorView& ids, std::int64_t experts, const SortedSlots& out);
config::CombineParams params_of(const CombineArguments& arguments);
config::CombineGradientParams params_of(const CombineGradientArguments& arguments);
config::ActivationDotsParams params_of(const ActivationDotsArguments& arguments);
config::ExpertSumsParams params_of(const ExpertSumsArguments& arguments);

// ---- What is said of slow operands.

/// The cost where TMA cannot address a matrix, as text for the log; null: nothing.
struct SlowPaths {
  const char* operands = nullptr;
  const char* out = nullptr;
};
SlowPaths slow_paths(const config::MmaGemmConfig& config);
SlowPaths slow_paths(const config::Sm90GemmConfig& config);

}  // namespace octofold::cuda
