#include "cpu/grouped_gemm.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octofold/scale_layout.h"

#include "core/scale_layout.h"
#include "cpu/gated_gemm.h"
#include "cpu/gemm.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::cpu {
namespace {

using config::GroupBounds;
using config::Work;

template <typename View>
View rows_of(View matrix, std::int64_t begin, std::int64_t end) {
  using Byte = std::conditional_t<std::is_same_v<decltype(matrix.data), void*>, char, const char>;
  matrix.data = static_cast<Byte*>(matrix.data) + begin * matrix.strides[0] * size_of(matrix.dtype);
  matrix.shape[0] = end - begin;
  return matrix;
}

template <typename View>
View columns_of(View matrix, std::int64_t begin, std::int64_t size) {
  using Byte = std::conditional_t<std::is_same_v<decltype(matrix.data), void*>, char, const char>;
  matrix.data = static_cast<Byte*>(matrix.data) + begin * matrix.strides[1] * size_of(matrix.dtype);
  matrix.shape[1] = size;
  return matrix;
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

ScaledTensorView b_of_group(const core::GroupedProduct& grouped, std::int64_t group) {
  ScaledTensorView b = grouped.product.b;
  const std::int64_t rows = b.data.shape[0] / grouped.groups.count;
  b.data = rows_of(b.data, group * rows, (group + 1) * rows);
  b.scale.data = static_cast<const float*>(b.scale.data) + group * grouped.groups.scale_stride;
  return b;
}

GroupBounds rows_of_group(const core::GroupedProduct& grouped, Work work, std::int64_t group) {
  const std::int32_t* numbers = grouped.groups.numbers;
  if (work == Work::kGroupedRows) return {numbers[group], numbers[group + 1]};
  const auto rows = static_cast<std::int32_t>(grouped.product.out.shape[0] / grouped.groups.count);
  const std::int32_t begin = static_cast<std::int32_t>(group) * rows;
  return {begin, begin + numbers[group]};
}

// Calls compute(group, bounds of its rows, its product) for each group that has rows.
template <typename Compute>
void for_each_group_of_rows(const core::GroupedProduct& grouped, Work work, Compute&& compute) {
  const auto& [product, groups] = grouped;
  const RowScaled a = row_scaled(product.a);
  for (std::int64_t group = 0; group < groups.count; ++group) {
    const auto [begin, end] = rows_of_group(grouped, work, group);
    if (begin == end) continue;
    GemmArguments arguments = product;
    arguments.a = row_slice(a.view, begin, end);
    arguments.b = b_of_group(grouped, group);
    arguments.out = rows_of(product.out, begin, end);
    if (product.c) arguments.c = rows_of(*product.c, begin, end);
    if (product.bias) {
      const std::int64_t columns = product.out.shape[1];
      TensorView& bias = *arguments.bias;
      bias.data = static_cast<const char*>(bias.data) + group * columns * size_of(bias.dtype);
      bias.shape[0] = columns;
    }
    compute(begin, end, arguments);
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

void multiply_groups_of_depth(const core::GroupedProduct& grouped) {
  const auto& [product, groups] = grouped;
  const auto columns = static_cast<int>(product.a.data.shape[1]);
  const std::int64_t rows = product.out.shape[0] / groups.count;
  for (std::int64_t group = 0; group < groups.count; ++group) {
    const GroupBounds depth = config::columns_of_group(groups.numbers, static_cast<int>(group),
                                                       static_cast<int>(groups.count), columns);
    GemmArguments arguments = product;
    arguments.a = columns_of(product.a, depth);
    arguments.b = columns_of(product.b, depth);
    arguments.out = rows_of(product.out, group * rows, (group + 1) * rows);
    if (product.c) arguments.c = rows_of(*product.c, group * rows, (group + 1) * rows);
    cpu::gemm(arguments);
  }
}

}  // namespace

void grouped_gemm(const core::GroupedProduct& grouped, Work work) {
  if (work == Work::kGroupedDepth) return multiply_groups_of_depth(grouped);
  for_each_group_of_rows(
      grouped, work,
      [](std::int64_t, std::int64_t, const GemmArguments& arguments) { cpu::gemm(arguments); });
}

void grouped_gated_gemm(const core::GroupedProduct& grouped, const MutableScaledTensorView& out,
                        Activation activation, const config::CastFormat& format) {
  for_each_group_of_rows(grouped, Work::kGroupedRows,
                         [&](std::int64_t begin, std::int64_t end, const GemmArguments& arguments) {
                           cpu::gated_gemm({.a = arguments.a,
                                            .b = arguments.b,
                                            .out = row_slice(out, begin, end),
                                            .activation = activation},
                                           format);
                         });
}

}  // namespace octofold::cpu
