#include "ops/cast_targets.h"

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "octofold/cast.h"

#include "core/group_offsets.h"
#include "core/scale_layout.h"
#include "kernels/shared/group_layout.h"
#include "ops/backend.h"
#include "ops/cast_target.h"
#include "ops/scales.h"

namespace octofold::ops {
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

void require_alike_and_apart(const core::Arguments& check, const CastTarget& rows,
                             const CastTarget& transposed) {
  require_one_format(check, rows, transposed);
  const bool given = rows.scales == ScaleSource::kGiven;
  if (const auto refused = plan::refusal_beside(form_of(rows), form_of(transposed), given)) {
    check.fail(refused->argument, refused->expected, refused->got);
  }
  // What is written for one, from what is read for the other.
  const auto require_apart_from = [&](std::string_view argument, const CastTarget& written,
                                      std::string_view name,
                                      const std::optional<TensorView>& read) {
    if (!read) return;
    check.require_disjoint(argument, written.data, name, *read);
    check.require_disjoint(std::string(argument) + ".scale", written.scale, name, *read);
  };
  require_apart_from("out.rows", rows, "out.transposed.channel_scale", transposed.channel_scale);
  require_apart_from("out.rows", rows, "out.transposed.amax", transposed.amax);
  require_apart_from("out.transposed", transposed, "out.rows.channel_scale", rows.channel_scale);
  require_apart_from("out.transposed", transposed, "out.rows.amax", rows.amax);
  check.require_disjoint("out.transposed", transposed.data, "out.rows", rows.data);
  check.require_disjoint("out.transposed", transposed.data, "out.rows.scale", rows.scale);
  check.require_disjoint("out.rows", rows.data, "out.transposed.scale", transposed.scale);
  if (rows.scales == ScaleSource::kGiven) return;  // both may read the same
  check.require_disjoint("out.transposed.scale", transposed.scale, "out.rows.scale", rows.scale);
}

// `rows` and `cols` are those of what is cast, `targets` what is written besides.
ColumnTargets checked_columns(const core::Arguments& check, const ColumnTargets& columns,
                              std::int64_t rows, std::int64_t cols, const CastTargets& targets,
                              std::span<const CastInput> inputs) {
  if (!reduces(columns)) return {};
  Inputs others(check);
  for (const CastInput& input : inputs) others.add(input.argument, input.view);
  const auto add_target = [&](std::string_view argument, std::string_view scale_argument,
                              std::string_view amax_argument,
                              const std::optional<CastTarget>& target) {
    if (!target) return;
    others.add(argument, target->data);
    others.add(scale_argument, target->scale);
    if (target->amax) others.add(amax_argument, *target->amax);
  };
  add_target("out.rows", "out.rows.scale", "out.rows.amax", targets.rows);
  add_target("out.transposed", "out.transposed.scale", "out.transposed.amax", targets.transposed);
  const auto check_written = [&](std::string_view argument, const MutableTensorView& view) {
    check.require_dtype(argument, view, {DType::kFloat32});
    check.require_same_device(argument, view, inputs.front().view.device);
    others.add_output(argument, view);
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
                      : "none without sums and amax of columns",
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

// Of a matrix of so many rows. Returns how many columns the transpose has.
std::int64_t check_groups(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                          Device device) {
  constexpr std::string_view kOffsets = "offsets";
  const std::int64_t groups = core::require_offsets(check, kOffsets, *out.offsets, device);
  if (!out.transposed) {
    check.fail(kOffsets, "none without 'out.transposed', because they decide its layout", "some");
  }
  if (reduces(out.columns)) {
    check.fail("out.columns", "none beside 'offsets', because columns are reduced over all rows",
               "some");
  }
  if (out.rows && out.rows->format.granularity == Granularity::kBlock128x128) {
    check.fail("out.rows",
               "granularity tensor, channel or 1x128 beside 'offsets', because squares could have "
               "rows of two groups",
               name(out.rows->format.granularity));
  }
  if (is_on_cpu(device)) core::require_ascending_offsets(check, kOffsets, *out.offsets, rows);
  return group_columns(rows, groups);
}

// Of `rows` rows in all.
void check_stack(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                 bool is_plain) {
  constexpr std::string_view kMatrices = "matrices";
  if (!is_plain) {
    check.fail(
        kMatrices,
        "none except for a matrix in memory: a source that is computed or gathered is one matrix",
        core::format("{}", *out.matrices));
  }
  if (*out.matrices < 1 || rows % *out.matrices != 0) {
    check.fail(kMatrices, core::format("a number of at least 1 that divides {} rows", rows),
               core::format("{}", *out.matrices));
  }
  if (out.offsets) {
    check.fail("offsets", "none beside 'matrices', which say where the rows of each begin", "some");
  }
  if (reduces(out.columns)) {
    check.fail("out.columns", "none beside 'matrices', because columns are reduced over all rows",
               "some");
  }
}

// Of a stack, if it is one: which of its matrices are used.
void check_used(const core::Arguments& check, const CastTargets& out, Device device) {
  constexpr std::string_view kUsed = "used";
  if (!out.matrices) {
    check.fail(kUsed, "none without 'matrices', of which it says which are cast", "some");
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
                            const CastShape& source) {
  if (!given.rows && !given.transposed) check.fail("out", "rows, transposed or both", "neither");
  CastTargets targets{.offsets = given.offsets, .matrices = given.matrices, .used = given.used};
  const auto shape = source.shape;
  const Device device = source.inputs.front().view.device;
  std::vector<CastInput> inputs(source.inputs.begin(), source.inputs.end());
  if (given.offsets) inputs.push_back({"offsets", *given.offsets});
  if (given.used) inputs.push_back({"used", *given.used});
  const auto leading = shape.first(shape.size() - 1);
  const std::int64_t rows = std::accumulate(leading.begin(), leading.end(), std::int64_t{1},
                                            std::multiplies<std::int64_t>());
  if (given.matrices) check_stack(check, given, rows, source.is_plain);
  if (given.used) check_used(check, given, device);
  if (given.rows) {
    targets.rows = checked_target(check, "out.rows", *given.rows, shape, inputs, given.matrices);
  }
  std::int64_t columns = rows / given.matrices.value_or(1);
  if (given.offsets) columns = check_groups(check, given, rows, device);
  if (given.transposed) {
    std::vector<std::int64_t> transposed_shape{shape.back(), columns};
    if (given.matrices) transposed_shape.insert(transposed_shape.begin(), *given.matrices);
    targets.transposed = checked_target(check, "out.transposed", *given.transposed,
                                        transposed_shape, inputs, given.matrices);
  }
  if (targets.rows && targets.transposed) {
    require_alike_and_apart(check, *targets.rows, *targets.transposed);
  }
  targets.columns = checked_columns(check, given.columns, rows, shape.back(), targets, inputs);
  return targets;
}

config::CastFormat format_of(const core::Arguments& check, const CastTargets& targets, DType in) {
  const CastTarget& target = targets.rows ? *targets.rows : *targets.transposed;
  return format_of(check, target.format, in, target.scales);
}

}  // namespace octofold::ops

namespace octofold {

std::int64_t column_workspace_rows(std::int64_t rows, bool sums, bool amax) {
  if (rows < 0) {
    core::fail(ErrorCode::kInvalidArgument,
               "column_workspace_rows: argument 'rows': expected at least 0, got {}", rows);
  }
  return (int{sums} + int{amax}) * core::ceil_divide(rows, config::kReducedRows);
}

std::int64_t group_columns(std::int64_t rows, std::int64_t groups) {
  if (rows < 0 || groups < 1) {
    core::fail(ErrorCode::kInvalidArgument,
               "group_columns: expected rows of at least 0 in at least 1 group, got {} in {}", rows,
               groups);
  }
  return kScaleBlock * config::group_slots(rows, groups);
}

}  // namespace octofold
