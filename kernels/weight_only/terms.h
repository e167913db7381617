// The weights and scales of a group, and the terms that finish a sum: scales that are constant
// along the depth, and the bias.
#pragma once

#include "kernels/numeric/elements.h"
#include "kernels/numeric/vector.h"
#include "kernels/weight_only/config/config.h"

namespace octofold::weight_only {

// The weights of a tile's group, and their scale.
__device__ inline const unsigned char* weights_of(const config::WeightOnlyParams& params,
                                                  int group) {
  return params.w + group * params.groups.w_stride;
}
template <typename Params>
__device__ inline config::WeightOnlyScale scale_of(const Params& params, int group) {
  config::WeightOnlyScale scale = params.w_scale;
  scale.data += group * params.groups.scale_stride;
  return scale;
}

// The end of the rows of a tile's group. For a dense product that is a parameter, which takes no
// register.
template <config::WeightOnlyConfig kConfig>
__device__ inline long long row_end(const config::WeightOnlyParams& params,
                                    const config::WeightOnlyTile& tile) {
  return kConfig.has_groups() ? tile.row_end : params.rows;
}

// The scale of row or column `index` of out; 1 if there is none.
__device__ inline float factor_of(const config::WeightOnlyScale& scale, long long index) {
  return scale.data == nullptr ? 1 : scale.data[(index >> scale.shift) * scale.stride];
}

// The bias of a column, if there is one. `params`: those of a kernel, with `bias` and whether it is
// float32, else kOut.
template <DType kOut, typename Params>
__device__ float bias_of(const Params& params, long long column) {
  if (params.bias_is_float32) return static_cast<const float*>(params.bias)[column];
  const unsigned bits = static_cast<const numeric::Storage<kOut>*>(params.bias)[column];
  float value[1];
  numeric::widen<kOut>(&bits, value);
  return value[0];
}

}  // namespace octofold::weight_only
