// The checks that a norm and its gradient share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

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

void check_vector(const core::Arguments& check, std::string_view argument, const TensorView& vector,
                  std::initializer_list<DType> dtypes, std::int64_t size, Device device);

/// Throws unless `argument` is there exactly where it has to be.
template <typename T>
void require_where(const core::Arguments& check, std::string_view argument,
                   const std::optional<T>& given, bool needed, std::string_view reason) {
  if (given.has_value() == needed) return;
  check.fail(argument, core::format("{} {}", needed ? "one" : "none", reason),
             needed ? "none" : "one");
}

void require_norm_kind(const core::Arguments& check, NormKind kind);
void require_mean(const core::Arguments& check, NormKind kind, bool given);

/// Operands for a matrix x join the inputs. Returns the number of batches; 1 without ada_scale and
/// ada_shift.
std::int64_t check_norm_operands(const core::Arguments& check, const NormOperands& operands,
                                 const TensorView& x, Inputs& inputs);

}  // namespace octofold::ops
