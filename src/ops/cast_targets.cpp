#include "ops/cast_targets.h"

#include <array>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/flatten.h"
#include "core/group_offsets.h"
#include "core/scale_layout.h"
#include "ops/backend.h"
#include "ops/scales.h"

namespace octofold::ops {
namespace {

const config::CastRule& rule_of(const core::Arguments& check, CastProfile profile) {
  switch (profile) {
    case CastProfile::kDeepGemm: return config::kDeepGemmRule;
    case CastProfile::kVllm: return config::kVllmRule;
    case CastProfile::kVllmPerToken: return config::kVllmPerTokenRule;
    case CastProfile::kTransformerEngine: return config::kTransformerEngineRule;
    case CastProfile::kTorchAo: return config::kTorchAoRule;
    case CastProfile::kTorchAoTensor: return config::kTorchAoTensorRule;
    case CastProfile::kDeepSeek: return config::kDeepSeekRule;
    case CastProfile::kCompressedTensors: return config::kCompressedTensorsRule;
    case CastProfile::kCompressedTensors012: return config::kCompressedTensors012Rule;
  }
  check.fail("profile", "a CastProfile", core::format("{}", static_cast<int>(profile)));
}

}  // namespace

MutableScaledTensorView checked_target(const core::Arguments& check, const std::string& argument,
                                       const MutableScaledTensorView& target,
                                       std::span<const std::int64_t> shape,
                                       std::span<const CastInput> inputs, ScaleSource scales,
                                       std::optional<std::int64_t> matrices) {
  check.require_shape(argument, target.data, shape);
  const MutableScaledTensorView out = matrices
                                          ? core::flatten_stack(check, argument, target, *matrices)
                                          : core::flatten(check, argument, target);
  check.require_scaled(argument, out, matrices.value_or(1));
  check.require_same_device(argument, out.data, inputs.front().view.device);
  check.require_disjoint(argument + ".scale", out.scale, argument, out.data);
  if (out.channel_scale) {
    const std::string factors = argument + ".channel_scale";
    check.require_disjoint(argument, out.data, factors, *out.channel_scale);
    check.require_disjoint(argument + ".scale", out.scale, factors, *out.channel_scale);
    if (scales == ScaleSource::kGiven) {
      check.fail(factors, "none beside given scales", "one");
    }
  }
  for (const CastInput& input : inputs) {
    check.require_disjoint(argument, out.data, input.argument, input.view);
    if (scales == ScaleSource::kGiven) continue;
    check.require_disjoint(argument + ".scale", out.scale, input.argument, input.view);
  }
  if (scales == ScaleSource::kComputed) {
    const bool any = out.scale.element_count() > 0;
    for (int i = 0; any && i < out.scale.rank; ++i) {
      if (out.scale.shape[i] > 1 && out.scale.strides[i] == 0) {
        check.fail(argument + ".scale", "scales that do not overlap", core::describe(out.scale));
      }
    }
  }
  return out;
}

namespace {

void require_alike_and_apart(const core::Arguments& check, const MutableScaledTensorView& rows,
                             const MutableScaledTensorView& transposed, ScaleSource scales) {
  check.require_dtype("out.transposed", transposed.data, {rows.data.dtype});
  if (const auto refused =
          plan::refusal_beside(form_of(rows), form_of(transposed), scales == ScaleSource::kGiven)) {
    check.fail(refused->argument, refused->expected, refused->got);
  }
  const auto require_apart_from_factors =
      [&](std::string_view argument, const MutableScaledTensorView& written,
          std::string_view factors, const MutableScaledTensorView& other) {
        if (!other.channel_scale) return;
        check.require_disjoint(argument, written.data, factors, *other.channel_scale);
        check.require_disjoint(std::string(argument) + ".scale", written.scale, factors,
                               *other.channel_scale);
      };
  require_apart_from_factors("out.rows", rows, "out.transposed.channel_scale", transposed);
  require_apart_from_factors("out.transposed", transposed, "out.rows.channel_scale", rows);
  check.require_disjoint("out.transposed", transposed.data, "out.rows", rows.data);
  check.require_disjoint("out.transposed", transposed.data, "out.rows.scale", rows.scale);
  check.require_disjoint("out.rows", rows.data, "out.transposed.scale", transposed.scale);
  if (scales == ScaleSource::kGiven) return;  // both may read the same
  check.require_disjoint("out.transposed.scale", transposed.scale, "out.rows.scale", rows.scale);
}

// `rows` and `cols` are those of what is cast, `out` the targets besides.
ColumnTargets checked_columns(const core::Arguments& check, const ColumnTargets& columns,
                              std::int64_t rows, std::int64_t cols, const CastTargets& out,
                              std::span<const CastInput> inputs) {
  if (!columns.sums && !columns.amax && !columns.workspace) return {};
  std::vector<CastInput> others(inputs.begin(), inputs.end());
  const auto add_target = [&](std::string_view argument, std::string_view scale_argument,
                              const std::optional<MutableScaledTensorView>& target) {
    if (!target) return;
    others.push_back({argument, target->data});
    others.push_back({scale_argument, target->scale});
  };
  add_target("out.rows", "out.rows.scale", out.rows);
  add_target("out.transposed", "out.transposed.scale", out.transposed);
  const auto check_written = [&](std::string_view argument, const MutableTensorView& view) {
    check.require_dtype(argument, view, {DType::kFloat32});
    check.require_same_device(argument, view, inputs.front().view.device);
    for (const CastInput& other : others) {
      check.require_disjoint(argument, view, other.argument, other.view);
    }
    others.push_back({argument, view});
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
               needed ? "one, as sums or amax of columns are wanted"
                      : "none without sums and amax of columns",
               needed ? "none" : "one");
  }
  if (needed) {
    check.require_matrix(kWorkspace, *columns.workspace);
    check.require_shape(
        kWorkspace, *columns.workspace,
        {column_workspace_rows(rows, columns.sums.has_value(), columns.amax.has_value()), cols});
    if (cols > 0 && columns.workspace->shape[0] > 1 && columns.workspace->strides[0] != cols) {
      check.fail(kWorkspace, "contiguous rows", core::describe(*columns.workspace));
    }
    check_written(kWorkspace, *columns.workspace);
  }
  return columns;
}

}  // namespace

