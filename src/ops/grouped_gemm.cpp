#include "octofold/grouped_gemm.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "octofold/tuning.h"

#include "core/check.h"
#include "core/flatten.h"
#include "core/format.h"
#include "core/group_offsets.h"
#include "core/groups.h"
#include "core/scale_layout.h"
#include "cpu/grouped_gemm.h"
#include "cuda/grouped_gemm.h"
#include "ops/backend.h"
#include "ops/cast_target.h"
#include "ops/gated_gemm.h"
#include "ops/gemm.h"
#include "ops/scales.h"
#include "plan/gemm.h"

namespace octofold {
namespace {

using config::Work;

// What of a tensor is the first group's, and how far away the next one's is.
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

// The scale of b [G, N, K], by the table of grouped_gemm.h. What has none of its shapes stays as it
// is, for the check to name.
FirstOfGroups scale_of_first(const ScaledTensorView& b) {
  const TensorView& scale = b.scale;
  const std::int64_t groups = b.data.shape[0], rows = b.data.shape[1];
  const bool has_groups = scale.rank >= 1 && scale.shape[0] == groups;
  switch (b.granularity) {
    case Granularity::kTensor:
      if (scale.element_count() == 1 || !has_groups || scale.element_count() != groups) break;
      return {{.data = scale.data,
               .dtype = scale.dtype,
               .rank = 1,
               .shape = {1},
               .strides = {1},
               .device = scale.device},
              scale.strides[0]};
    case Granularity::kChannel:
    case Granularity::kBlock1x128:
      if (has_groups && scale.rank >= 2) return without_groups(scale);
      break;
    case Granularity::kBlock128x128:
      if (has_groups && scale.rank == 3) return without_groups(scale);
      if (scale.rank == 2 && rows % kScaleBlock == 0 &&
          scale.shape[0] == groups * (rows / kScaleBlock)) {
        TensorView first = scale;
        first.shape[0] = rows / kScaleBlock;
        return {first, first.shape[0] * scale.strides[0]};
      }
      break;
  }
  return {scale};
}

TensorView without_rows(TensorView tensor) {
  tensor.shape[0] = 0;
  return tensor;
}

// b [G, N, K] as the matrix [G · N, K] with the scales of the first group.
struct GroupedOperand {
  ScaledTensorView flat;
  std::int64_t groups, rows, scale_stride;
};

GroupedOperand checked_b(const core::Arguments& check, const ScaledTensorView& b) {
  check.require_sizes("b", b.data);
  if (b.data.rank != 3) {
    check.fail("b", "3 dimensions, [groups, N, K]", core::describe(b.data));
  }
  check.require_enumerator("b.granularity", b.granularity);
  ops::require_scales(check, "b", plan::kGroupedB, ops::form_of(b));
  check.require_sizes("b.scale", b.scale);
  const auto [scale, stride] = scale_of_first(b);
  const std::int64_t groups = b.data.shape[0], rows = b.data.shape[1];
  ScaledTensorView first{core::flatten(check, "b", b.data), scale, b.granularity};
  check.require_input_matrix("b", first.data);
  ScaledTensorView flat = first;
  first.data = groups == 0 ? without_rows(first.data) : first.data;
  if (groups > 0) {
    first.data.shape[0] = rows;
    check.require_scaled_input("b", first);
  }
  return {flat, groups, rows, stride};
}

ScaledTensorView checked_a(const core::Arguments& check, std::string_view argument,
                           const ScaledTensorView& a, std::int32_t rank) {
  check.require_sizes(argument, a.data);
  if (a.data.rank != rank) {
    check.fail(argument, core::format("{} dimensions", rank), core::describe(a.data));
  }
  const ScaledTensorView flat = core::flatten(check, argument, a);
  check.require_scaled_input(argument, flat);
  ops::require_scales(check, argument, plan::kGroupedA, ops::form_of(a));
  return flat;
}

const std::int32_t* checked_offsets(const core::Arguments& check, const TensorView& offsets,
                                    std::int64_t groups, std::int64_t rows, Device device) {
  check.require_shape("offsets", offsets, {groups + 1});
  core::require_offsets(check, "offsets", offsets, device);
  if (ops::is_on_cpu(device)) {
    core::require_ascending_offsets(check, "offsets", offsets, rows);
  }
  return static_cast<const std::int32_t*>(offsets.data);
}

const std::int32_t* checked_counts(const core::Arguments& check, const TensorView& counts,
                                   std::int64_t groups, std::int64_t rows, Device device) {
  check.require_vector("counts", counts);
  check.require_dtype("counts", counts, {DType::kInt32});
  check.require_shape("counts", counts, {groups});
  check.require_same_device("counts", counts, device);
  if (ops::is_on_cpu(device)) core::require_counts(check, "counts", counts, rows);
  return static_cast<const std::int32_t*>(counts.data);
}

std::int64_t expected_of(std::int64_t all, std::int64_t groups) {
  return groups == 0 ? 0 : core::ceil_divide(all, groups);
}

// Of out [.., N], and what is added: checked against `shape`, and as matrices.
struct Output {
  MutableTensorView out;
  std::optional<TensorView> c;
};

Output checked_output(const core::Arguments& check, const MutableTensorView& given,
                      const std::optional<TensorView>& given_c, std::span<const std::int64_t> shape,
                      const ScaledTensorView& a, const ScaledTensorView& b,
                      std::string_view numbers_argument, const TensorView& numbers) {
  check.require_shape("out", given, shape);
  const MutableTensorView out = core::flatten(check, "out", given);
  const std::array inputs{ops::CastInput{"a", a.data}, ops::CastInput{"a.scale", a.scale},
                          ops::CastInput{"b", b.data}, ops::CastInput{"b.scale", b.scale}};
  ops::check_output(check, out, inputs);
  check.require_disjoint("out", out, numbers_argument, numbers);
  if (!given_c) return {out, std::nullopt};
  check.require_shape("c", *given_c, shape);
  const TensorView c = core::flatten(check, "c", *given_c);
  ops::check_c(check, c, out);
  return {out, c};
}

std::optional<TensorView> checked_bias(const core::Arguments& check,
                                       const std::optional<TensorView>& given, std::int64_t groups,
                                       const MutableTensorView& out) {
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

void check_products(const core::Arguments& check, const ScaledTensorView& a,
                    const ScaledTensorView& b, bool fast_accumulation) {
  check.require_same_device("b", b.data, a.data.device);
  ops::require_depth(check, "b", b.data, "a", a.data);
  ops::require_accumulation(check, a.granularity, b.granularity, fast_accumulation);
}

core::GroupedProduct checked(const GroupedGemmArguments& given) {
  const core::Arguments check("grouped_gemm");
  const ScaledTensorView a = checked_a(check, "a", given.a, 2);
  const GroupedOperand b = checked_b(check, given.b);
  check_products(check, a, b.flat, given.fast_accumulation);
  const std::int32_t* numbers =
      checked_offsets(check, given.offsets, b.groups, a.data.shape[0], a.data.device);
  const std::array<std::int64_t, 2> shape{a.data.shape[0], b.rows};
  const auto [out, c] =
      checked_output(check, given.out, given.c, shape, given.a, given.b, "offsets", given.offsets);
  return {.product = {.a = a,
                      .b = b.flat,
                      .out = out,
                      .c = c,
                      .bias = checked_bias(check, given.bias, b.groups, out),
                      .fast_accumulation = given.fast_accumulation},
          .groups = {.count = b.groups,
                     .numbers = numbers,
                     .scale_stride = b.scale_stride,
                     .expected_rows = expected_of(shape[0], b.groups),
                     .most_rows = shape[0]}};
}

core::GroupedProduct checked(const MaskedGemmArguments& given) {
  const core::Arguments check("masked_gemm");
  const ScaledTensorView a = checked_a(check, "a", given.a, 3);
  const GroupedOperand b = checked_b(check, given.b);
  check_products(check, a, b.flat, given.fast_accumulation);
  const std::int64_t rows = given.a.data.shape[1];
  if (given.a.data.shape[0] != b.groups) {
    check.fail("a", core::format("{} groups as in 'b'", b.groups), core::describe(given.a.data));
  }
  const std::int32_t* numbers = checked_counts(check, given.counts, b.groups, rows, a.data.device);
  const std::array<std::int64_t, 3> shape{b.groups, rows, b.rows};
  const auto [out, c] = checked_output(check, given.out, std::nullopt, shape, given.a, given.b,
                                       "counts", given.counts);
  const std::int64_t expected = given.expected_rows.value_or(rows);
  if (expected < 0 || expected > rows) {
    check.fail("expected_rows", core::format("from 0 to {}", rows), core::format("{}", expected));
  }
  return {.product = {.a = a,
                      .b = b.flat,
                      .out = out,
                      .bias = checked_bias(check, given.bias, b.groups, out),
                      .fast_accumulation = given.fast_accumulation},
          .groups = {.count = b.groups,
                     .numbers = numbers,
                     .scale_stride = b.scale_stride,
                     .expected_rows = expected,
                     .most_rows = rows}};
}

core::GroupedProduct checked(const GroupedGemmKArguments& given) {
  const core::Arguments check("grouped_gemm_k");
  const ScaledTensorView a = checked_a(check, "a", given.a, 2);
  const ScaledTensorView b = checked_a(check, "b", given.b, 2);
  check_products(check, a, b, given.fast_accumulation);
  check.require_sizes("out", given.out);
  if (given.out.rank != 3) {
    check.fail("out", "3 dimensions, [groups, M, N]", core::describe(given.out));
  }
  const std::int64_t groups = given.out.shape[0], columns = a.data.shape[1];
  if (columns % kScaleBlock != 0 || columns < groups * kScaleBlock) {
    check.fail("a",
               core::format("group_columns() of {} groups: a multiple of {} columns, at least {}",
                            groups, kScaleBlock, groups * kScaleBlock),
               core::describe(given.a.data));
  }
  const std::int64_t rows = columns - groups * kScaleBlock + kScaleBlock - 1;  // at most
  const std::int32_t* numbers = checked_offsets(check, given.offsets, groups, rows, a.data.device);
  const std::array<std::int64_t, 3> shape{groups, a.data.shape[0], b.data.shape[0]};
  const auto [out, c] =
      checked_output(check, given.out, given.c, shape, given.a, given.b, "offsets", given.offsets);
  return {
      .product = {.a = a, .b = b, .out = out, .c = c, .fast_accumulation = given.fast_accumulation},
      .groups = {.count = groups,
                 .numbers = numbers,
                 .expected_rows = expected_of(rows, groups),
                 .most_rows = rows}};
}

struct CheckedGated {
  core::GroupedProduct grouped;
  CastTarget out;
  config::CastFormat format;
};

CheckedGated checked(const GroupedGatedGemmArguments& given) {
  const core::Arguments check("grouped_gated_gemm");
  ops::require_gated_activation(check, given.activation, given.out);
  const ScaledTensorView a = checked_a(check, "a", given.a, 2);
  const GroupedOperand b = checked_b(check, given.b);
  check_products(check, a, b.flat, false);
  const std::int32_t* numbers =
      checked_offsets(check, given.offsets, b.groups, a.data.shape[0], a.data.device);
  const std::array inputs{ops::CastInput{"a", a.data}, ops::CastInput{"a.scale", a.scale},
                          ops::CastInput{"b", b.flat.data},
                          ops::CastInput{"b.scale", b.flat.scale}};
  const CastTarget out =
      ops::checked_gated_output(check, a, b.flat, b.rows, {a.data.shape[0]}, given.out, inputs);
  return {.grouped = {.product = {.a = a, .b = b.flat, .out = out.data},
                      .groups = {.count = b.groups,
                                 .numbers = numbers,
                                 .scale_stride = b.scale_stride,
                                 .expected_rows = expected_of(a.data.shape[0], b.groups),
                                 .most_rows = a.data.shape[0]}},
          .out = out,
          .format = ops::format_of(check, out.format, DType::kBFloat16)};
}

void require_no_candidate(std::string_view operation, std::string_view candidate) {
  if (candidate.empty()) return;
  core::fail_argument(operation, "candidate", "none for tensors on the CPU, which has one way",
                      candidate);
}

// By the planner's choice where there is no candidate.
void run(std::string_view operation, const core::GroupedProduct& grouped, Work work, Stream stream,
         std::string_view candidate = {}) {
  const Device device = grouped.product.out.device;
  if (ops::is_on_cpu(device)) {
    require_no_candidate(operation, candidate);
    return cpu::grouped_gemm(grouped, work);
  }
  cuda::grouped_gemm(ops::gpu(operation, device), grouped, work, stream, candidate);
}

void run(const CheckedGated& gated, Activation activation, Stream stream,
         std::string_view candidate = {}) {
  const auto& [grouped, out, format] = gated;
  const Device device = out.data.device;
  if (ops::is_on_cpu(device)) {
    require_no_candidate("grouped_gated_gemm", candidate);
    return cpu::grouped_gated_gemm(grouped, out, activation, format);
  }
  cuda::grouped_gated_gemm(ops::gpu("grouped_gated_gemm", device), grouped, out, activation, format,
                           stream, candidate);
}

}  // namespace

void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream) {
  run("grouped_gemm", checked(arguments), Work::kGroupedRows, stream);
}
void grouped_gemm(const GroupedGemmArguments& arguments, Stream stream,
                  std::string_view candidate) {
  run("grouped_gemm", checked(arguments), Work::kGroupedRows, stream, candidate);
}

void masked_gemm(const MaskedGemmArguments& arguments, Stream stream) {
  run("masked_gemm", checked(arguments), Work::kMaskedRows, stream);
}
void masked_gemm(const MaskedGemmArguments& arguments, Stream stream, std::string_view candidate) {
  run("masked_gemm", checked(arguments), Work::kMaskedRows, stream, candidate);
}

void grouped_gemm_k(const GroupedGemmKArguments& arguments, Stream stream) {
  run("grouped_gemm_k", checked(arguments), Work::kGroupedDepth, stream);
}
void grouped_gemm_k(const GroupedGemmKArguments& arguments, Stream stream,
                    std::string_view candidate) {
  run("grouped_gemm_k", checked(arguments), Work::kGroupedDepth, stream, candidate);
}

void grouped_gated_gemm(const GroupedGatedGemmArguments& arguments, Stream stream) {
  run(checked(arguments), arguments.activation, stream);
}
void grouped_gated_gemm(const GroupedGatedGemmArguments& arguments, Stream stream,
                        std::string_view candidate) {
  run(checked(arguments), arguments.activation, stream, candidate);
}

std::vector<std::string> grouped_gemm_candidates(const GemmForm& form, bool groups_depth) {
  ops::require_form("grouped_gemm_candidates", form);
  const plan::GemmProblem problem{.product = {.form = form},
                                  .work = groups_depth ? Work::kGroupedDepth : Work::kGroupedRows};
  std::vector<std::string> names;
  for (plan::GemmCandidate& candidate : plan::gemm_candidates(problem, plan::kHopper)) {
    names.push_back(std::move(candidate.name));
  }
  return names;
}

}  // namespace octofold
