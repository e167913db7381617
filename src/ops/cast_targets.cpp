#include "ops/cast_targets.h"

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "octofold/cast.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/scale_layout.h"
#include "kernels/shared/group_bounds.h"
#include "ops/backend.h"

namespace octofold::ops {
namespace {

const config::CastRule& rule_of(const core::Arguments& check, const Format& format) {
  for (const config::CastRuleRow& row : config::kCastRules) {
    if (row.rule == format.rule) return row.of(format.granularity);
  }
  check.fail("rule", "a Rule", core::format("{}", static_cast<int>(format.rule)));
}

void require_scales_apart(const core::Arguments& check, const std::string& argument,
                          const TensorView& scale) {
  if (scale.element_count() == 0) return;
  for (int i = 0; i < scale.rank; ++i) {
    if (scale.shape[i] > 1 && scale.strides[i] == 0) {
      check.fail(argument, "scales that do not overlap", core::describe(scale));
    }
  }
}

// Largest magnitudes, before their shape is looked at.
void check_amax(const core::Arguments& check, const std::string& argument,
                const CastTarget& target) {
  const std::string amax = argument + ".amax";
  if (target.scales == ScaleSource::kGiven) {
    check.fail(amax, "it to be omitted beside given scales, which are taken as they are", "one");
  }
  check.require_enumerator(argument + ".granularity", target.format.granularity);
  if (varies_along_k(target.format.granularity)) {
    check.fail(amax, "it to be omitted, except for units as long as the matrix: tensor, channel",
               core::format("one beside {} scales", name(target.format.granularity)));
  }
}

}  // namespace

CastTarget checked_target(const core::Arguments& check, const std::string& argument,
                          const CastTarget& target, std::span<const std::int64_t> shape,
                          Device device, std::optional<std::int64_t> matrices) {
  check.require_shape(argument, target.data, shape);
  if (target.amax) check_amax(check, argument, target);
  const CastTarget out = matrices ? core::flatten_stack(check, argument, target, *matrices)
                                  : core::flatten(check, argument, target);
  const std::string scale = argument + ".scale";
  check.require_scaled(argument, out, matrices.value_or(1));
  if (out.amax) {
    check.require_scale(argument + ".amax", {out.data, *out.amax, out.format.granularity},
                        matrices.value_or(1));
  }
  if (out.format.dtype != out.data.dtype) {
    check.fail(argument + ".format.dtype", core::format("{}, as its data", name(out.data.dtype)),
               core::format("{}", name(out.format.dtype)));
  }
  check.require_same_device(argument, out.data, device);
  if (out.scales == ScaleSource::kComputed) require_scales_apart(check, scale, out.scale);
  return out;
}

config::CastFormat format_of(const core::Arguments& check, const Format& format, DType in,
                             ScaleSource scales) {
  check.require_enumerator("overflow", format.overflow);
  const config::CastRule& rule = rule_of(check, format);
  const bool given = scales == ScaleSource::kGiven;
  if (given && format.power_of_two.value_or(false)) {
    check.fail("power_of_two", "unset or false, because given scales are taken as they are",
               "true");
  }
  return {.in = in,
          .out = format.dtype,
          .granularity = format.granularity,
          .rule = rule,
          .power_of_two = !given && format.power_of_two.value_or(rule.power_of_two_by_default),
          .saturate = format.overflow == Overflow::kSaturate};
}

namespace {

bool reduces(const ColumnTargets& columns) {
  return columns.sums || columns.amax || columns.workspace;
}

std::string_view word(ScaleSource scales) {
  return scales == ScaleSource::kGiven ? "given" : "computed";
}

std::string word(std::optional<bool> choice) {
  return choice ? core::format("{}", *choice) : std::string("unset");
}

// Names both, where what they say of `argument` is not the same.
void require_equal(const core::Arguments& check, std::string_view argument, std::string_view rows,
                   std::string_view transposed) {
  if (rows == transposed) return;
  check.fail(argument, "one for 'out.rows' and 'out.transposed'",
             core::format("{} and {}", rows, transposed));
}

void require_one_format(const core::Arguments& check, const CastTarget& rows,
                        const CastTarget& transposed) {
  check.require_dtype("out.transposed", transposed.data, {rows.data.dtype});
  const Format &of_rows = rows.format, &of_transpose = transposed.format;
  require_equal(check, "rule", name(of_rows.rule), name(of_transpose.rule));
  require_equal(check, "power_of_two", word(of_rows.power_of_two), word(of_transpose.power_of_two));
  require_equal(check, "overflow", name(of_rows.overflow), name(of_transpose.overflow));
  require_equal(check, "scales", word(rows.scales), word(transposed.scales));
  // Rows of 1x128 find their own.
  const bool alike = of_rows.granularity == of_transpose.granularity;
  if (alike && rows.amax.has_value() != transposed.amax.has_value()) {
    check.fail(rows.amax ? "out.transposed.amax" : "out.rows.amax",
               core::format("one, as '{}' has", rows.amax ? "out.rows" : "out.transposed"), "none");
  }
}

void require_alike(const core::Arguments& check, const CastTarget& rows,
                   const CastTarget& transposed) {
  require_one_format(check, rows, transposed);
  const bool given = rows.scales == ScaleSource::kGiven;
  if (const auto refused = plan::refusal_beside(form_of(rows), form_of(transposed), given)) {
    check.fail(refused->argument, refused->expected, refused->got);
  }
}

// `rows` and `cols` are those of what is cast, `memory` all that is read and written besides.
ColumnTargets checked_columns(const core::Arguments& check, const ColumnTargets& columns,
                              std::int64_t rows, std::int64_t cols, Inputs& memory) {
  if (!reduces(columns)) return {};
  const auto check_written = [&](std::string_view argument, const MutableTensorView& view) {
    check.require_dtype(argument, view, {DType::kFloat32});
    check.require_same_device(argument, view, memory.all().front().view.device);
    memory.add(argument, view, "", true);
  };
  const auto check_result = [&](std::string_view argument,
                                const std::optional<MutableTensorView>& vector) {
    if (!vector) return;
    check.require_vector(argument, *vector);
    check.require_shape(argument, *vector, {cols});
    check_written(argument, *vector);
  };
  check_result("out.columns.sums", columns.sums);
  check_result("out.columns.amax", columns.amax);
  constexpr std::string_view kWorkspace = "out.columns.workspace";
  const bool needed = columns.sums || columns.amax;
  if (columns.workspace.has_value() != needed) {
    check.fail(kWorkspace,
               needed ? "one, because sums or amax of columns are wanted"
                      : "it to be omitted without sums and amax of columns",
               needed ? "none" : "one");
  }
  check.require_matrix(kWorkspace, *columns.workspace);
  check.require_shape(
      kWorkspace, *columns.workspace,
      {column_workspace_rows(rows, columns.sums.has_value(), columns.amax.has_value()), cols});
  if (cols > 0 && columns.workspace->shape[0] > 1 && columns.workspace->strides[0] != cols) {
    check.fail(kWorkspace, "contiguous rows", core::describe(*columns.workspace));
  }
  check_written(kWorkspace, *columns.workspace);
  return columns;
}

// Checks the groups of a matrix of so many rows. Returns how many columns the transpose has.
std::int64_t check_groups(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                          Device device) {
  constexpr std::string_view kOffsets = "offsets";
  const std::int64_t groups = core::require_offsets(check, kOffsets, *out.offsets, device);
  if (!out.transposed) {
    check.fail(kOffsets,
               "it to be omitted without 'out.transposed', because they decide its layout", "some");
  }
  if (reduces(out.columns)) {
    check.fail("out.columns",
               "it to be omitted beside 'offsets', because columns are reduced over all rows",
               "some");
  }
  if (out.rows && out.rows->format.granularity == Granularity::kBlock128x128) {
    check.fail("out.rows",
               "granularity tensor, channel or 1x128 beside 'offsets', because squares could have "
               "rows of two groups",
               name(out.rows->format.granularity));
  }
  check.require_enumerator("group_layout", out.group_layout);
  if (is_on_cpu(device)) {
    core::require_ascending_offsets(check, kOffsets, *out.offsets, rows,
                                    config::offset_unit(out.group_layout));
  }
  return group_columns(rows, groups, out.group_layout);
}

// Checks a stack of `rows` rows in all.
void check_stack(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                 bool is_plain) {
  constexpr std::string_view kMatrices = "matrices";
  if (!is_plain) {
    check.fail(kMatrices,
               "it to be omitted except for a matrix in memory: a source that is computed or "
               "gathered is one matrix",
               core::format("{}", *out.matrices));
  }
  if (*out.matrices < 1 || rows % *out.matrices != 0) {
    check.fail(kMatrices, core::format("a number of at least 1 that divides {} rows", rows),
               core::format("{}", *out.matrices));
  }
  if (out.offsets) {
    check.fail("offsets",
               "it to be omitted beside 'matrices', which say where the rows of each begin",
               "some");
  }
  if (reduces(out.columns)) {
    check.fail("out.columns",
               "it to be omitted beside 'matrices', because columns are reduced over all rows",
               "some");
  }
}

// Checks the offsets that say which matrices of a stack are used; without a stack there are none.
void check_used(const core::Arguments& check, const CastTargets& out, Device device) {
  constexpr std::string_view kUsed = "used";
  if (!out.matrices) {
    check.fail(kUsed, "it to be omitted without 'matrices', of which it says which are cast",
               "some");
  }
  const std::int64_t groups = core::require_offsets(check, kUsed, *out.used, device);
  if (groups != *out.matrices) {
    check.fail(kUsed,
               core::format("{} offsets, one more than there are matrices", *out.matrices + 1),
               core::describe(*out.used));
  }
  if (is_on_cpu(device)) {
    core::require_ascending_offsets(check, kUsed, *out.used,
                                    std::numeric_limits<std::int32_t>::max());
  }
}

}  // namespace

CastTargets checked_targets(const core::Arguments& check, const CastTargets& given,
                            const CastShape& source, Inputs& memory) {
  if (!given.rows && !given.transposed) check.fail("out", "rows, transposed or both", "neither");
  CastTargets targets{.offsets = given.offsets,
                      .group_layout = given.group_layout,
                      .matrices = given.matrices,
                      .used = given.used};
  const auto shape = source.shape;
  const Device device = source.inputs.front().view.device;
  for (const CastInput& input : source.inputs) {
    memory.add(input.argument, input.view, input.part.c_str());
  }
  if (given.offsets) memory.add("offsets", *given.offsets);
  if (given.used) memory.add("used", *given.used);
  const auto leading = shape.first(shape.size() - 1);
  const std::int64_t rows = std::accumulate(leading.begin(), leading.end(), std::int64_t{1},
                                            std::multiplies<std::int64_t>());
  if (given.matrices) check_stack(check, given, rows, source.is_plain);
  if (given.used) check_used(check, given, device);
  if (given.rows) {
    targets.rows = checked_target(check, "out.rows", *given.rows, shape, device, given.matrices);
    memory.add("out.rows", *targets.rows);
  }
  std::int64_t columns = rows / given.matrices.value_or(1);
  if (given.offsets) columns = check_groups(check, given, rows, device);
  if (given.transposed) {
    std::vector<std::int64_t> transposed_shape{shape.back(), columns};
    if (given.matrices) transposed_shape.insert(transposed_shape.begin(), *given.matrices);
    targets.transposed = checked_target(check, "out.transposed", *given.transposed,
                                        transposed_shape, device, given.matrices);
    memory.add("out.transposed", *targets.transposed);
  }
  if (targets.rows && targets.transposed) {
    require_alike(check, *targets.rows, *targets.transposed);
  }
  targets.columns = checked_columns(check, given.columns, rows, shape.back(), memory);
  return targets;
}

config::CastFormat format_of(const core::Arguments& check, const CastTargets& targets, DType in) {
  const CastTarget& target = targets.rows ? *targets.rows : *targets.transposed;
  return format_of(check, target.format, in, target.scales);
}

}  // namespace octofold::ops

namespace octofold {

std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax) {
  core::Arguments("column_workspace_rows").require_size("rows", rows);
  return (int{sums} + int{amax}) * core::ceil_divide(rows, config::kReducedRows);
}

std::int64_t group_columns(std::int64_t rows, std::int64_t groups, GroupLayout layout) {
  const core::Arguments check("group_columns");
  check.require_size("rows", rows);
  check.require_size("groups", groups, 1);
  check.require_enumerator("layout", layout);
  return kScaleBlock * config::blocks_before_group(layout, rows, groups);
}

}  // namespace octofold