std::span<const std::int64_t> shape_of(const TensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

namespace {

// Of a matrix of so many rows. Returns how many columns the transpose has.
std::int64_t check_groups(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                          Device device) {
  constexpr std::string_view kOffsets = "offsets";
  const std::int64_t groups = core::require_offsets(check, kOffsets, *out.offsets, device);
  if (!out.transposed) {
    check.fail(kOffsets, "none without 'out.transposed', whose layout they decide", "some");
  }
  if (out.columns.sums || out.columns.amax) {
    check.fail("out.columns", "none beside 'offsets'", "some");
  }
  if (out.rows && out.rows->granularity == Granularity::kBlock128x128) {
    check.fail("out.rows",
               "granularity tensor, channel or 1x128 beside 'offsets', as squares would have rows "
               "of two groups",
               name(out.rows->granularity));
  }
  if (is_on_cpu(device)) core::require_ascending_offsets(check, kOffsets, *out.offsets, rows);
  return group_columns(rows, groups);
}

// Of `rows` rows in all.
void check_stack(const core::Arguments& check, const CastTargets& out, std::int64_t rows,
                 bool takes_stacks) {
  constexpr std::string_view kMatrices = "matrices";
  if (!takes_stacks) {
    check.fail(kMatrices, "none, as quantize() alone casts stacks",
               core::format("{}", *out.matrices));
  }
  if (*out.matrices < 1 || rows % *out.matrices != 0) {
    check.fail(kMatrices, core::format("a number from 1 on that divides {} rows", rows),
               core::format("{}", *out.matrices));
  }
  if (out.offsets) check.fail("offsets", "none beside 'matrices'", "some");
  if (out.columns.sums || out.columns.amax || out.columns.workspace) {
    check.fail("out.columns", "none beside 'matrices'", "some");
  }
}

}  // namespace

CastTargets checked_targets(const core::Arguments& check, const CastTargets& out,
                            std::span<const std::int64_t> shape, std::span<const CastInput> given,
                            ScaleSource scales, bool takes_stacks) {
  if (!out.rows && !out.transposed) check.fail("out", "rows, transposed or both", "neither");
  CastTargets targets{.offsets = out.offsets, .matrices = out.matrices};
  std::vector<CastInput> inputs(given.begin(), given.end());
  if (out.offsets) inputs.push_back({"offsets", *out.offsets});
  const auto leading = shape.first(shape.size() - 1);
  const std::int64_t rows = std::accumulate(leading.begin(), leading.end(), std::int64_t{1},
                                            std::multiplies<std::int64_t>());
  if (out.matrices) check_stack(check, out, rows, takes_stacks);
  if (out.rows) {
    targets.rows =
        checked_target(check, "out.rows", *out.rows, shape, inputs, scales, out.matrices);
  }
  std::int64_t columns = rows / out.matrices.value_or(1);
  if (out.offsets) columns = check_groups(check, out, rows, inputs.front().view.device);
  if (out.transposed) {
    std::vector<std::int64_t> transposed_shape{shape.back(), columns};
    if (out.matrices) transposed_shape.insert(transposed_shape.begin(), *out.matrices);
    targets.transposed = checked_target(check, "out.transposed", *out.transposed, transposed_shape,
                                        inputs, scales, out.matrices);
  }
  if (targets.rows && targets.transposed) {
    require_alike_and_apart(check, *targets.rows, *targets.transposed, scales);
  }
  targets.columns = checked_columns(check, out.columns, rows, shape.back(), targets, inputs);
  return targets;
}

config::CastFormat format_of(const core::Arguments& check, const QuantizeOptions& options, DType in,
                             const CastTargets& out) {
  check.require_enumerator("overflow", options.overflow);
  const config::CastRule& rule = rule_of(check, options.profile);
  const MutableScaledTensorView& target = out.rows ? *out.rows : *out.transposed;
  const bool given = options.scales == ScaleSource::kGiven;
  if (given && options.power_of_two.value_or(false)) {
    check.fail("power_of_two", "unset or false, as given scales are taken as they are", "true");
  }
  return {.in = in,
          .out = target.data.dtype,
          .granularity = target.granularity,
          .rule = rule,
          .power_of_two = !given && options.power_of_two.value_or(rule.power_of_two_by_default),
          .saturate = options.overflow == Overflow::kSaturate};
}

}  // namespace octofold::ops
