// Problems of products as maps of fields, which kernel_cache.py and tuning.py make.
#pragma once

#include <optional>
#include <string>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/optional.h>
#include <type_traits>

#include "octofold/error.h"
#include "octofold/tuning.h"
#include "octofold/types.h"

#include "arguments.h"

namespace octofold::bindings {

using Fields = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

/// From "m", "n", "k" and GemmForm's fields by their names: dtypes and granularities as their
/// words, an operand as its own and, under "<name>_granularity", that of its scales; of an addend
/// the dtype or none. Flags that are left out are false.
inline GemmProblem problem_of(const Fields& fields) {
  const auto text = [&](const std::string& name) {
    return std::string(view_of(fields.at(name).cast<tvm::ffi::String>()));
  };
  GemmProblem problem{.m = fields.at("m").cast<int64_t>(),
                      .n = fields.at("n").cast<int64_t>(),
                      .k = fields.at("k").cast<int64_t>()};
  GemmForm& form = problem.form;
  GemmForm::visit_fields(form, [&]<typename Field>(const std::string& name, Field& field) {
    if constexpr (std::is_same_v<Field, Operand>) {
      field = {parse_dtype(text(name)), parse_granularity(text(name + "_granularity"))};
    } else if constexpr (std::is_same_v<Field, DType>) {
      field = parse_dtype(text(name));
    } else if constexpr (std::is_same_v<Field, Addend>) {
      if (fields.at(name) == nullptr) return;
      const DType dtype = parse_dtype(text(name));
      if (dtype != form.out && dtype != DType::kFloat32) {
        throw Error(ErrorCode::kInvalidArgument, "argument '" + name + "': expected dtype " +
                                                     std::string(octofold::name(form.out)) +
                                                     " as 'out' or float32, got " +
                                                     std::string(octofold::name(dtype)));
      }
      field = dtype == form.out ? Addend::kOutputType : Addend::kFloat32;
    } else {
      if (fields.count(name) != 0) field = fields.at(name).cast<bool>();
    }
  });
  return problem;
}

/// The value of a field that may be left out, or be None.
template <typename T>
std::optional<T> optional_field(const Fields& fields, const char* name) {
  if (fields.count(name) == 0 || fields.at(name) == nullptr) return std::nullopt;
  return fields.at(name).cast<T>();
}

inline std::optional<std::string> optional_text(const Fields& fields, const char* name) {
  const auto text = optional_field<tvm::ffi::String>(fields, name);
  if (!text) return std::nullopt;
  return std::string(view_of(*text));
}

inline Grouping grouping_of(const std::optional<std::string>& text) {
  if (!text) return Grouping::kNone;
  if (*text == "rows") return Grouping::kRows;
  if (*text == "masked") return Grouping::kMasked;
  if (*text == "depth") return Grouping::kDepth;
  throw Error(ErrorCode::kInvalidArgument,
              "argument 'grouping': expected rows, masked or depth, or none, got " + *text);
}

/// From the fields of a GemmProblem and, where they are there, "grouping", "groups",
/// "expected_rows", "gated", "cast_from" and "batch_invariant".
inline ProductProblem product_problem_of(const Fields& fields) {
  ProductProblem problem{.product = problem_of(fields),
                         .grouping = grouping_of(optional_text(fields, "grouping")),
                         .groups = optional_field<int64_t>(fields, "groups").value_or(1),
                         .expected_rows = optional_field<int64_t>(fields, "expected_rows")};
  if (const auto gated = optional_text(fields, "gated")) problem.gated = parse_activation(*gated);
  if (const auto type = optional_text(fields, "cast_from")) problem.cast_from = parse_dtype(*type);
  problem.batch_invariant = optional_field<bool>(fields, "batch_invariant").value_or(false);
  return problem;
}

/// From "operands_are_aligned", "out_is_aligned" and "c_is_aligned"; true where they are left out.
inline TensorAlignment alignment_of(const Fields& fields) {
  return {.operands = optional_field<bool>(fields, "operands_are_aligned").value_or(true),
          .out = optional_field<bool>(fields, "out_is_aligned").value_or(true),
          .c = optional_field<bool>(fields, "c_is_aligned").value_or(true)};
}

inline bool is_weight_only(const Fields& fields) { return fields.count("w") != 0; }

inline WeightOnlyProblem weight_only_problem_of(const Fields& fields) {
  const auto size = [&](const char* name) { return fields.at(name).cast<int64_t>(); };
  const auto text = [&](const char* name) { return optional_text(fields, name).value(); };
  return {.m = size("m"),
          .n = size("n"),
          .k = size("k"),
          .w = {parse_dtype(text("w")), parse_granularity(text("w_granularity"))},
          .x = parse_dtype(text("x")),
          .out = parse_dtype(text("out")),
          .gradient = fields.at("gradient").cast<bool>(),
          .grouping = grouping_of(optional_text(fields, "grouping")),
          .groups = optional_field<int64_t>(fields, "groups").value_or(1),
          .expected_rows = optional_field<int64_t>(fields, "expected_rows"),
          .gathered = optional_field<bool>(fields, "gathered").value_or(false),
          .batch_invariant = optional_field<bool>(fields, "batch_invariant").value_or(false)};
}

}  // namespace octofold::bindings
