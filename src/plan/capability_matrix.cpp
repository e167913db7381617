#include "plan/capability_matrix.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace octofold::plan {
namespace {

bool multiplies_fp8(Operation operation) {
  switch (operation) {
    case Operation::kProduct:
    case Operation::kGroupedProduct:
    case Operation::kGatedProduct:
    case Operation::kDynamicProduct: return true;
    default: return false;
  }
}

// The way that is left for FP8 on a GPU that has no kernels of the operation.
SupportKind instead_of(Operation operation, const Gpu& gpu) {
  const auto has = [&](Operation other) { return why_not(other, gpu).empty(); };
  if (operation == Operation::kProduct && has(Operation::kWeightOnly))
    return SupportKind::kWeightOnly;
  return multiplies_fp8(operation) && has(Operation::kCast) ? SupportKind::kCast
                                                            : SupportKind::kCpu;
}

void add_rows(std::vector<MatrixRow>& rows, const MatrixRow& begun) {
  const OperationRule& rule = *begun.rule;
  const std::size_t at = begun.forms.size();
  if (at == rule.operands.size() || rule.operands[at].name.empty()) {
    MatrixRow row = begun;
    if (row.refused.empty() && rule.apart != nullptr) {
      if (const auto refused = rule.apart(row.forms[0], row.forms[1])) row.refused = text(*refused);
    }
    rows.push_back(std::move(row));
    return;
  }
  const OperandRule& operand = rule.operands[at];
  for (const Form form : kForms) {
    if (!operand.taken.has(form) && !operand.refused.has(form)) continue;
    MatrixRow row = begun;
    row.forms.push_back(form);
    if (const auto refused = refusal(operand, operand.name, form)) {
      if (!row.refused.empty()) continue;
      row.refused = text(*refused);
    }
    add_rows(rows, row);
  }
}

}  // namespace

std::vector<MatrixRow> matrix_rows() {
  std::vector<MatrixRow> rows;
  for (const OperationRule& rule : operation_rules()) add_rows(rows, {.rule = &rule});
  return rows;
}

Support support_of(const MatrixRow& row, const Gpu& gpu) {
  if (!row.refused.empty()) return {SupportKind::kNone, row.refused};
  const Operation operation = row.rule->operation;
  const bool multiplies_bfloat16 = std::ranges::find(row.forms, Form::kBFloat16) != row.forms.end();
  std::string reason = why_not(operation, gpu);
  if (reason.empty() && multiplies_bfloat16) {
    reason = why_not_bfloat16(operation, gpu);
  }
  if (!reason.empty()) return {instead_of(operation, gpu), std::move(reason)};
  return {multiplies_fp8(operation) ? SupportKind::kNative : SupportKind::kKernels, ""};
}

Support support_of_cpu(const MatrixRow& row) {
  if (!row.refused.empty()) return {SupportKind::kNone, row.refused};
  return {SupportKind::kCpu, ""};
}

}  // namespace octofold::plan
