#include "plan/problem_text.h"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <fmt/ranges.h>
#include <limits>
#include <optional>
#include <vector>

#include "octofold/error.h"

#include "core/check.h"
#include "core/format.h"
#include "kernels/shared/arithmetic.h"
#include "kernels/shared/group_bounds.h"

namespace octofold::plan {
namespace {

constexpr DType kCodeTypes[] = {DType::kE4M3, DType::kE5M2};
constexpr DType kHalfTypes[] = {DType::kFloat16, DType::kBFloat16};
constexpr DType kWideTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
constexpr Granularity kGranularities[] = {Granularity::kTensor, Granularity::kChannel,
                                          Granularity::kBlock1x128, Granularity::kBlock128x128};
constexpr Activation kGatedActivations[] = {Activation::kSwiGlu, Activation::kGeGluTanh,
                                            Activation::kGeGluErf, Activation::kSwiGluOss};

// ---- To text.

// Leaves out what of a group follows from the sizes, so that a choice may be for several numbers of
// rows.
template <typename Problem>
std::string text_of_groups(const Problem& problem) {
  switch (problem.work) {
    case config::Work::kDense: return "";
    case config::Work::kGroupedRows: return core::format(", groups {} of rows", problem.groups);
    case config::Work::kMaskedRows:
      return core::format(", groups {} of masked rows, expected {}", problem.groups,
                          problem.expected);
    case config::Work::kGroupedDepth: return core::format(", groups {} of k", problem.groups);
    case config::Work::kArrivingRows: return ", arriving_rows";
  }
  return "";
}

std::string text_of_addend(std::string_view name, Addend addend, DType out) {
  if (addend == Addend::kNone) return "";
  const DType dtype = addend == Addend::kOutputType ? out : DType::kFloat32;
  return core::format(", {} {}", name, octofold::name(dtype));
}

// Empty where tensors are aligned as those that operations allocate.
std::string text_of_alignment(std::string_view tensor, bool is_aligned, bool is_allocated_so) {
  if (is_aligned == is_allocated_so) return "";
  return core::format(", {}_{}", tensor, is_aligned ? "aligned" : "unaligned");
}

// ---- From text.

// The phrases of a text, "name value" or a name alone, each to be taken once.
class Phrases {
 public:
  explicit Phrases(std::string_view text) : text_(text) {
    const std::size_t colon = text.find(": ");
    operation_ = text.substr(0, colon);
    text.remove_prefix(colon == text.npos ? text.size() : colon + 2);
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(", "), text.size());
      phrases_.push_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 2, text.size()));
    }
  }

  std::string_view operation() const { return operation_; }

  [[noreturn]] void fail(std::string_view name, std::string_view expected,
                         std::string_view got) const {
    core::fail(ErrorCode::kInvalidArgument, "problem '{}': '{}': expected {}, got {}", text_, name,
               expected, got);
  }

  std::optional<std::string_view> take(std::string_view name) {
    const auto found = std::ranges::find_if(phrases_, [&](std::string_view phrase) {
      return phrase.starts_with(name) &&
             (phrase.size() == name.size() || phrase[name.size()] == ' ');
    });
    if (found == phrases_.end()) return std::nullopt;
    const std::string_view value = found->substr(std::min(name.size() + 1, found->size()));
    phrases_.erase(found);
    return value;
  }

  bool take_flag(std::string_view name) {
    const auto value = take(name);
    if (value && !value->empty()) fail(name, "nothing behind it", *value);
    return value.has_value();
  }

  std::int64_t number(std::string_view name, std::string_view text, std::int64_t least) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least) {
      fail(name, core::format("a whole number of at least {}", least), text);
    }
    return value;
  }

  std::int64_t take_size(std::string_view name, std::int64_t least) {
    const auto value = take(name);
    if (!value) fail(name, core::format("a whole number of at least {}", least), "none");
    return number(name, *value, least);
  }

  template <typename T, std::size_t kCount>
  T one_of(std::string_view name, std::string_view text, const T (&allowed)[kCount]) const {
    std::vector<std::string_view> names;
    for (const T each : allowed) {
      names.push_back(octofold::name(each));
      if (names.back() == text) return each;
    }
    fail(name, core::format("one of {}", fmt::join(names, ", ")), text);
  }

  template <typename T, std::size_t kCount>
  T take_one_of(std::string_view name, T other, const T (&allowed)[kCount]) {
    const auto value = take(name);
    return value ? one_of(name, *value, allowed) : other;
  }

  // "e4m3 1x128", or a dtype alone.
  Operand take_operand(std::string_view name, Granularity scales) {
    const auto value = take(name);
    if (!value) return {.scales = scales};
    const std::size_t end = std::min(value->find(' '), value->size());
    Operand operand{one_of(name, value->substr(0, end), kCodeTypes), scales};
    if (end < value->size()) operand.scales = one_of(name, value->substr(end + 1), kGranularities);
    return operand;
  }

  Addend take_addend(std::string_view name, DType out) {
    const auto value = take(name);
    if (!value) return Addend::kNone;
    const DType allowed[] = {out, DType::kFloat32};
    return one_of(name, *value, allowed) == out ? Addend::kOutputType : Addend::kFloat32;
  }

  // Sets the work, the groups, and what a group of masked rows is expected to have.
  template <typename Problem>
  void take_groups(Problem& problem, std::int64_t rows) {
    const auto value = take("groups");
    if (!value) return;
    const std::size_t end = std::min(value->find(' '), value->size());
    problem.groups = number("groups", value->substr(0, end), 1);
    const std::string_view kind = value->substr(end);
    if (kind == " of rows") {
      problem.work = config::Work::kGroupedRows;
    } else if (kind == " of masked rows") {
      problem.work = config::Work::kMaskedRows;
      const auto expected = take("expected");
      problem.expected = expected ? number("expected", *expected, 0) : rows;
    } else if (kind == " of k" && std::same_as<Problem, GemmProblem>) {
      problem.work = config::Work::kGroupedDepth;
    } else {
      fail("groups", "a number and 'of rows', 'of masked rows' or, of FP8 products, 'of k'",
           *value);
    }
  }

  // Overwrites what follows from the sizes.
  void take_alignment(std::string_view tensor, bool& is_aligned) {
    if (take_flag(core::format("{}_aligned", tensor))) is_aligned = true;
    if (take_flag(core::format("{}_unaligned", tensor))) is_aligned = false;
  }

  void require_all_taken() const {
    if (phrases_.empty()) return;
    fail(phrases_.front(), "phrases that the operation has, each once, between commas and spaces",
         phrases_.front());
  }

 private:
  std::string_view text_;
  std::string_view operation_{};
  std::vector<std::string_view> phrases_{};
};

