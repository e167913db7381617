#include "plan/tuning.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "plan/fields.h"

namespace octofold::plan {
namespace {

using nlohmann::json;

[[noreturn]] void fail(ErrorCode code, std::string_view field, std::string_view expected,
                       std::string_view got) {
  core::fail(code, "'{}': expected {}, got {}", field, expected, got);
}

const json& field_of(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) fail(ErrorCode::kBadFormat, name, "a value", "none");
  return *found;
}

std::string text_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_string()) fail(ErrorCode::kBadFormat, name, "text", value.type_name());
  return value.get<std::string>();
}

std::int64_t number_of(const json& object, const char* name) {
  const json& value = field_of(object, name);
  if (!value.is_number_integer()) {
    fail(ErrorCode::kBadFormat, name, "a whole number", value.type_name());
  }
  return value.get<std::int64_t>();
}

void require_same(const char* field, std::string_view here, std::string_view theirs) {
  if (here != theirs) fail(ErrorCode::kUnsupported, field, here, theirs);
}

// Addresses count, and of a C whether it is out: these do not change which candidates there are.
bool is_contiguous(const GemmProblem& problem) {
  GemmProblem plain = as_allocated(problem);
  plain.c_is_out = problem.c_is_out;
  if (problem.product.form.c == Addend::kNone) plain.c_fits_tma = problem.c_fits_tma;
  return plain == problem;
}

constexpr std::string_view kOperations[] = {"gemm",
                                            "grouped_gemm",
                                            "gated_gemm",
                                            "gemm_weight_only",
                                            "gemm_weight_only_gradient",
                                            "grouped_gemm_weight_only",
                                            "grouped_gemm_weight_only_gradient"};

struct Key {
  std::int64_t rows = 0;
  std::string rest{};
};

// "gemm: m 64, n 7168, …" as 64 and "gemm, n 7168, …".
std::optional<Key> split(std::string_view key) {
  constexpr std::string_view kRows = ": m ";
  const std::size_t at = key.find(kRows);
  if (at == key.npos) return std::nullopt;
  const std::string_view operation = key.substr(0, at);
  if (std::ranges::find(kOperations, operation) == std::end(kOperations)) return std::nullopt;
  key.remove_prefix(at + kRows.size());
  Key parts;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), parts.rows);
  if (error != std::errc()) return std::nullopt;
  key.remove_prefix(static_cast<std::size_t>(end - key.data()));
  parts.rest = core::format("{}{}", operation, key);
  return parts;
}

// The text leaves out what of a group follows from the sizes, so that a choice may be for several
// numbers of rows.
template <typename Problem>
std::string text_of_groups(const Problem& problem) {
  if (problem.work == config::Work::kDense) return "";
  std::string text = core::format(", {}", word(problem.work));
  if (!config::has_groups(problem.work)) return text;
  text += core::format(", groups {}", problem.groups);
  if (problem.work == config::Work::kMaskedRows) {
    text += core::format(", expected {}", problem.expected);
  }
  return text;
}

}  // namespace

std::string tuning_key(const GemmProblem& problem) {
  std::string key = core::format("{}: {}", operation_of(problem), describe(problem.product));
  if (problem.dynamic.exists) key += core::format(", cast from {}", name(problem.dynamic.type));
  if (problem.gated.exists) key += core::format(", {}", word(problem.gated));
  key += text_of_groups(problem);
  return problem.batch_invariant ? key + ", batch-invariant" : key;
}

std::string tuning_key(const WeightOnlyProblem& problem) {
  return core::format(
      "{}: m {}, n {}, k {}, x {}{}, w {} {}, out {}{}{}{}", operation_of(problem), problem.rows,
      problem.columns, problem.depth, name(problem.x), problem.x_blocks ? " 1x128" : "",
      name(problem.w), name(problem.w_scales), name(problem.out), text_of_groups(problem),
      problem.gathered ? ", gathered" : "", problem.batch_invariant ? ", batch-invariant" : "");
}

Tuning::Tuning(std::string_view text, const Gpu& gpu, std::string_view gpu_name) {
  const json table = json::parse(text, nullptr, false);
  if (!table.is_object()) {
    fail(ErrorCode::kBadFormat, "text", "a JSON object",
         table.is_discarded() ? "no JSON" : table.type_name());
  }
  require_same("octofold", OCTOFOLD_VERSION, text_of(table, "octofold"));
  require_same("gpu", gpu_name, text_of(table, "gpu"));
  require_same("compute_capability", core::format("{}.{}", gpu.compute_major, gpu.compute_minor),
               text_of(table, "compute_capability"));
  require_same("multiprocessors", core::format("{}", gpu.multiprocessors),
               core::format("{}", number_of(table, "multiprocessors")));
  const json& products = field_of(table, "products");
  if (!products.is_object()) {
    fail(ErrorCode::kBadFormat, "products", "an object", products.type_name());
  }
  for (const auto& [key, product] : products.items()) {
    if (!product.is_object()) fail(ErrorCode::kBadFormat, key, "an object", product.type_name());
    std::string candidate = text_of(product, "candidate");
    const std::optional<Key> parts = split(key);
    if (!parts) fail(ErrorCode::kBadFormat, "products", "keys as 'gemm: m 64, n 7168, …'", key);
    const auto& [rows, rest] = *parts;
    const std::int64_t first =
        product.contains("rows_from") ? number_of(product, "rows_from") : rows;
    choices_[rest].push_back({first, rows, std::move(candidate)});
  }
}

std::string_view Tuning::candidate(const GemmProblem& problem) const {
  if (choices_.empty() || !is_contiguous(problem)) return "";
  return find(tuning_key(problem));
}

std::string_view Tuning::candidate(const WeightOnlyProblem& problem) const {
  if (choices_.empty() || contiguous(problem) != problem) return "";
  return find(tuning_key(problem));
}

std::string_view Tuning::find(std::string_view key) const {
  const Key parts = split(key).value();
  const auto found = choices_.find(parts.rest);
  if (found == choices_.end()) return "";
  for (const auto& [first, last, candidate] : found->second) {
    if (first <= parts.rows && parts.rows <= last) return candidate;
  }
  return "";
}

std::size_t Tuning::size() const {
  std::size_t size = 0;
  for (const auto& [product, choices] : choices_) size += choices.size();
  return size;
}

std::string tuning_file_name(std::string_view gpu_name) {
  std::string name(gpu_name);
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name + ".json";
}

Tuning shipped_tuning(const Gpu& gpu, std::string_view gpu_name) try {
  const std::string_view text = shipped_table(tuning_file_name(gpu_name));
  return text.empty() ? Tuning() : Tuning(text, gpu, gpu_name);
} catch (const Error& error) {
  if (error.code() != ErrorCode::kUnsupported) throw;
  return {};  // a part of that GPU, or the GPU as an older one
}

}  // namespace octofold::plan
