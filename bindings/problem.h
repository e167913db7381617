// GEMM problems as maps of fields, which python/octofold/kernel_cache.py makes.
#pragma once

#include <optional>
#include <string>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/optional.h>
#include <type_traits>

#include "octofold/error.h"
#include "octofold/gemm.h"
#include "octofold/types.h"

#include "text.h"

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

}  // namespace octofold::bindings
