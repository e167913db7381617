#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octofold/cast_targets.h"
#include "octofold/scale_layout.h"

#include "core/scale_layout.h"
#include "cpu/activations.h"
#include "cpu/backend.h"
#include "cpu/cast.h"
#include "cpu/matrix_product.h"
#include "kernels/shared/arrival_walk.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cpu {
namespace {

using config::GroupBounds;
using config::Work;

// Rows whose codes, or gates and ups, are in memory at one time: enough for all threads.
constexpr std::int64_t kBandRows = 1024;

// Rows that arrive are multiplied in as many at a time.
constexpr int kArrivalRows = 128;

template <typename View>
View columns_of(View matrix, std::int64_t begin, std::int64_t size) {
  matrix = moved(matrix, begin * matrix.strides[1]);
  matrix.shape[1] = size;
  return matrix;
}

// The same rows of everything that has as many as out; those of a are given.
core::Product with_rows(const core::Product& product, const ScaledTensorView& a, std::int64_t begin,
                        std::int64_t end) {
  core::Product rows = product;
  rows.a = a;
  rows.out = rows_of(product.out, begin, end);
  if (product.c) rows.c = rows_of(*product.c, begin, end);
  if (product.gated) rows.gated->scale = rows_of(product.gated->scale, begin, end);
  return rows;
}
core::Product rows_of_product(const core::Product& product, std::int64_t begin, std::int64_t end) {
  ScaledTensorView a = product.a;
  if (product.cast_a) {
    a.data = rows_of(a.data, begin, end);
  } else {
    a = row_slice(a, begin, end);
  }
  return with_rows(product, a, begin, end);
}

void multiply_codes(const core::Product& product) {
  compute<float>({.a = Operand(product.a),
                  .b = Operand(product.b),
                  .out = product.out,
                  .c = product.c,
                  .bias = product.bias});
}

// With the codes of a in memory.
void multiply_cast(const core::Product& product) {
  const std::int64_t rows = product.a.data.shape[0], depth = product.a.data.shape[1];
  const config::CastFormat& format = *product.cast_a;
  const ScaleLayout layout = scale_layout(format.granularity, rows, depth);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * depth));
  std::vector<float> scales(static_cast<std::size_t>(layout.extent()));
  const CastTarget a{matrix<void>(codes.data(), format.out, rows, depth),
                     layout.view(scales.data()),
                     {.dtype = format.out, .granularity = format.granularity}};
  cast_matrix(product.a.data, a, format);
  core::Product of_codes = product;
  of_codes.a = a;
  multiply_codes(of_codes);
}

// With gates and ups in memory.
void multiply_gated(const core::Product& product) {
  const core::GatedEpilogue& gated = *product.gated;
  const std::int64_t rows = product.out.shape[0], columns = product.b.data.shape[0];
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows * columns));
  core::Product both = product;
  both.out = matrix<void>(memory.data(), DType::kBFloat16, rows, columns);
  multiply_codes(both);
  const OwnedMatrix values = activation(both.out, gated.activation, GateLayout::kHalves);
  const Granularity granularity = gated.format.granularity;
  cast_matrix(values.view, {product.out, gated.scale, {product.out.dtype, granularity}},
              gated.format);
}

void multiply_matrices(const core::Product& product) {
  if (!product.cast_a && !product.gated) return multiply_codes(product);
  const std::int64_t rows = product.out.shape[0];
  for (std::int64_t first = 0; first < rows; first += kBandRows) {
    const core::Product band = rows_of_product(product, first, std::min(first + kBandRows, rows));
    product.gated ? multiply_gated(band) : multiply_cast(band);
  }
}

