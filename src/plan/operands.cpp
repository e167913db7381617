#include "plan/operands.h"

#include <algorithm>
#include <cstddef>
#include <fmt/ranges.h>
#include <utility>
#include <vector>

#include "octofold/gemm_weight_only.h"
#include "octofold/types.h"

#include "core/format.h"

namespace octofold::plan {
namespace {

constexpr Forms kHalves{Form::kFloat16, Form::kBFloat16};
constexpr OperandRule kDotA{"a", kGranularities | Forms{Form::kNumbers, Form::kCodes}};
constexpr OperandRule kDotB{"b", kDotA.taken};
constexpr OperandRule kVectors{.name = "x",
                               .taken = kGranularities | Forms{Form::kFloat32, Form::kCodes},
                               .most_rows = kMostVectors};
constexpr OperandRule kCast{"out", kGranularities};
constexpr OperandRule kActivated{"x", kGranularities | Forms{Form::kNumbers}};
constexpr OperandRule kA{"a", kGranularities}, kB{"b", kGranularities};
constexpr OperandRule kW{"w", kGranularities};

constexpr OperationRule kRules[] = {
    {"convert_dtype", Operation::kCast, {}},
    {"transpose", Operation::kCast, {}},
    {"quantize", Operation::kCast, {{kCast}}},
    {"cast",
     Operation::kCast,
     {{{"rows", kGranularities}, {"transposed", kGranularities}}},
     [](Form rows, Form transposed) { return refusal_beside(rows, transposed, false); }},
    {"dequantize", Operation::kCast, {{{"x", kGranularities}}}},
    {"cast_activated", Operation::kCast, {{kActivated, kCast}}},
    {"cast_activation_gradient", Operation::kCast, {{kActivated, kCast}}},
    {"cast_gathered", Operation::kCast, {{kCast}}},
    {"cast_normed", Operation::kNorm, {{kCast}}},
    {"norm", Operation::kNorm, {}},
    {"norm_gradient", Operation::kNorm, {}},
    {"rotary", Operation::kRotary, {}},
    {"top_k", Operation::kRouting, {}},
    {"top_k_gradient", Operation::kRouting, {}},
    {"sort_by_expert", Operation::kRouting, {}},
    {"combine", Operation::kRouting, {}},
    {"combine_gradient", Operation::kRouting, {}},
    {"activation_dots", Operation::kRouting, {}},
    {"dot", Operation::kDot, {{kDotA, kDotB}}},
    {"gemm_weight_only", Operation::kWeightOnly, {{{"x", kHalves}, kW}}},
    {"gemm_weight_only", Operation::kWeightOnly, {{kVectors, kW}}},
    {"gemm_weight_only_gradient", Operation::kWeightOnly, {{{"gradient", kHalves}, kW}}},
    {"grouped_gemm_weight_only", Operation::kWeightOnly, {{{"x", kHalves}, kW}}},
    {"grouped_gemm_weight_only_gradient", Operation::kWeightOnly, {{{"gradient", kHalves}, kW}}},
    {"attention", Operation::kAttention, {{{"q", kHalves}, kKeysAndValues}}},
    {"gemm", Operation::kProduct, {{kA, kB}}},
    {"gemm", Operation::kDynamicProduct, {{{"a", {Form::kNumbers}}, kB}}},
    {"grouped_gemm", Operation::kGroupedProduct, {{kA, kB}}},
    {"gated_gemm", Operation::kGatedProduct, {{kGatedA, kGatedB, kGatedOut}}},
};

}  // namespace

std::string_view word(Form form) {
  switch (form) {
    case Form::kNumbers: return "numbers";
    case Form::kFloat32: return "float32";
    case Form::kFloat16: return "float16";
    case Form::kBFloat16: return "bfloat16";
    case Form::kCodes: return "fp8";
    case Form::kTensor: return name(Granularity::kTensor);
    case Form::kChannel: return name(Granularity::kChannel);
    case Form::kBlock1x128: return name(Granularity::kBlock1x128);
    case Form::kBlock128x128: return name(Granularity::kBlock128x128);
    case Form::kHead: return "head";
    case Form::kKeysOfHead: return "128 keys";
  }
  return "?";
}

Form form_of(Granularity granularity) {
  // One after another, in the order of the granularities.
  const auto first = static_cast<unsigned>(Form::kTensor);
  return static_cast<Form>(first + static_cast<unsigned>(row_of(granularity).granularity));
}

std::span<const OperationRule> operation_rules() { return kRules; }

std::optional<Refusal> refusal(const OperandRule& rule, std::string_view argument, Form form) {
  if (rule.taken.has(form)) return std::nullopt;
  std::vector<std::string_view> taken;
  for (const Form each : kForms) {
    if (rule.taken.has(each)) taken.push_back(word(each));
  }
  return Refusal{std::string(argument),
                 core::format("scales of granularity {}", fmt::join(taken, ", ")),
                 std::string(word(form))};
}

// One granularity for both; but beside rows of 1x128 the transpose may be of channels or squares.
std::optional<Refusal> refusal_beside(Form rows, Form transposed, bool scales_given) {
  const bool lines = rows == Form::kBlock1x128;
  const bool by_channel = lines && transposed == Form::kChannel;
  const bool by_squares = lines && !scales_given && transposed == Form::kBlock128x128;
  if (transposed == rows || by_channel || by_squares) return std::nullopt;
  return Refusal{"out.transposed",
                 core::format("granularity {}, as 'out.rows'{}", word(rows),
                              !lines         ? ""
                              : scales_given ? ", or channel (squares are computed with the codes)"
                                             : ", or channel, or 128x128"),
                 std::string(word(transposed))};
}

std::string text(const Refusal& refusal) {
  return core::format("argument '{}': expected {}, got {}", refusal.argument, refusal.expected,
                      refusal.got);
}

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
