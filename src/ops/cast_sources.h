// Checks of what a cast reads.
#pragma once

#include <cstdint>
#include <vector>

#include "octofold/cast_sources.h"

#include "core/check.h"
#include "ops/inputs.h"

namespace octofold::ops {

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
