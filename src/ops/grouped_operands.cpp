#include "ops/grouped_operands.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "octofold/batch_invariant.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "core/scale_layout.h"
#include "kernels/shared/group_bounds.h"
#include "ops/backend.h"
#include "ops/product.h"
#include "plan/product.h"

namespace octofold::ops {
namespace {

using config::Work;

// The first group's part of a tensor, and the distance to the next one's.
struct FirstOfGroups {
  TensorView view;
  std::int64_t stride = 0;
};

FirstOfGroups without_groups(TensorView tensor) {
  const std::int64_t stride = tensor.strides[0];
  for (std::int32_t i = 1; i < tensor.rank; ++i) {
    tensor.shape[i - 1] = tensor.shape[i];
    tensor.strides[i - 1] = tensor.strides[i];
  }
  --tensor.rank;
  return {tensor, stride};
}

// The scale of a stack [G, N, K], by the table of grouped_gemm.h. What has none of its shapes stays
// as it is, for the check to name.
FirstOfGroups scale_of_first(const ScaledTensorView& b) {
  const TensorView& scale = b.scale;
  const std::int64_t groups = b.data.shape[0], rows = b.data.shape[1];
  const bool has_groups = scale.rank >= 1 && scale.shape[0] == groups;
  const GranularityRow unit = row_of(b.granularity);
  if (unit.rows == GranularityRow::kWhole) {
    if (scale.element_count() == 1 || !has_groups || scale.element_count() != groups) {
      return {scale};
    }
    return {{.data = scale.data,
             .dtype = scale.dtype,
             .rank = 1,
             .shape = {1},
             .strides = {1},
             .device = scale.device},
            scale.strides[0]};
  }
  if (has_groups && scale.rank >= 2 && (unit.scales_rows() || scale.rank == 3)) {
    return without_groups(scale);
  }
  if (!unit.scales_rows() && scale.rank == 2 && rows % unit.rows == 0 &&
      scale.shape[0] == groups * (rows / unit.rows)) {
    TensorView first = scale;
    first.shape[0] = rows / unit.rows;
    return {first, first.shape[0] * scale.strides[0]};
  }
  return {scale};
}

TensorView without_rows(TensorView tensor) {
  tensor.shape[0] = 0;
  return tensor;
}

ScaledTensorView checked_a(const core::Arguments& check, std::string_view argument,
                           const ScaledTensorView& a, std::int32_t rank) {
  check.require_sizes(argument, a.data);
  if (a.data.rank != rank) {
    check.fail(argument, core::format("{} dimensions", rank), core::describe(a.data));
  }
  const ScaledTensorView flat = core::flatten(check, argument, a);
  check.require_scaled_input(argument, flat);
  return flat;
}

// a [G, rows, K] as the matrix [G · rows, K]. Scales of rows are those of the first group, and so
// far away the next one's are: in a layout of its own, as DeepGEMM's, whose groups are M-major
// each.
struct MaskedOperand {
  ScaledTensorView flat;
  std::optional<std::int64_t> scale_stride;
};

MaskedOperand checked_masked_a(const core::Arguments& check, const ScaledTensorView& a) {
  const bool scales_rows = row_of(a.granularity).scales_rows();
  const bool has_groups =
      a.data.rank == 3 && a.scale.rank >= 2 &&
      std::equal(a.scale.shape.begin(), a.scale.shape.begin() + 2, a.data.shape.begin());
  if (!scales_rows || !has_groups || a.data.shape[0] == 0) {
    return {checked_a(check, "a", a, 3), std::nullopt};
  }
  check.require_sizes("a.scale", a.scale);
  const auto [scale, stride] = without_groups(a.scale);
  check.require_scaled_input("a", {without_groups(a.data).view, scale, a.granularity});
  const ScaledTensorView flat{core::flatten(check, "a", a.data), scale, a.granularity};
  check.require_input_matrix("a", flat.data);
  return {flat, stride};
}

const std::int32_t* checked_offsets(const core::Arguments& check, const TensorView& offsets,
                                    std::int64_t groups, std::int64_t rows, Device device,
                                    int unit = 1) {
  check.require_shape("groups.offsets", offsets, {groups + 1});
  core::require_offsets(check, "groups.offsets", offsets, device);
  if (is_on_cpu(device)) {
    core::require_ascending_offsets(check, "groups.offsets", offsets, rows, unit);
  }
  return static_cast<const std::int32_t*>(offsets.data);
}

const std::int32_t* checked_counts(const core::Arguments& check, const TensorView& counts,
                                   std::int64_t groups, std::int64_t rows, Device device) {
  check_vector(check, "groups.counts", counts, {DType::kInt32}, groups, device);
  if (is_on_cpu(device)) core::require_counts(check, "groups.counts", counts, rows);
  return static_cast<const std::int32_t*>(counts.data);
}

std::int64_t expected_of(std::int64_t all, std::int64_t groups) {
  return groups == 0 ? 0 : core::ceil_divide(all, groups);
}

void check_products(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b, bool fast_accumulation) {
  check.require_same_device("b", b.data, a.data.device);
  require_depth(check, "b", b.data, "a", a.data);
  require_accumulation(check, a.granularity, b.granularity, fast_accumulation);
}

// A name and what lies there: what says where groups are.
struct Numbers {
  std::string_view argument;
  const TensorView& view;
};

// Checks out and c against `shape`, and sets them as matrices.
void set_output(const core::Arguments& check, const GroupedGemmArguments& given,
                std::span<const std::int64_t> shape, const Numbers& numbers,
                core::Product& product) {
  check.require_shape("out", given.out, shape);
  product.out = core::flatten(check, "out", given.out);
  const std::array inputs{CastInput{"a", given.a.data}, CastInput{"a.scale", given.a.scale},
                          CastInput{"b", given.b.data}, CastInput{"b.scale", given.b.scale},
                          CastInput{std::string(numbers.argument), numbers.view}};
  check_output(check, product.out, inputs);
  if (!given.c) return;
  check.require_shape("c", *given.c, shape);
  product.c = core::flatten(check, "c", *given.c);
  check_c(check, *product.c, product.out);
}

void set_groups(const core::Arguments& check, const GroupedGemmArguments& given,
                const RowGroups& groups, core::Product& product) {
  const std::int64_t columns = set_groups_of_rows(check, given.a, given.b, groups, product);
  const std::array<std::int64_t, 2> shape{product.a.data.shape[0], columns};
  set_output(check, given, shape, {"groups.offsets", groups.offsets}, product);
  product.bias = bias_of_groups(check, given.bias, product.groups.count, product.out);
}

void set_groups(const core::Arguments& check, const GroupedGemmArguments& given,
                const MaskedGroups& groups, core::Product& product) {
  if (given.c) check.fail("c", "it to be omitted beside MaskedGroups", "one");
  const auto [a, a_scale_stride] = checked_masked_a(check, given.a);
  product.a = a;
  const Stack b = checked_stack(check, "b", given.b);
  product.b = b.flat;
  check_products(check, product.a, product.b, given.fast_accumulation);
  product.groups = masked_groups(check, groups, "a", given.a.data, "b", b);
  product.groups.a_scale_stride = a_scale_stride;
  const std::array<std::int64_t, 3> shape{b.count, product.groups.max_rows, b.rows};
  set_output(check, given, shape, {"groups.counts", groups.counts}, product);
  product.bias = bias_of_groups(check, given.bias, b.count, product.out);
}

void set_groups(const core::Arguments& check, const GroupedGemmArguments& given,
                const DepthGroups& groups, core::Product& product) {
  if (given.bias) check.fail("bias", "it to be omitted beside DepthGroups", "one");
  product.a = checked_a(check, "a", given.a, 2);
  product.b = checked_a(check, "b", given.b, 2);
  check_products(check, product.a, product.b, given.fast_accumulation);
  check.require_sizes("out", given.out);
  if (given.out.rank != 3) {
    check.fail("out", "3 dimensions, [groups, M, N]", core::describe(given.out));
  }
  check.require_enumerator("groups.layout", groups.layout);
  const std::int64_t count = given.out.shape[0], columns = product.a.data.shape[1];
  const std::int64_t least = config::blocks_before_group(groups.layout, std::int64_t{0}, count);
  if (columns % kScaleBlock != 0 || columns / kScaleBlock < least) {
    check.fail(
        "a",
        core::format("group_columns() of {} {} groups: a multiple of {} columns, at least {}",
                     count, name(groups.layout), kScaleBlock, least * kScaleBlock),
        core::describe(given.a.data));
  }
  const std::int64_t rows = config::most_rows_of_columns(groups.layout, columns, count);
  product.groups = {
      .work = Work::kGroupedDepth,
      .count = count,
      .numbers = checked_offsets(check, groups.offsets, count, rows, product.a.data.device,
                                 config::offset_unit(groups.layout)),
      .layout = groups.layout,
      .expected_rows = expected_of(rows, count),
      .max_rows = rows};
  const std::array<std::int64_t, 3> shape{count, product.a.data.shape[0], product.b.data.shape[0]};
  set_output(check, given, shape, {"groups.offsets", groups.offsets}, product);
}

}  // namespace

Stack checked_stack(const core::Arguments& check, std::string_view argument,
                    const ScaledTensorView& given) {
  check.require_sizes(argument, given.data);
  if (given.data.rank != 3) {
    check.fail(argument, "3 dimensions, [groups, N, K]", core::describe(given.data));
  }
  check.require_enumerator(core::format("{}.granularity", argument), given.granularity);
  check.require_sizes(core::format("{}.scale", argument), given.scale);
  const auto [scale, stride] = scale_of_first(given);
  const std::int64_t count = given.data.shape[0], rows = given.data.shape[1];
  ScaledTensorView first{core::flatten(check, argument, given.data), scale, given.granularity};
  check.require_input_matrix(argument, first.data);
  ScaledTensorView flat = first;
  first.data = count == 0 ? without_rows(first.data) : first.data;
  if (count > 0) {
    first.data.shape[0] = rows;
    check.require_scaled_input(argument, first);
  }
  return {flat, count, rows, stride};
}

core::Groups row_groups(const core::Arguments& check, const RowGroups& groups, std::int64_t rows,
                        const Stack& stack, Device device) {
  return {.work = Work::kGroupedRows,
          .count = stack.count,
          .numbers = checked_offsets(check, groups.offsets, stack.count, rows, device),
          .scale_stride = stack.scale_stride,
          .expected_rows = expected_of(rows, stack.count),
          .max_rows = rows};
}

core::Groups masked_groups(const core::Arguments& check, const MaskedGroups& groups,
                           std::string_view argument, const TensorView& given,
                           std::string_view stack_argument, const Stack& stack) {
  if (given.shape[0] != stack.count) {
    check.fail(argument, core::format("{} groups as in '{}'", stack.count, stack_argument),
               core::describe(given));
  }
  const std::int64_t rows = given.shape[1], expected = groups.expected_rows.value_or(rows);
  if (expected < 0 || expected > rows) {
    check.fail("groups.expected_rows", core::format("from 0 to {}", rows),
               core::format("{}", expected));
  }
  return {.work = Work::kMaskedRows,
          .count = stack.count,
          .numbers = checked_counts(check, groups.counts, stack.count, rows, given.device),
          .scale_stride = stack.scale_stride,
          .expected_rows = expected,
          .max_rows = rows};
}

std::optional<TensorView> bias_of_groups(const core::Arguments& check,
                                         const std::optional<TensorView>& given,
                                         std::int64_t groups, const MutableTensorView& out) {
  if (!given) return std::nullopt;
  check.require_shape("bias", *given, {groups, out.shape[1]});
  const TensorView bias = core::flatten(check, "bias", *given);
  if (bias.shape[0] > 1 && bias.strides[0] != bias.shape[1]) {
    check.fail("bias", "contiguous rows", core::describe(*given));
  }
  const TensorView flat{.data = bias.data,
                        .dtype = bias.dtype,
                        .rank = 1,
                        .shape = {bias.element_count()},
                        .strides = {1},
                        .device = bias.device};
  check.require_vector("bias", flat);
  check.require_dtype("bias", flat, {out.dtype, DType::kFloat32});
  check.require_same_device("bias", flat, out.device);
  check.require_disjoint("out", out, "bias", flat);
  return flat;
}

std::int64_t set_groups_of_rows(const core::Arguments& check, const ScaledTensorView& a,
                                const ScaledTensorView& given_b, const RowGroups& groups,
                                core::Product& product) {
  product.a = checked_a(check, "a", a, 2);
  const Stack b = checked_stack(check, "b", given_b);
  product.b = b.flat;
  check_products(check, product.a, product.b, product.fast_accumulation);
  product.groups = row_groups(check, groups, product.a.data.shape[0], b, product.a.data.device);
  return b.rows;
}

}  // namespace octofold::ops

namespace octofold {

void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream) {
  const core::Arguments check("grouped_gemm");
  core::Product product{.fast_accumulation = arguments.fast_accumulation,
                        .batch_invariant = arguments.batch_invariant || is_batch_invariant(),
                        .candidate = ops::used_candidate()};
  std::visit([&](const auto& groups) { ops::set_groups(check, arguments, groups, product); },
             arguments.groups);
  ops::run("grouped_gemm", product, stream);
}

}  // namespace octofold
