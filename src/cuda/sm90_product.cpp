#include "cuda/context.h"
#include "cuda/params.h"
#include "cuda/tensor_map.h"
#include "plan/sm90/cost.h"

namespace octofold::cuda {
namespace {

using config::Sm90GemmConfig;
using config::Sm90GemmParams;

// The rows of a box of the last tile of rows, or of several in groups, where any tile may be the
// last of one; 0: no such box is used.
int last_rows_of(const Sm90GemmConfig& config, int rows) {
  if (config.loads_sub_tiles()) return config::kSubTileRows;
  if (!config.swapped && config::groups_rows(config.work)) return 0;
  return config::last_rows(config.tile_rows, config.cluster_columns, rows);
}

void encode_operands(const Driver& driver, const core::Product& product,
                     const Sm90GemmConfig& config, Sm90GemmParams& params) {
  const TensorView& rows = (config.swapped ? product.b : product.a).data;
  const TensorView& columns = (config.swapped ? product.a : product.b).data;
  params.rows_map = encode_tensor_map(driver, rows, config.tile_rows / config.cluster_columns,
                                      config::kStageDepth);
  if (!config.dynamic.exists) {
    params.columns_map = encode_tensor_map(
        driver, columns, config.tile_columns / config.cluster_rows, config::kStageDepth);
  }
  params.last_rows = last_rows_of(config, params.work.rows);
  if (params.last_rows != 0) {
    params.last_rows_map = encode_tensor_map(driver, rows, params.last_rows, config::kStageDepth);
  }
}

void encode_output(const Driver& driver, const core::Product& product, const Sm90GemmConfig& config,
                   Sm90GemmParams& params) {
  const config::Sm90SmemLayout layout(config);
  const auto encode = config.stores_groups() ? encode_grouped_tensor_map : encode_tensor_map;
  params.out_map = encode(driver, product.out, layout.output_box_rows, layout.output_box_columns);
  if (config.prefetches_c()) {
    params.c_map = encode(driver, *product.c, layout.output_box_rows, layout.output_box_columns);
  }
}

}  // namespace

Sm90GemmParams params_of(const Device& device, const core::Product& product,
                         const Sm90GemmConfig& config) {
  Sm90GemmParams params{gemm_params(product, config.swapped)};
  params.work.bands = plan::sm90::bands_of(config, params.work, device.gpu());
  const Driver& driver = device.driver();
  // Tensor maps want one too, and a thread of torch's autograd may have none yet.
  const ContextGuard current(driver, device.context());
  if (config.load == config::OperandLoad::kTma) encode_operands(driver, product, config, params);
  if (config::by_tma(config.store)) encode_output(driver, product, config, params);
  return params;
}

SlowPaths slow_paths(const Sm90GemmConfig& config) {
  SlowPaths paths{.operands = "threads copy the operands, not TMA"};
  if (config.load == config::OperandLoad::kTma) paths.out = "threads store the result, not TMA";
  return paths;
}

}  // namespace octofold::cuda
