// The one table of the operands that each operation may have. Operations refuse by it, and the
// matrix of capabilities() is made from it: each operation with each form of its operands on each
// GPU, whether it works, and how.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octofold/capabilities.h"
#include "octofold/vocabulary.h"

#include "plan/capability.h"
#include "plan/gpu.h"
#include "plan/operands.h"

namespace octofold::plan {

/// Numbers as they are, or FP8 codes and what shares a scale of theirs.
enum class Form : unsigned char {
  kNumbers,  ///< float32, float16 or bfloat16: it makes no difference which
  kFloat32,
  kFloat16,
  kBFloat16,
  kCodes,  ///< FP8 without scales
  kTensor,
  kChannel,
  kBlock1x128,
  kBlock128x128,
  kHead,       ///< of keys and values: a scale for each head
  kKeysOfHead  ///< for 128 keys of a head, or for a page of them
};
inline constexpr Form kForms[] = {Form::kNumbers,  Form::kFloat32,    Form::kFloat16,
                                  Form::kBFloat16, Form::kCodes,      Form::kTensor,
                                  Form::kChannel,  Form::kBlock1x128, Form::kBlock128x128,
                                  Form::kHead,     Form::kKeysOfHead};

/// "bfloat16", "fp8" without scales, "1x128" and so on: for people.
std::string_view word(Form form);

/// The form of codes with scales of this granularity.
Form form_of(Granularity granularity);

/// A set of them.
class Forms {
 public:
  constexpr Forms() = default;
  constexpr Forms(std::initializer_list<Form> forms) {
    for (const Form form : forms) bits_ |= bit(form);
  }
  constexpr bool has(Form form) const { return (bits_ & bit(form)) != 0; }
  constexpr Forms operator|(Forms other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  static constexpr unsigned bit(Form form) { return 1u << static_cast<unsigned>(form); }
  unsigned bits_ = 0;
};

inline constexpr Forms kGranularities{Form::kTensor, Form::kChannel, Form::kBlock1x128,
                                      Form::kBlock128x128};

struct OperandRule {
  std::string_view name;  ///< empty: there is none
  Forms taken;
  Forms refused{};    ///< what one might expect besides
  int most_rows = 0;  ///< 0: any number
};

// Operands that are checked by their rules, as others take every granularity.
inline constexpr OperandRule kGatedA{"a", {Form::kBlock1x128}, kGranularities};
inline constexpr OperandRule kGatedB{"b", {Form::kBlock128x128}, kGranularities};
inline constexpr OperandRule kGatedOut{"out", {Form::kBlock1x128}};
inline constexpr OperandRule kKeysAndValues{
    "k, v", {Form::kCodes, Form::kTensor, Form::kHead, Form::kKeysOfHead}};

/// The expected form of an argument, and the one that came.
struct Refusal {
  std::string argument;
  std::string expected;
  std::string got;
};

/// A public function, and what it takes.
struct OperationRule {
  std::string_view called;
  Operation operation;
  std::array<OperandRule, 3> operands{};
  /// Why forms of the first two operands do not go together, each of which is taken.
  std::optional<Refusal> (*apart)(Form, Form) = nullptr;
};
std::span<const OperationRule> operation_rules();

/// Why the operand may not be of this form. `argument`: its name in the call.
std::optional<Refusal> refusal(const OperandRule& rule, std::string_view argument, Form form);

/// Why the transpose of a cast may not be of this form beside rows of that one.
std::optional<Refusal> refusal_beside(Form rows, Form transposed, bool scales_given);

/// "argument 'b': expected …, got …".
std::string text(const Refusal& refusal);

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
