#include <algorithm>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/check.h"
#include "kernels/shared/arithmetic.h"
#include "plan/cast.h"

namespace octofold::plan {
namespace {

using config::ceil_divide;
using config::ScaleStepConfig;
using config::TileCastConfig;

constexpr std::string_view kBatchHeader = "kernels/cast/batch.h";

std::int64_t batch_blocks_of(const TileCastConfig& /*config*/, const CastProblem& problem) {
  return problem.matrices * ceil_divide(problem.rows_of_matrix(), std::int64_t{kScaleBlock}) *
         ceil_divide(problem.cols, std::int64_t{kScaleBlock});
}

std::int64_t batch_blocks_of(const ScaleStepConfig& config, const CastProblem& problem) {
  std::int64_t units = problem.matrices;
  if (config.format.granularity != Granularity::kTensor) {
    units = std::max(config.to_rows ? problem.rows : 0,
                     config.to_transposed ? problem.matrices * problem.cols : 0);
  }
  return ceil_divide(units, std::int64_t{config.threads()});
}

template <typename Config>
constexpr bool kIsInBatches =
    std::is_same_v<Config, TileCastConfig> || std::is_same_v<Config, ScaleStepConfig>;

KernelPlan batch_kernel_of(const TileCastConfig& config) {
  return kernel_plan("cast_many", kBatchHeader, "tile_batch_kernel", config, 1);
}

KernelPlan batch_kernel_of(const ScaleStepConfig& config) {
  return kernel_plan("cast_many", kBatchHeader, "scale_batch_kernel", config, 1);
}

}  // namespace

std::optional<CastProblem> batch_kind(const CastProblem& problem) {
  const bool is_plain = problem.source.kind == config::SourceKind::kPlain;
  if (!is_plain || problem.columns.any() || problem.groups > 0 || problem.skips_unused ||
      problem.amax_given) {
    return std::nullopt;
  }
  // Sizes that stand for all others: whole vectors are accessed, or they are not.
  const int vector = problem.format.vector();
  const bool rows_fit = !problem.to_rows || problem.cols % vector == 0;
  const bool transposed_fit = !problem.to_transposed || problem.rows_of_matrix() % 8 == 0;
  CastProblem kind = problem;
  kind.rows = 4 * kScaleBlock;
  kind.cols = 2 * kScaleBlock;
  kind.matrices = 2;
  kind.x_is_aligned = problem.x_is_aligned && problem.cols % vector == 0;
  kind.codes_are_aligned = problem.codes_are_aligned && rows_fit && transposed_fit;
  kind.batched = true;
  return kind;
}

CastBatchPlan plan_cast_batch(const CastProblem& kind, const Gpu& gpu) {
  CastBatchPlan plan;
  for (const CastLaunch& launch : cast_launches(kind, gpu)) {
    std::visit(
        [&](const auto& config) {
          if constexpr (kIsInBatches<std::decay_t<decltype(config)>>) {
            plan.kernels.push_back(batch_kernel_of(config));
            plan.config.kernels.push_back(config);
          } else {
            core::fail(ErrorCode::kInternal, "cast_many: no kernel casts {} in batches",
                       describe(config));
          }
        },
        launch.config);
  }
  return plan;
}

std::int64_t batch_blocks(const CastConfig& kernel, const CastProblem& problem) {
  return std::visit(
      [&](const auto& config) -> std::int64_t {
        if constexpr (kIsInBatches<std::decay_t<decltype(config)>>) {
          return batch_blocks_of(config, problem);
        } else {
          return 0;
        }
      },
      kernel);
}

}  // namespace octofold::plan