// The part of M or of K that a group is expected to have, where nobody says it.
std::int64_t share_of(const GemmProblem& problem) {
  const auto& [m, n, k, form] = problem.product;
  if (problem.work == config::Work::kGroupedRows) return config::ceil_divide(m, problem.groups);
  return config::ceil_divide(config::most_rows_of_columns(GroupLayout::kSpaced, k, problem.groups),
                             problem.groups);
}

void require_consistent(const Phrases& phrases, const GemmForm& form) {
  if (form.fast_accumulation && (varies_along_k(form.a.scales) || varies_along_k(form.b.scales))) {
    phrases.fail("fast_accumulation", "tensor or channel scales of a and b beside it",
                 core::format("{} × {}", name(form.a.scales), name(form.b.scales)));
  }
}

GemmProblem parse_product(Phrases& phrases) {
  const bool is_gated = phrases.operation() == "gated_gemm";
  GemmProblem problem;
  auto& [m, n, k, form] = problem.product;
  m = phrases.take_size("m", 1);
  n = phrases.take_size("n", 1);
  k = phrases.take_size("k", 0);
  form.a = phrases.take_operand("a", Granularity::kBlock1x128);
  form.b = phrases.take_operand("b", Granularity::kBlock128x128);
  form.out = is_gated ? phrases.take_one_of("out", DType::kE4M3, kCodeTypes)
                      : phrases.take_one_of("out", DType::kBFloat16, kWideTypes);
  if (is_gated) {
    problem.gated = {
        .exists = true,
        .activation = phrases.take_one_of("activation", Activation::kSwiGlu, kGatedActivations)};
  } else {
    form.c = phrases.take_addend("c", form.out);
    form.bias = phrases.take_addend("bias", form.out);
    form.fast_accumulation = phrases.take_flag("fast_accumulation");
  }
  if (phrases.operation() == "gemm") {
    if (phrases.take_flag("arriving_rows")) problem.work = config::Work::kArrivingRows;
    if (const auto type = phrases.take("cast_from")) {
      problem.dynamic = {.exists = true, .type = phrases.one_of("cast_from", *type, kWideTypes)};
    }
  } else {
    phrases.take_groups(problem, m);
  }
  if (phrases.operation() == "grouped_gemm" && !config::has_groups(problem.work)) {
    phrases.fail("groups", "a number and 'of rows', 'of masked rows' or 'of k'", "none");
  }
  require_consistent(phrases, form);
  problem.batch_invariant = phrases.take_flag("batch_invariant");
  if (config::has_groups(problem.work) && problem.work != config::Work::kMaskedRows) {
    problem.expected = share_of(problem);
  }
  problem = as_allocated(problem);
  phrases.take_alignment("operands", problem.operands_fit_tma);
  phrases.take_alignment("out", problem.output_fits_tma);
  phrases.take_alignment("c", problem.c_fits_tma);
  return problem;
}

