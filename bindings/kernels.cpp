// Kernels: those that are kept, and those that are chosen.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <type_traits>
#include <vector>

#include "octofold/error.h"
#include "octofold/kernel_cache.h"
#include "octofold/tuning.h"
#include "octofold/types.h"

#include "arguments.h"
#include "export.h"

namespace octofold::bindings {
namespace {

using tvm::ffi::String;
using Progress = tvm::ffi::TypedFunction<void(int64_t, int64_t)>;
using Fields = tvm::ffi::Map<String, tvm::ffi::Any>;

// From "m", "n", "k" and GemmForm's fields by their names: dtypes and granularities as their
// words, an operand as its own and, under "<name>_granularity", that of its scales; of an addend
// the dtype or none. Flags that are left out are false.
GemmProblem problem_of(const Fields& fields) {
  const auto text = [&](const std::string& name) {
    return std::string(view_of(fields.at(name).cast<String>()));
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

// The value of a field that may be left out, or be None.
template <typename T>
std::optional<T> optional_field(const Fields& fields, const char* name) {
  if (fields.count(name) == 0 || fields.at(name) == nullptr) return std::nullopt;
  return fields.at(name).cast<T>();
}

std::optional<std::string> optional_text(const Fields& fields, const char* name) {
  const auto text = optional_field<String>(fields, name);
  if (!text) return std::nullopt;
  return std::string(view_of(*text));
}

Grouping grouping_of(const std::optional<std::string>& text) {
  if (!text) return Grouping::kNone;
  if (*text == "rows") return Grouping::kRows;
  if (*text == "masked") return Grouping::kMasked;
  if (*text == "depth") return Grouping::kDepth;
  throw Error(ErrorCode::kInvalidArgument,
              "argument 'grouping': expected rows, masked or depth, or none, got " + *text);
}

// From the fields of a GemmProblem and, where they are there, "grouping", "groups",
// "expected_rows", "gated", "cast_from" and "batch_invariant".
ProductProblem product_problem_of(const Fields& fields) {
  ProductProblem problem{.product = problem_of(fields),
                         .grouping = grouping_of(optional_text(fields, "grouping")),
                         .groups = optional_field<int64_t>(fields, "groups").value_or(1),
                         .expected_rows = optional_field<int64_t>(fields, "expected_rows")};
  if (const auto gated = optional_text(fields, "gated")) problem.gated = parse_activation(*gated);
  if (const auto type = optional_text(fields, "cast_from")) problem.cast_from = parse_dtype(*type);
  problem.batch_invariant = optional_field<bool>(fields, "batch_invariant").value_or(false);
  return problem;
}

// From "operands_are_aligned", "out_is_aligned" and "c_is_aligned"; true where they are left out.
TensorAlignment alignment_of(const Fields& fields) {
  return {.operands = optional_field<bool>(fields, "operands_are_aligned").value_or(true),
          .out = optional_field<bool>(fields, "out_is_aligned").value_or(true),
          .c = optional_field<bool>(fields, "c_is_aligned").value_or(true)};
}

bool is_weight_only(const Fields& fields) { return fields.count("w") != 0; }

WeightOnlyProblem weight_only_problem_of(const Fields& fields) {
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

TargetGpu target(const String& architecture, int64_t multiprocessors) {
  return {std::string(view_of(architecture)), static_cast<std::int32_t>(multiprocessors)};
}

}  // namespace

tvm::ffi::Bytes kernel_cache_folder() { return bytes_of(octofold::kernel_cache_folder()); }

tvm::ffi::Array<Fields> list_kernel_cache() {
  tvm::ffi::Array<Fields> kernels;
  for (const CachedKernel& kernel : octofold::list_kernel_cache()) {
    const std::chrono::duration<double> written = kernel.written.time_since_epoch();
    kernels.push_back({{"file", bytes_of(kernel.file)},
                       {"bytes", kernel.bytes},
                       {"written", written.count()},
                       {"fault", as_utf8(kernel.fault)},
                       {"description", String(kernel.description)},
                       {"architecture", String(kernel.architecture)},
                       {"registers", kernel.registers}});
  }
  return kernels;
}

tvm::ffi::Array<Fields> list_precompiled_kernels() {
  tvm::ffi::Array<Fields> kernels;
  for (const PrecompiledKernel& kernel : octofold::list_precompiled_kernels()) {
    kernels.push_back({{"bytes", kernel.bytes},
                       {"description", String(kernel.description)},
                       {"architecture", String(kernel.architecture)},
                       {"registers", kernel.registers}});
  }
  return kernels;
}

int clear_kernel_cache() { return octofold::clear_kernel_cache(); }

Fields warm_kernel_cache(tvm::ffi::Array<Fields> problems, String architecture,
                         int32_t multiprocessors, Progress progress) {
  std::vector<GemmProblem> wanted;
  for (const Fields& problem : problems) wanted.push_back(problem_of(problem));
  const WarmReport report = octofold::warm_kernel_cache(
      wanted, {.architecture = std::string(view_of(architecture)),
               .multiprocessors = multiprocessors,
               .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }});
  return {
      {"compiled", report.compiled}, {"found", report.found}, {"precompiled", report.precompiled}};
}

OCTOFOLD_EXPORT(kernel_cache_folder)
OCTOFOLD_EXPORT(list_kernel_cache)
OCTOFOLD_EXPORT(list_precompiled_kernels)
OCTOFOLD_EXPORT(clear_kernel_cache)
OCTOFOLD_EXPORT(warm_kernel_cache)

// `problem`: of a ProductProblem, or of a WeightOnlyProblem, which has a field "w".
tvm::ffi::Array<String> product_candidates(Fields problem, String architecture,
                                           int64_t multiprocessors) {
  const TargetGpu gpu = target(architecture, multiprocessors);
  const std::vector<std::string> found =
      is_weight_only(problem)
          ? octofold::product_candidates(weight_only_problem_of(problem), gpu)
          : octofold::product_candidates(product_problem_of(problem), alignment_of(problem), gpu);
  tvm::ffi::Array<String> names;
  for (const std::string& name : found) names.push_back(name);
  return names;
}

String planned_candidate(Fields problem, String architecture, int64_t multiprocessors) {
  const TargetGpu gpu = target(architecture, multiprocessors);
  return is_weight_only(problem) ? octofold::planned_candidate(weight_only_problem_of(problem), gpu)
                                 : octofold::planned_candidate(product_problem_of(problem), gpu);
}

String tuning_key(Fields problem) {
  return is_weight_only(problem) ? octofold::tuning_key(weight_only_problem_of(problem))
                                 : octofold::tuning_key(product_problem_of(problem));
}

// The table with the names that tuning.py reads.
Fields tuning_table(String gpu, int64_t compute_major, int64_t compute_minor,
                    int64_t multiprocessors) {
  GpuInfo info;
  info.name = view_of(gpu);
  info.compute_major = static_cast<std::int32_t>(compute_major);
  info.compute_minor = static_cast<std::int32_t>(compute_minor);
  info.multiprocessors = static_cast<std::int32_t>(multiprocessors);
  const TuningTable table = octofold::tuning_table(info);
  return {{"file", bytes_of(table.file)},
          {"fault", as_utf8(table.fault)},
          {"products", table.products},
          {"shipped", table.shipped}};
}

OCTOFOLD_EXPORT(product_candidates)
OCTOFOLD_EXPORT(planned_candidate)
OCTOFOLD_EXPORT(tuning_key)
OCTOFOLD_EXPORT(tuning_table)

}  // namespace octofold::bindings
