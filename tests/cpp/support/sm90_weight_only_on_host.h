// Operands of Hopper's kernel for products with FP8 weights, as it runs on the host.
#pragma once

#include "kernels/weight_only_sm90/config/config.h"
#include "support/tensor_map_on_host.h"
#include "support/weight_only_on_host.h"

namespace octofold::test {

// Makes Hopper's parameters from those of the other kernels; `x_rows`: the rows of all groups.
template <config::Sm90WeightOnlyConfig kConfig>
config::Sm90WeightOnlyParams sm90_params_of(const config::WeightOnlyParams& given,
                                            std::int64_t x_rows) {
  const auto map = [](const void* data, unsigned element_bytes, std::int64_t rows,
                      std::int64_t columns, std::int64_t row_bytes, int box_rows) {
    return tensor_map({.data = static_cast<unsigned char*>(const_cast<void*>(data)),
                       .element_bytes = element_bytes,
                       .columns = columns,
                       .rows = rows,
                       .matrices = 1,
                       .row_bytes = row_bytes,
                       .matrix_bytes = 0,
                       .box_columns = 128 / element_bytes,
                       .box_rows = static_cast<unsigned>(box_rows)});
  };
  constexpr bool kTransposed = kConfig.transposed;
  const std::int64_t matrices = kConfig.has_groups() ? given.groups.count : 1;
  const std::int64_t w_rows = matrices * (kTransposed ? given.depth : given.columns);
  return {.w_map = map(given.w, 1, w_rows, kTransposed ? given.columns : given.depth,
                       given.w_stride, kTransposed ? kScaleBlock : kConfig.tile_columns),
          .x_map = map(given.x, 2, x_rows, given.depth, given.x_stride, kConfig.tile_rows),
          .out = given.out,
          .out_stride = given.out_stride,
          .bias = given.bias,
          .bias_is_float32 = given.bias_is_float32,
          .w_scale = given.w_scale,
          .work = {.rows = static_cast<int>(given.rows),
                   .columns = static_cast<int>(given.columns),
                   .depth = static_cast<int>(given.depth),
                   .bands = {.width = config::kNeighbourRows}},
          .groups = given.groups};
}

}  // namespace octofold::test
