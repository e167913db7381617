// The parameters that the host passes to every kernel of an FP8 product, and what an epilogue needs
// to know of a kernel.
#pragma once

#include "octofold/gemm_form.h"

#include "kernels/shared/work.h"

namespace octofold::config {

// Scale of unit (row, k) at [row * row_stride + k * k_stride], of a B that each group has its own
// of at [group * group_stride + …], row counted from the group's first. The units are those of the
// granularity: a tensor has one, a channel one k.
struct ScaleParams {
  const float* data;
  long long row_stride;
  long long k_stride;
  long long group_stride{};
};

// A matrix of codes [rows, k], or of what is cast to them. Strides count elements.
struct OperandParams {
  const unsigned char* data;
  long long stride;
  ScaleParams scale;
};

// Scale of unit (row, column) of what is written at [row * row_stride + column * column_stride].
struct OutputScaleParams {
  float* data;
  long long row_stride;
  long long column_stride;
};

// By value. Rows and columns are the instruction's: A's and B's, or B's and A's where a kernel
// swaps them. In a gated product the rows of B that make as many ups lie behind those of the gates.
struct GemmParams {
  OperandParams rows;
  OperandParams columns;
  void* out;  // [rows, columns], or [columns, rows] where they are swapped
  long long out_stride;
  const void* c{};  // likewise
  long long c_stride{};
  const void* bias{};             // [columns], or [groups, columns]
  OutputScaleParams out_scale{};  // of gated outputs: units of 1x128
  WorkParams work;
};

// The template argument of kernels/epilogue: the configuration of a kernel whose warps hold sums of
// sub-tiles, two rows of each to a thread, 8 apart, and of the columns two of eight.
template <typename Config>
concept GemmConfiguration = requires(const Config config) {
  GemmForm{config.form};
  Operand{config.rows()};
  Operand{config.columns()};
  int{config.tile_columns};
  int{config.sub_tiles()};        // of a thread
  int{config.sub_tile_stride()};  // rows from one of them to the next
  bool{config.swapped};
  bool{config.reads_c()};
};

}  // namespace octofold::config
