// Each operation with each form of its operands on each GPU: whether it works, and how.
#pragma once

#include <string>
#include <vector>

#include "octofold/capabilities.h"

#include "plan/gpu.h"
#include "plan/operands.h"

namespace octofold::plan {

struct MatrixRow {
  const OperationRule* rule = nullptr;
  std::vector<Form> forms{};  ///< of its operands
  std::string refused{};      ///< why nothing takes these, where that is so
};

/// The rows of operation_rules(), and of refused forms all that have one operand which is refused.
std::vector<MatrixRow> matrix_rows();

/// On a GPU; `why_not` is what planners throw.
Support support_of(const MatrixRow& row, const Gpu& gpu);
Support support_of_cpu(const MatrixRow& row);

}  // namespace octofold::plan
