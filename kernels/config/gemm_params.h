// What the host passes to a GEMM kernel: one struct, by value.
#pragma once

#include "kernels/config/arithmetic.h"

namespace octofold::config {

// A CUtensorMap: opaque, made by cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// Strides count elements. With OperandLoad::kTma the maps of A and B are used, with
// OutputStore::kTma that of D; the pointers otherwise.
struct GemmParams {
  TensorMap a_map;    // uint8 [m, k], box [a_box_rows, 128], 128-byte swizzle
  TensorMap b_map;    // uint8 [n, k], box [tile_n / cluster_m, 128], likewise
  TensorMap out_map;  // [m, n], box [tile_m, SmemLayout::output_box_columns], swizzle of its width

  const unsigned char* a;
  const unsigned char* b;
  long long a_stride;
  long long b_stride;

  // Scale of unit (row, col) at [row * row_stride + col * col_stride]. The units are those of the
  // granularity: kTensor has one, kChannel one column.
  const float* scale_a;
  const float* scale_b;
  long long scale_a_row_stride;
  long long scale_a_col_stride;
  long long scale_b_row_stride;
  long long scale_b_col_stride;

  void* out;
  const void* c;     // [m, n]
  const void* bias;  // [n]
  long long out_stride;
  long long c_stride;

  int m;
  int n;
  int k;
  int a_box_rows;
};

// Rows of A that one block loads for a stage. Where all of A is shorter than a tile, whole swizzle
// atoms that hold it will do: TMA takes its time over rows that are not there (54 µs against 34 for
// 1 row and for 64 at N, K = 7168, 16384 on an H200). What a stage holds in the other rows is of no
// account: their sums are not stored.
constexpr int a_box_rows(int tile_m, int cluster_n, int m) {
  const int needed = round_up(m, 8);
  return cluster_n == 1 && needed < tile_m ? needed : tile_m / cluster_n;
}

}  // namespace octofold::config
