// What the host passes to Hopper's GEMM kernel besides the parameters of all: tensor maps, as
// src/cuda/sm90_product.cpp has the driver make them.
#pragma once

#include "kernels/sm90/config/gemm.h"
#include "support/tensor_map_on_host.h"

namespace octofold::test {

template <config::Sm90GemmConfig kConfig>
class Sm90Maps {
  static constexpr config::Sm90SmemLayout kLayout{kConfig};
  static constexpr bool kGroupsOfDepth = kConfig.work == config::Work::kGroupedDepth;

 public:
  explicit Sm90Maps(const config::GemmParams& given) : work_(given.work), params_{given} {}

  config::Sm90GemmParams params() {
    if constexpr (kConfig.load == config::OperandLoad::kTma) encode_operands();
    if constexpr (kConfig.store != config::OutputStore::kDirect) {
      params_.out_map = output(params_.out, params_.out_stride);
    }
    if constexpr (kConfig.prefetches_c()) params_.c_map = output(params_.c, params_.c_stride);
    return params_;
  }

 private:
  void encode_operands() {
    // Of A each group has rows of its own where they are in groups, else all have the same; of B
    // likewise those of all groups lie one after another.
    const bool together = kConfig.work == config::Work::kGroupedRows;
    const int groups = config::groups_rows(kConfig.work) ? work_.groups : 1;
    const int of_a = kConfig.swapped ? work_.columns : work_.rows;
    const int of_b = kConfig.swapped ? work_.rows : work_.columns;
    const int a = of_a * (together ? 1 : groups), b = of_b * groups;
    const int rows = kConfig.swapped ? b : a, columns = kConfig.swapped ? a : b;
    params_.rows_map = operand(params_.rows, rows, kConfig.tile_rows / kConfig.cluster_columns);
    params_.columns_map =
        operand(params_.columns, columns, kConfig.tile_columns / kConfig.cluster_rows);
    params_.last_rows = last_rows();
    if (params_.last_rows != 0) {
      params_.last_rows_map = operand(params_.rows, rows, params_.last_rows);
    }
  }

  int last_rows() const {
    if (kConfig.loads_sub_tiles()) return config::kSubTileRows;
    if (!kConfig.swapped && config::groups_rows(kConfig.work)) return 0;
    return config::last_rows(kConfig.tile_rows, kConfig.cluster_columns, work_.rows);
  }

  config::TensorMap operand(const config::OperandParams& side, int rows, int box_rows) const {
    return tensor_map({.data = const_cast<unsigned char*>(side.data),
                       .element_bytes = 1,
                       .columns = work_.depth,
                       .rows = rows,
                       .matrices = 1,
                       .row_bytes = side.stride,
                       .matrix_bytes = 0,
                       .box_columns = config::kStageDepth,
                       .box_rows = static_cast<unsigned>(box_rows)});
  }

  // Where rows of groups end anywhere, two dimensions count rows: kernels/sm90/store_groups.h.
  config::TensorMap output(const void* data, std::int64_t stride) const {
    const std::int64_t size = size_of(kConfig.form.out), row_bytes = stride * size;
    const std::int64_t columns = kConfig.swapped ? work_.rows : work_.columns;
    std::int64_t rows = kConfig.swapped ? work_.columns : work_.rows;
    if (kGroupsOfDepth || kConfig.work == config::Work::kMaskedRows) rows *= work_.groups;
    const std::int64_t box_rows = kLayout.output_box_rows;
    const bool grouped = kConfig.stores_groups();
    return tensor_map({.data = static_cast<unsigned char*>(const_cast<void*>(data)) -
                               (grouped ? box_rows * row_bytes : 0),
                       .element_bytes = static_cast<unsigned>(size),
                       .columns = columns,
                       .rows = grouped ? box_rows : rows,
                       .matrices = grouped ? rows + 1 : 1,
                       .row_bytes = row_bytes,
                       .matrix_bytes = grouped ? row_bytes : 0,
                       .box_columns = static_cast<unsigned>(kLayout.output_box_columns),
                       .box_rows = static_cast<unsigned>(box_rows)});
  }

  config::WorkParams work_;
  config::Sm90GemmParams params_;
};

template <config::Sm90GemmConfig kConfig>
config::Sm90GemmParams sm90_params(const config::GemmParams& given) {
  return Sm90Maps<kConfig>(given).params();
}

}  // namespace octofold::test