WeightOnlyProblem parse_weight_only(Phrases& phrases) {
  constexpr DType kTypesOfX[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kE4M3,
                                 DType::kE5M2};
  const bool is_grouped = phrases.operation().starts_with("grouped_");
  WeightOnlyProblem problem;
  problem.rows = phrases.take_size("m", 1);
  problem.columns = phrases.take_size("n", 1);
  problem.depth = phrases.take_size("k", 0);
  problem.transposed = phrases.operation().ends_with("_gradient");
  std::string_view x = phrases.take("x").value_or("bfloat16");
  constexpr std::string_view kBlocks = " 1x128";
  if (x.ends_with(kBlocks)) {
    x.remove_suffix(kBlocks.size());
    problem.x_blocks = true;
  }
  if (is_grouped || problem.transposed) {
    problem.x = phrases.one_of("x", x, kHalfTypes);
  } else {
    problem.x =
        problem.x_blocks ? phrases.one_of("x", x, kCodeTypes) : phrases.one_of("x", x, kTypesOfX);
  }
  const Operand w = phrases.take_operand("w", Granularity::kBlock128x128);
  problem.w = w.type;
  problem.w_scales = w.scales;
  problem.out = phrases.take_one_of("out", DType::kBFloat16, kWideTypes);
  if (is_grouped) {
    phrases.take_groups(problem, problem.rows);
    if (!config::has_groups(problem.work)) {
      phrases.fail("groups", "a number and 'of rows' or 'of masked rows'", "none");
    }
    problem.gathered = phrases.take_flag("gathered");
    if (problem.gathered && problem.work != config::Work::kGroupedRows) {
      phrases.fail("gathered", "groups 'of rows' beside it", "groups 'of masked rows'");
    }
  }
  problem.batch_invariant = phrases.take_flag("batch_invariant");
  problem = as_allocated(problem);
  phrases.take_alignment("operands", problem.is_aligned);
  problem.fits_tma = problem.is_aligned && problem.depth > 0;
  phrases.take_alignment("out", problem.out_is_aligned);
  return problem;
}

}  // namespace

std::string text_of(const GemmProblem& problem) {
  const auto& [m, n, k, form] = problem.product;
  const GemmProblem plain = as_allocated(problem);
  std::string text =
      core::format("{}: m {}, n {}, k {}, a {} {}, b {} {}, out {}", operation_of(problem), m, n, k,
                   name(form.a.type), name(form.a.scales), name(form.b.type), name(form.b.scales),
                   name(form.out));
  text += text_of_addend("c", form.c, form.out);
  text += text_of_addend("bias", form.bias, form.out);
  if (form.fast_accumulation) text += ", fast_accumulation";
  if (problem.dynamic.exists) text += core::format(", cast_from {}", name(problem.dynamic.type));
  if (problem.gated.exists) text += core::format(", activation {}", name(problem.gated.activation));
  text += text_of_groups(problem);
  if (problem.batch_invariant) text += ", batch_invariant";
  text += text_of_alignment("operands", problem.operands_fit_tma, plain.operands_fit_tma);
  text += text_of_alignment("out", problem.output_fits_tma, plain.output_fits_tma);
  if (form.c != Addend::kNone) {
    text += text_of_alignment("c", problem.c_fits_tma, plain.c_fits_tma);
  }
  return text;
}

std::string text_of(const WeightOnlyProblem& problem) {
  const WeightOnlyProblem plain = as_allocated(problem);
  std::string text = core::format("{}: m {}, n {}, k {}, x {}{}, w {} {}, out {}",
                                  operation_of(problem), problem.rows, problem.columns,
                                  problem.depth, name(problem.x), problem.x_blocks ? " 1x128" : "",
                                  name(problem.w), name(problem.w_scales), name(problem.out));
  text += text_of_groups(problem);
  if (problem.gathered) text += ", gathered";
  if (problem.batch_invariant) text += ", batch_invariant";
  text += text_of_alignment("operands", problem.is_aligned, plain.is_aligned);
  text += text_of_alignment("out", problem.out_is_aligned, plain.out_is_aligned);
  return text;
}

std::variant<GemmProblem, WeightOnlyProblem> parse_problem(std::string_view text) {
  constexpr std::string_view kProducts[] = {"gemm", "grouped_gemm", "gated_gemm"};
  constexpr std::string_view kWeightOnly[] = {"gemm_weight_only", "gemm_weight_only_gradient",
                                              "grouped_gemm_weight_only",
                                              "grouped_gemm_weight_only_gradient"};
  Phrases phrases(text);
  std::variant<GemmProblem, WeightOnlyProblem> problem;
  if (std::ranges::find(kProducts, phrases.operation()) != std::end(kProducts)) {
    problem = parse_product(phrases);
  } else if (std::ranges::find(kWeightOnly, phrases.operation()) != std::end(kWeightOnly)) {
    problem = parse_weight_only(phrases);
  } else {
    phrases.fail("operation",
                 core::format("one of {}, {}, and ': ' behind it", fmt::join(kProducts, ", "),
                              fmt::join(kWeightOnly, ", ")),
                 phrases.operation());
  }
  phrases.require_all_taken();
  return problem;
}

std::string complete(std::string_view text) {
  return std::visit([](const auto& problem) { return text_of(problem); }, parse_problem(text));
}

}  // namespace octofold::plan
