// Checks of what a cast reads, and of what a norm and its gradient read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "octofold/cast_sources.h"

#include "core/check.h"
#include "core/flatten.h"
#include "ops/inputs.h"

namespace octofold::ops {

inline constexpr std::initializer_list<DType> kNumbers = {DType::kFloat32, DType::kFloat16,
                                                          DType::kBFloat16};

/// A matrix of float32, float16 or bfloat16 that is read, flat.
TensorView checked_numbers(const core::Arguments& check, std::string_view argument,
                           const TensorView& given);

/// A tensor of the same shape, dtype and device as another one, flat.
template <typename View>
View checked_like(const core::Arguments& check, std::string_view argument, const View& given,
                  const TensorView& first) {
  check.require_shape(argument, given, shape_of(first));
  check.require_dtype(argument, given, {first.dtype});
  check.require_same_device(argument, given, first.device);
  return core::flatten(check, argument, given);
}

/// Throws unless `argument` is there exactly where it has to be.
template <typename T>
void require_where(const core::Arguments& check, std::string_view argument,
                   const std::optional<T>& given, bool needed, std::string_view reason) {
  if (given.has_value() == needed) return;
  check.fail(argument, core::format("{} {}", needed ? "one" : "it to be omitted", reason),
             needed ? "none" : "one");
}

void require_norm_kind(const core::Arguments& check, NormKind kind);
void require_mean(const core::Arguments& check, NormKind kind, bool given);

/// Operands for a matrix x join the inputs. Returns the number of batches; 1 without ada_scale and
/// ada_shift.
std::int64_t check_norm_operands(const core::Arguments& check, const NormOperands& operands,
                                 const TensorView& x, Inputs& inputs);

struct CheckedSource {
  CastSource source;                ///< its tensors as matrices and vectors
  DType dtype;                      ///< of the values that are cast
  std::vector<std::int64_t> shape;  ///< of the matrix that is cast, [..., K]
  std::vector<CastInput> inputs;    ///< all that is read, and what a norm writes
};

/// Checks the places and factors of rows gathered from a checked matrix x; the factors become a
/// matrix. On the CPU the places are looked through. What is read joins the inputs.
void check_places(const core::Arguments& check, GatheredRows& rows, Inputs& inputs);

/// On the CPU the places of gathered rows are checked too.
CheckedSource checked_source(const core::Arguments& check, const CastSource& source);

}  // namespace octofold::ops