// Shard by shard.
void multiply_arriving(const core::Product& product) {
  const core::Arrivals& arrivals = *product.arrivals;
  const auto rows = static_cast<int>(product.out.shape[0]);
  const auto shards = static_cast<int>(arrivals.shards);
  const config::ArrivalOrder order{.rows = rows,
                                   .shard_rows = rows / shards,
                                   .shards = shards,
                                   .first_shard = static_cast<int>(arrivals.own),
                                   .tile_rows = kArrivalRows};
  for (int count = 0, tile = 0; count < shards; ++count) {
    await_shard("gemm", arrivals, (arrivals.own + count) % shards);
    const int end = order.tiles_of(count + 1);
    while (tile < end) {  // rows on to the last one, then those from 0 on
      const int begin = order.row_of(tile);
      const int most = config::ceil_divide(rows - begin, kArrivalRows);
      const int tiles = std::min(end - tile, most);
      multiply_matrices(
          rows_of_product(product, begin, std::min(begin + tiles * kArrivalRows, rows)));
      tile += tiles;
    }
  }
}

// The same matrix whose rows have a scale each for what 128x128 shares, so that it can be cut
// anywhere.
struct RowScaled {
  std::vector<float> scales;
  ScaledTensorView view;
};

RowScaled row_scaled(const ScaledTensorView& a) {
  RowScaled result{{}, a};
  if (a.granularity != Granularity::kBlock128x128) return result;
  const core::ScaleAccess<const float> scale = core::scale_access(a);
  const std::int64_t rows = a.data.shape[0], columns = a.scale.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      result.scales.push_back(scale(row / kScaleBlock, column));
    }
  }
  result.view.scale = matrix<const void>(result.scales.data(), DType::kFloat32, rows, columns);
  result.view.granularity = Granularity::kBlock1x128;
  return result;
}

// Rows of all groups' a: of a group's own scales where they have such.
ScaledTensorView rows_of_a(const core::Product& product, std::int64_t group, GroupBounds rows) {
  const auto& stride = product.groups.a_scale_stride;
  if (!stride) return row_slice(product.a, rows.begin, rows.end);
  ScaledTensorView a = product.a;
  a.scale = moved(a.scale, group * *stride);
  a.data = rows_of(a.data, rows.begin, rows.end);
  a.scale.shape[0] = rows.end - rows.begin;  // the group's first ones
  return a;
}

void multiply_groups_of_rows(const core::Product& product) {
  const RowScaled a = row_scaled(product.a);
  core::Product all = product;
  all.a = a.view;
  for (std::int64_t group = 0; group < product.groups.count; ++group) {
    const auto [begin, end] = rows_of_group(product.groups, group);
    if (begin == end) continue;
    core::Product one = with_rows(all, rows_of_a(all, group, {begin, end}), begin, end);
    one.b = matrix_of_group(product.groups, product.b, group);
    one.bias = bias_of_group(product.bias, group, product.out.shape[1]);
    multiply_matrices(one);
  }
}

ScaledTensorView columns_of(ScaledTensorView operand, GroupBounds columns) {
  const std::int64_t size = columns.end - columns.begin;
  operand.data = columns_of(operand.data, columns.begin, size);
  if (varies_along_k(operand.granularity)) {
    operand.scale = columns_of(operand.scale, columns.begin / kScaleBlock,
                               core::ceil_divide(size, kScaleBlock));
  }
  return operand;
}

void multiply_groups_of_depth(const core::Product& product) {
  const core::Groups& groups = product.groups;
  const auto count = static_cast<int>(groups.count);
  const auto columns = static_cast<int>(product.a.data.shape[1]);
  const std::int64_t rows = product.out.shape[0] / count;
  for (int group = 0; group < count; ++group) {
    const GroupBounds depth =
        config::columns_of_group(groups.layout, groups.numbers, group, count, columns);
    core::Product one = product;
    one.a = columns_of(product.a, depth);
    one.b = columns_of(product.b, depth);
    one.out = rows_of(product.out, group * rows, (group + 1) * rows);
    if (product.c) one.c = rows_of(*product.c, group * rows, (group + 1) * rows);
    multiply_matrices(one);
  }
}

}  // namespace

void multiply(const core::Product& product) {
  switch (product.groups.work) {
    case Work::kArrivingRows:
    case Work::kDense:
      return product.arrivals ? multiply_arriving(product) : multiply_matrices(product);
    case Work::kGroupedRows:
    case Work::kMaskedRows: return multiply_groups_of_rows(product);
    case Work::kGroupedDepth: return multiply_groups_of_depth(product);
  }
}

}  // namespace octofold::cpu
